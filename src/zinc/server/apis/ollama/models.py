"""GET /api/tags, /api/ps and /api/version, POST /api/show: the models and their details."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import replace
from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from zinc import __version__
from zinc.engine.load.settings import modelfile_of
from zinc.formats.gguf import GGUFFile
from zinc.hub.modelfile import text_of
from zinc.server.apis.ollama.common import API_VERSION, own_name, timestamp
from zinc.server.apis.shared.file_facts import FileFacts, facts_of
from zinc.server.apis.shared.service import Service, read_fields
from zinc.server.errors import invalid
from zinc.server.http.fields import Fields
from zinc.server.http.responses import JSONResponse
from zinc.server.runtime.entry import Entry

_MAX_LISTED = 64  # longer arrays of the metadata are only listed with "verbose"


class ShowFields(Fields):
    """A request to describe a model."""

    model: str | None = None
    name: str | None = Field(None, description="older name of `model`")
    verbose: bool | None = Field(None, description="list long arrays of the metadata, too")
    system: str | None = None
    template: str | None = None
    options: dict[str, Any] | None = None


async def version(service: Service, request: Request) -> Response:
    """Answer with the version of Ollama's API that the server implements, and zinc's version."""
    return JSONResponse({"version": API_VERSION, "zinc": __version__})


async def tags(service: Service, request: Request) -> Response:
    """List the models."""
    entries = service.pool.entries.values()
    return JSONResponse({"models": [await asyncio.to_thread(_tag, entry) for entry in entries]})


async def ps(service: Service, request: Request) -> Response:
    """List the loaded models."""
    rows = []
    for entry in service.pool.entries.values():
        if (model := entry.model) is None:
            continue
        memory = model.llm.memory
        on_device = 0 if model.llm.backend.available_bytes() is None else memory.total_bytes
        keeps_s = service.pool.keeps_s(entry)
        expires = None if math.isinf(keeps_s) else time.time() + keeps_s
        row = await asyncio.to_thread(_tag, entry)
        row |= {
            "size": memory.total_bytes,
            "size_vram": on_device,
            "context_length": model.context,
            # Ollama's clients show a time far in the future as "forever".
            "expires_at": "2318-01-01T00:00:00Z" if expires is None else timestamp(expires),
        }
        rows.append(row)
    return JSONResponse({"models": rows})


async def show(service: Service, request: Request) -> Response:
    """Describe a model. Raises ApiError 404."""
    fields = await read_fields(service, request, ShowFields)
    name = fields.model or fields.name
    if not name:
        raise invalid("model", "model is missing", "it names the model to describe")
    entry = service.pool.entry(own_name(service.pool, name))
    return JSONResponse(await asyncio.to_thread(_describe, entry, bool(fields.verbose)))


def _tag(entry: Entry) -> dict[str, Any]:
    facts = facts_of(entry)
    return {
        "name": entry.source.name,
        "model": entry.source.name,
        "modified_at": timestamp(entry.created),
        "size": entry.size_bytes,
        "digest": facts.digest,
        "details": _details(facts),
    }


def _describe(entry: Entry, verbose: bool) -> dict[str, Any]:
    facts, settings = facts_of(entry), entry.source.settings
    sampling = {**entry.sampling(), **settings.sampling}
    own = modelfile_of(replace(settings, sampling=sampling), entry.path.name)
    with GGUFFile.open(entry.path) as file:
        metadata = dict(file.metadata)
    return {
        "modelfile": text_of(own),
        "parameters": "\n".join(f"{name} {value}" for name, value in own.values()),
        "template": str(metadata.get("tokenizer.chat_template", "")),
        "system": settings.system,
        "messages": list(settings.messages),
        "license": str(metadata.get("general.license", "")),
        "details": _details(facts),
        "model_info": {key: _shown(value, verbose) for key, value in metadata.items()},
        "capabilities": _capabilities(facts),
        "modified_at": timestamp(entry.created),
    }


def _shown(value: Any, verbose: bool) -> Any:
    """Return a metadata value as JSON; a long array becomes null unless `verbose`."""
    if isinstance(value, str | int | float | bool):
        return value if not isinstance(value, float) or math.isfinite(value) else str(value)
    return list(value) if verbose or len(value) <= _MAX_LISTED else None


def _details(facts: FileFacts) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": "gguf",
        "family": facts.architecture,
        "families": [facts.architecture],
        "parameter_size": _parameters(facts.n_parameters),
        "quantization_level": facts.quantization,
    }


def _parameters(n: int) -> str:
    return f"{n / 1e9:.1f}B" if n >= 1e9 else f"{n / 1e6:.1f}M"


def _capabilities(facts: FileFacts) -> list[str]:
    """Return the capabilities of a model under Ollama's names."""
    if not facts.generates:
        return [] if facts.ranks else ["embedding"]
    found = {"tools": facts.has_tools, "thinking": facts.has_thinking, "insert": facts.has_fill}
    return ["completion", "embedding", *(name for name, has in found.items() if has)]
