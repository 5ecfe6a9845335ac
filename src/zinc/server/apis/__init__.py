"""The APIs: each translates its requests for the engine and the answers back.

Each has a folder and imports no other API, except that llama.cpp's extends OpenAI's. `shared` holds
what several need.
"""
