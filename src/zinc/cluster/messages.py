"""Messages between the front, the router and the replicas of a cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from starlette.types import Message, Scope

from zinc.core.dataclass import dataclass

# Entries of an ASGI scope that can be sent to another process.
_SENT = (
    "type", "asgi", "http_version", "method", "scheme", "path", "raw_path", "root_path",
    "query_string", "headers", "client", "server",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Forwarded:
    """A request to a replica.

    scope: of the ASGI request, without what cannot be sent. blocks: digests of its prompt. avoid:
    names of replicas that should not get it.
    """

    scope: dict[str, Any]
    body: bytes
    blocks: bytes = b""
    avoid: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a replica's answer: ASGI messages that were ready at the same time.

    A part without messages reports that the replica has begun, if its first messages take long.
    seconds: since the replica got the request.
    """

    replica: str
    seconds: float
    messages: tuple[Message, ...] = ()


def sendable(scope: Scope) -> dict[str, Any]:
    """Return the entries of an ASGI scope that a replica needs."""
    found = {name: scope[name] for name in _SENT if name in scope}
    found["headers"] = [(bytes(name), bytes(value)) for name, value in scope["headers"]]
    return found


def status_of(parts: list[Part]) -> int:
    """Return the HTTP status of an answer, 503 if it has none."""
    for part in parts:
        for message in part.messages:
            if message["type"] == "http.response.start":
                status: int = message["status"]
                return status
    return 503


def body_of(parts: list[Part]) -> bytes:
    """Return the body of an answer."""
    return b"".join(message.get("body", b"") for part in parts for message in part.messages)


def with_body(parts: list[Part], body: bytes) -> list[Part]:
    """Return the answer `parts` with another body."""
    start = next(m for p in parts for m in p.messages if m["type"] == "http.response.start")
    headers = [(k, v) for k, v in start["headers"] if k.lower() != b"content-length"]
    headers.append((b"content-length", str(len(body)).encode()))
    messages: tuple[Message, ...] = (
        {**start, "headers": headers},
        {"type": "http.response.body", "body": body},
    )
    return [replace(parts[-1], messages=messages)]
