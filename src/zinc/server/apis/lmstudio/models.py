"""GET /api/v0/models and /api/v0/models/{name}: the models, with what their files contain."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from zinc.server.apis.shared.file_facts import facts_of
from zinc.server.apis.shared.service import Service
from zinc.server.http.responses import JSONResponse
from zinc.server.runtime.entry import Entry


async def models(service: Service, request: Request) -> Response:
    """List the models."""
    entries = list(service.pool.entries.values())
    rows = [await asyncio.to_thread(_row, entry) for entry in entries]
    return JSONResponse({"object": "list", "data": rows})


async def model(service: Service, request: Request) -> Response:
    """Describe one model. Raises ApiError 404."""
    entry = service.pool.named(request.path_params["name"])
    return JSONResponse(await asyncio.to_thread(_row, entry))


def _row(entry: Entry) -> dict[str, Any]:
    facts, loaded = facts_of(entry), entry.model
    row: dict[str, Any] = {
        "id": entry.source.name,
        "object": "model",
        "type": "llm" if facts.generates else "embeddings",
        "publisher": facts.publisher,
        "arch": facts.architecture,
        "compatibility_type": "gguf",
        "quantization": facts.quantization,
        "state": "not-loaded" if loaded is None else "loaded",
        "max_context_length": facts.context,
        "capabilities": ["tool_use"] if facts.has_tools else [],
    }
    if loaded is not None:
        row["loaded_context_length"] = loaded.context
    return row
