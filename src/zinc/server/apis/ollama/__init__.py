"""Ollama's API, which other programs use to talk to a local model."""
