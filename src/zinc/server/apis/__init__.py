"""The APIs: each translates its requests for the engine and the answers back.

A folder an API; an API imports no other, except that llama.cpp's extends OpenAI's. `shared` holds
what several need.
"""
