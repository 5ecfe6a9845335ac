"""LM Studio's REST API, /api/v0."""
