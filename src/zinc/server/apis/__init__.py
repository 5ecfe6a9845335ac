"""The HTTP APIs: each translates its requests for the engine, and the answers back.

Each API has a folder. An API does not import another one, except that the APIs of llama.cpp and
Ollama build on OpenAI's. `shared` contains code that several APIs need.
"""
