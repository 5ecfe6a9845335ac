"""The HTTP server: the APIs of OpenAI, Anthropic and llama.cpp in front of the engine.

    request → http (access, body) → apis (an API's endpoint) → runtime (Runner: one engine thread
    per model)

`app.py` lists the endpoints, `main.py` runs them under uvicorn. Modules in `apis` translate JSON;
`runtime` handles tokens and knows nothing of HTTP. Needs the extra `zinc-llm[server]`;
nothing here is imported before `zinc serve` runs.
"""
