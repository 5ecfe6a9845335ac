"""The HTTP server: OpenAI's, Anthropic's and llama.cpp's shapes in front of the engine.

    request → access, body → an API's module → chat or text → Runner (one engine thread a model)

An API's module knows shapes and nothing of tokens; `runner.py` knows tokens and nothing of HTTP.
Needs the extra `zinc[server]`; nothing here is imported before `zinc serve` runs.
"""
