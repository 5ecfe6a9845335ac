"""The model that a request is for, and answers that list the models of several applications."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl

from starlette.types import Scope

from zinc.server.apis.anthropic.models import page
from zinc.server.apis.ollama.common import DEFAULT_TAG
from zinc.server.http.dialect import speaks_anthropic, speaks_ollama

LISTS = {
    "/v1/models": "data", "/models": "data", "/api/v0/models": "data", "/api/tags": "models",
    "/api/ps": "models",
}  # fmt: skip
"""Paths that list models, with the field of their answers that has the rows."""

_ONE_MODEL = ("/v1/models/", "/api/v0/models/")  # the name follows


def query(scope: Scope) -> dict[str, str]:
    """Return the parameters of a request's query."""
    return dict(parse_qsl(scope["query_string"].decode("latin-1")))


def asked_model(scope: Scope, fields: Mapping[str, Any]) -> str:
    """Return the name of the model that a request asks for, "" if it names none.

    fields: of its body.
    """
    path: str = scope["path"]
    for start in _ONE_MODEL:
        if path.startswith(start):
            return path.removeprefix(start)
    older = fields.get("name") if speaks_ollama(scope) else None
    name = fields.get("model") or older or query(scope).get("model")
    return name if isinstance(name, str) else ""


def find_model(scope: Scope, name: str, known: Iterable[str]) -> str | None:
    """Return which of the models `known` a request for `name` gets, None for none.

    Requests without a name get the first one. A single model gets all requests, as in `zinc serve`.
    """
    names = list(known)
    if not name or len(names) == 1:
        return names[0]
    if name not in names and speaks_ollama(scope):
        name = name.removesuffix(DEFAULT_TAG)
    return name if name in names else None


def merged_list(scope: Scope, bodies: Iterable[bytes]) -> bytes:
    """Return the answers to a request of `LISTS` as one. Raises ApiError 400."""
    rows_in = LISTS[scope["path"]]
    found = [json.loads(body) for body in bodies]
    rows = [row for each in found for row in each[rows_in]]
    whole = page(rows, query(scope)) if speaks_anthropic(scope) else {**found[0], rows_in: rows}
    return json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode()


def access_probe(scope: Scope) -> dict[str, Any]:
    """Return a request that a replica refuses if it would refuse the request `scope`.

    A replica answers it, whatever model the request names.
    """
    path = "/api/version" if speaks_ollama(scope) else "/v1/models"
    changed = {"method": "GET", "path": path, "raw_path": path.encode(), "query_string": b""}
    return {**scope, **changed}
