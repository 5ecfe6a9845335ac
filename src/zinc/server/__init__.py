"""The HTTP server: the APIs of OpenAI, Anthropic, Ollama and llama.cpp in front of the engine.

    request → http (access, body) → apis (an API's endpoint) → runtime (Runner: one engine thread
    per model)

`endpoints.py` lists the endpoints, `app.py` is the ASGI application, and `main.py` runs it under
uvicorn. Modules in `apis` translate JSON; `runtime` handles tokens and knows nothing of HTTP. The
server needs the extra `zinc-llm[server]`. Nothing here is imported before `zinc serve` runs.
"""
