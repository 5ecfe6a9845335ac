"""/v1/models in Anthropic's form."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from zinc.server.apis.shared.service import Service
from zinc.server.errors import invalid
from zinc.server.http.responses import JSONResponse
from zinc.server.runtime.entry import Entry

_MODELS_A_PAGE, _MAX_MODELS_A_PAGE = 20, 1000


async def list_models(service: Service, request: Request) -> Response:
    """Answer with a page of the list of models in Anthropic's form."""
    query = request.query_params
    names = list(service.pool.entries)
    text = query.get("limit") or str(_MODELS_A_PAGE)
    limit = int(text) if text.isdecimal() and len(text) < 5 else 0
    if not 1 <= limit <= _MAX_MODELS_A_PAGE:
        why = f"it must lie between 1 and {_MAX_MODELS_A_PAGE}"
        raise invalid("limit", f"limit is {text[:20]!r}", why)
    before, after = query.get("before_id"), query.get("after_id")
    for param, name in (("before_id", before), ("after_id", after)):
        if name and name not in names:
            raise invalid(param, f"{param} names no model of this server")
    if before:
        left = names[: names.index(before)]
        page = left[-limit:]
    else:
        left = names[names.index(after) + 1 :] if after else names
        page = left[:limit]
    return JSONResponse(
        {
            "data": [_model_info(service.pool.entries[name]) for name in page],
            "first_id": page[0] if page else None,
            "last_id": page[-1] if page else None,
            "has_more": len(left) > len(page),
        }
    )


async def get_model(service: Service, request: Request) -> Response:
    """Answer with the description of one model in Anthropic's form. Raises ApiError 404."""
    return JSONResponse(_model_info(service.pool.named(request.path_params["name"])))


def _model_info(entry: Entry) -> dict[str, Any]:
    context = None if entry.model is None else entry.model.context
    return {
        "type": "model",
        "id": entry.source.name,
        "display_name": entry.source.name,
        "created_at": datetime.fromtimestamp(entry.created, UTC).isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": context,
        "max_tokens": context,
    }
