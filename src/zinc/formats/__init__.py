"""Model file formats: reading and writing GGUF."""
