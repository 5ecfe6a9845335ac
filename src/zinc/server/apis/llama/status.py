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
from zinc.server.runtime.runner import Live
from zinc.server.runtime.served_model import ServedModel
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
                    "is_processing": model.runner.n_live > 0,
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
        live = model.runner.live
        total = model.llm.engine.max_sequences
        if "fail_on_no_slot" in request.query_params and len(live) >= total:
            raise ApiError(503, "no slot is free", f"{len(live)} sequences are running or waiting")
        name = client_of(service, request).name
        rows = [
            # Other API keys must not see stop strings and biases.
            _slot(model, i, each, not service.config.api_keys or each.client.name == name)
            for i, each in enumerate(live)
        ]
        rows += [
            {
                "id": i,
                "n_ctx": model.context,
                "speculative": model.llm.engine.speculation is not None,
                "is_processing": False,
            }
            for i in range(len(live), total)
        ]
        return JSONResponse(rows)


def _slot(model: ServedModel, index: int, live: Live, shows_params: bool) -> dict[str, Any]:
    """Return the state of a sequence. shows_params: with the settings of its request."""
    params = live.params
    speculates = model.llm.engine.speculation is not None
    return {
        "id": index,
        "n_ctx": model.context,
        "speculative": speculates and params.speculate,
        "is_processing": True,
        "is_waiting": not live.running,
        "n_prompt_tokens": live.n_prompt,
        **({"params": settings(params, model)} if shows_params else {}),
        "next_token": {
            "has_next_token": True,
            "n_remain": -1 if params.max_tokens is None else params.max_tokens - live.n_generated,
            "n_decoded": live.n_generated,
        },
    }
