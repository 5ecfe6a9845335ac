"""Reader and writer of GGUF model files."""
