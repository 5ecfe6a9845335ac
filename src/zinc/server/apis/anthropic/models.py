"""/v1/models in Anthropic's form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    rows = [_model_info(entry) for entry in service.pool.entries.values()]
    return JSONResponse(page(rows, request.query_params))


def page(rows: Sequence[dict[str, Any]], query: Mapping[str, str]) -> dict[str, Any]:
    """Return the page of models that `query` asks for, in Anthropic's form. Raises ApiError 400."""
    names = [row["id"] for row in rows]
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
        left = rows[: names.index(before)]
        found = left[-limit:]
    else:
        left = rows[names.index(after) + 1 :] if after else rows
        found = left[:limit]
    return {
        "data": list(found),
        "first_id": found[0]["id"] if found else None,
        "last_id": found[-1]["id"] if found else None,
        "has_more": len(left) > len(found),
    }


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
