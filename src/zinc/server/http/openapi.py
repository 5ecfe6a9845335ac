"""The OpenAPI document, generated from the request models of the endpoints, and a page of it.

The page loads nothing from other hosts, so it works offline.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import Any

from pydantic.json_schema import models_json_schema

from zinc import __version__
from zinc.core.dataclass import dataclass
from zinc.server.http.fields import Fields

EVENT_STREAM, NDJSON = "text/event-stream", "application/x-ndjson"  # media types of streams
_REF = "#/components/schemas/{model}"


@dataclass(frozen=True, slots=True)
class Operation:
    """The description of an endpoint.

    fields: the model of the request body. items: the model of each item, if the body is an array.
    is_upload: the body is a form with a file. query: names of query parameters. streams: the media
    type of the response as a stream, "" if it cannot be one. statuses: error statuses beyond the
    common ones.
    """

    method: str
    path: str
    summary: str
    tag: str
    fields: type[Fields] | None = None
    items: type[Fields] | None = None
    is_upload: bool = False
    query: tuple[str, ...] = ()
    media_type: str = "application/json"
    streams: str = ""
    statuses: tuple[int, ...] = ()


_MEANINGS = {
    400: "a field is not valid, not known or not supported; `param` names it",
    401: "the API key is missing or wrong",
    403: "the origin of the calling web page is not allowed, or clients may not change models",
    404: "there is no such model, response or path",
    405: "the path has no such method",
    409: "the model or file is in use, or the batch has ended",
    413: "the body is too large, or the folder for files is full",
    415: "the body is compressed",
    421: "the Host header names another machine",
    429: "the queue is full; Retry-After says when to try again",
    501: "the model cannot do this, or the server keeps no files",
    502: "a download failed",
    503: "the model is being loaded, or the server is going down",
}


def document(operations: Sequence[Operation], with_key: bool) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document. with_key: the server asks for an API key."""
    bodies = (kind for o in operations for kind in (o.fields, o.items) if kind is not None)
    kinds = list(dict.fromkeys(bodies))
    _, definitions = models_json_schema(
        [(kind, "validation") for kind in kinds], ref_template=_REF, by_alias=True
    )
    schemas: dict[str, Any] = definitions.get("$defs", {})
    for kind in kinds:
        schemas[kind.__name__]["additionalProperties"] = False
    schemas["Error"] = _ERROR
    paths: dict[str, Any] = {}
    for operation in operations:
        path = re.sub(r":\w+}", "}", operation.path)  # without Starlette's converters
        paths.setdefault(path, {})[operation.method.lower()] = _describe(operation, path)
    found: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "zinc",
            "version": __version__,
            "description": "A local language model behind the APIs of OpenAI, Anthropic and "
            "llama.cpp's server.",
        },
        "paths": paths,
        "components": {"schemas": schemas},
    }
    if with_key:
        found["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        found["security"] = [{"key": []}]
    return found


def _describe(operation: Operation, path: str) -> dict[str, Any]:
    content: dict[str, Any] = {operation.media_type: {"schema": {}}}
    if operation.streams:
        content[operation.streams] = {}
    error = {"application/json": {"schema": {"$ref": _REF.format(model="Error")}}}
    statuses = {400, 401, 403, 421, 503, *operation.statuses}
    if operation.fields is not None:
        statuses |= {404, 413, 415}
    found: dict[str, Any] = {
        "operationId": f"{operation.method.lower()}{re.sub(r'[^a-z]+', '_', path)}",
        "summary": operation.summary,
        "tags": [operation.tag],
        "responses": {
            "200": {"description": "done", "content": content},
            **{str(s): {"description": _MEANINGS[s], "content": error} for s in sorted(statuses)},
        },
    }
    if parameters := _parameters(operation, path):
        found["parameters"] = parameters
    if (body := _body(operation)) is not None:
        found["requestBody"] = {"required": True, "content": body}
    return found


def _parameters(operation: Operation, path: str) -> list[dict[str, Any]]:
    """Return the parameters in the query and in the path."""
    in_path = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    places = [(name, "query", False) for name in operation.query]
    places += [(name, "path", True) for name in in_path]
    return [
        {"name": name, "in": place, "required": required, "schema": {"type": "string"}}
        for name, place, required in places
    ]


def _body(operation: Operation) -> dict[str, Any] | None:
    """Return the content of request bodies by media type, None for an operation without a body."""
    if operation.is_upload:
        return {"multipart/form-data": {"schema": _UPLOAD}}
    schema: dict[str, Any]
    if operation.items is not None:
        items = {"$ref": _REF.format(model=operation.items.__name__)}
        schema = {"type": "array", "items": items}
    elif operation.fields is not None:
        schema = {"$ref": _REF.format(model=operation.fields.__name__)}
    else:
        return None
    return {"application/json": {"schema": schema}}


_UPLOAD = {
    "type": "object",
    "required": ["file", "purpose"],
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "purpose": {"const": "batch"},
    },
}

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


def page(operations: Sequence[Operation]) -> str:
    """Return an HTML page that lists the endpoints and their fields."""
    parts = []
    for operation in operations:
        parts.append(
            f"<h2><code>{operation.method} {html.escape(operation.path)}</code></h2>"
            f"<p>{html.escape(operation.summary)}</p>"
        )
        if operation.fields is not None:
            rows = "".join(
                f"<tr><td><code>{html.escape(field.alias or name)}</code></td>"
                f"<td><code>{html.escape(_type_name(field.annotation))}</code></td>"
                f"<td>{'required' if field.is_required() else ''}</td>"
                f"<td>{html.escape(field.description or '')}</td></tr>"
                for name, field in operation.fields.model_fields.items()
            )
            parts.append(f"<details><summary>fields</summary><table>{rows}</table></details>")
    body = "\n".join(parts)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>zinc: the API</title>'
        '<meta name="viewport" content="width=device-width">'
        "<style>body{font:16px/1.5 system-ui;max-width:60rem;margin:2rem auto;padding:0 1rem;"
        "color-scheme:light dark}h2{font-size:1rem;margin:1.5rem 0 0}p{margin:0}"
        "td{padding:0 1rem 0 0;vertical-align:top}</style>"
        f'<h1>zinc: the API</h1><p><a href="/openapi.json">OpenAPI document</a></p>{body}</html>'
    )


def _type_name(annotation: object) -> str:
    name = getattr(annotation, "__name__", None)
    text = name if isinstance(annotation, type) and name else str(annotation)
    text = re.sub(r"\b(?:typing|zinc\.server[\w.]*)\.", "", text)
    return text if len(text) <= 80 else "…"
