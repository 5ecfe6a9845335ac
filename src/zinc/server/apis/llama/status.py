"""GET /props and /slots of llama.cpp's server.

A slot is a running or waiting sequence. The number of slots is what the engine can run at once.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from zinc import __version__
from zinc.engine.sampling import SamplingParams
from zinc.server.apis.llama.result import settings
from zinc.server.apis.shared.service import Service, client_of
from zinc.server.errors import ApiError
from zinc.server.http.responses import JSONResponse
from zinc.server.runtime.runner import Generation
from zinc.tokenizer import Tokenizer


async def props(service: Service, request: Request) -> Response:
    """Answer with the properties of a model and its default settings."""
    async with service.pool.use(request.query_params.get("model")) as model:
        tokenizer = model.tokenizer
        speculates = model.llm.engine.speculation is not None
        defaults = settings(SamplingParams(**await service.sampling_of(model.name)), model)
        return JSONResponse(
            {
                "default_generation_settings": {
                    "id": 0,
                    "id_task": -1,
                    "n_ctx": model.context,
                    "speculative": speculates,
                    "is_processing": bool(model.runner.live),
                    "params": defaults,
                },
                "total_slots": model.llm.engine.max_sequences,
                "model_alias": model.name,
                "model_path": str(model.llm.path),
                "chat_template": tokenizer.chat_template or "",
                "bos_token": _token_text(tokenizer, tokenizer.bos_id),
                "eos_token": _token_text(tokenizer, tokenizer.eos_id),
                "modalities": {"vision": False, "audio": False},
                "build_info": f"zinc {__version__}",
                "is_sleeping": False,
            }
        )


def _token_text(tokenizer: Tokenizer, id: int | None) -> str:
    return "" if id is None else tokenizer.text_of(id)


async def slots(service: Service, request: Request) -> Response:
    """Answer with the running and waiting sequences, without their text."""
    async with service.pool.use(request.query_params.get("model")) as model:
        live = list(model.runner.live)
        name = client_of(service, request).name

        def mine(generation: Generation) -> bool:
            return not service.config.api_keys or generation.client.name == name

        total = model.llm.engine.max_sequences
        speculates = model.llm.engine.speculation is not None
        if "fail_on_no_slot" in request.query_params and len(live) >= total:
            raise ApiError(503, "no slot is free", f"{len(live)} sequences are running or waiting")
        rows: list[dict[str, Any]] = [
            {
                "id": i,
                "n_ctx": model.context,
                "speculative": speculates and each.job.params.speculate,
                "is_processing": True,
                "is_waiting": not each.running,
                "n_prompt_tokens": each.n_prompt,
                # Other API keys must not see stop strings and biases.
                **({"params": settings(each.job.params, model)} if mine(each) else {}),
                "next_token": {
                    "has_next_token": True,
                    "n_remain": -1
                    if each.job.params.max_tokens is None
                    else each.job.params.max_tokens - each.n_generated,
                    "n_decoded": each.n_generated,
                },
            }
            for i, each in enumerate(live)
        ]
        rows += [
            {
                "id": i,
                "n_ctx": model.context,
                "speculative": speculates,
                "is_processing": False,
            }
            for i in range(len(live), total)
        ]
        return JSONResponse(rows)
