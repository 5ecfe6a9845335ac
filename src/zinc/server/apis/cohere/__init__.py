"""The API of Cohere: embeddings. Its /v2/rerank is in `zinc.server.apis.llama.rerank`."""
