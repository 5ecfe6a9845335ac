"""Request bodies: read within limits, and parsed as JSON.

There are three limits: the size of one body, the memory of all bodies together (`BodyMemory`), and
the number of JSON values in a body. Values are counted before parsing, because a value of three
bytes becomes a Python object of seventy.

JSON follows RFC 8259, without NaN and Infinity. A lone surrogate, which JavaScript clients produce
when they cut a string within an emoji, becomes U+FFFD, because UTF-8 cannot encode it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from zinc.server.errors import ApiError

Json: TypeAlias = Any  # a parsed JSON value

_LARGE_BYTES = 1 << 20
BODY_TIMEOUT_S = 60.0
_MAX_DEPTH = 100
MAX_VALUES = 1 << 20
MAX_MEMBERS = 1 << 16  # members of objects, plus objects and arrays
VALUE_BYTES = 64  # estimated memory of a JSON value, beyond its text
# The first bytes of each body are not counted, so that large bodies cannot lock out small ones.
FREE_BYTES = 1 << 16
_COUNTED_BYTES = 1 << 20
_LEASE = "zinc.body"


class BodyMemory:
    """ASGI middleware that limits the memory of all request bodies together to `limit_bytes`.

    A body counts until its request has been answered. The first `FREE_BYTES` of each body are not
    counted.
    """

    def __init__(self, app: ASGIApp, limit_bytes: int) -> None:
        self._app, self._limit_bytes = app, limit_bytes
        self.n_bytes = 0
        self.parsing = asyncio.Lock()  # large bodies are parsed one at a time

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        lease = scope[_LEASE] = Lease(self)
        try:
            await self._app(scope, receive, send)
        finally:
            lease.release()

    def take(self, n_bytes: int) -> None:
        """Count `n_bytes` more. Raises ApiError 503 if that exceeds the limit."""
        if self.n_bytes + n_bytes > self._limit_bytes:
            raise ApiError(
                503,
                "the server has too many large requests",
                f"their bodies take {self._limit_bytes} bytes together",
                "try again later, or start the server with a larger --max-body-memory",
                code="body_memory_exceeded",
                # The rest of the body is not read, so the connection cannot be used again.
                headers={"Retry-After": "2", "Connection": "close"},
            )
        self.n_bytes += n_bytes


class Lease:
    """The share of one request in a `BodyMemory`."""

    def __init__(self, memory: BodyMemory) -> None:
        self.memory = memory
        self._n_bytes = 0
        self._counted = 0

    def take(self, n_bytes: int) -> None:
        """Count `n_bytes` more for this request. Raises ApiError 503 if the memory is full."""
        more = max(0, self._n_bytes + n_bytes - FREE_BYTES) - self._counted
        self.memory.take(more)
        self._counted += more
        self._n_bytes += n_bytes

    def release(self) -> None:
        """Stop counting the body of this request."""
        self.memory.n_bytes -= self._counted
        self._counted = self._n_bytes = 0


async def read_json(request: Request, max_bytes: int) -> Json:
    """Read the body of `request` and return its JSON value.

    Raises ApiError: 400 for invalid JSON or a disconnected client, 408 after a time limit, 413 for
    more than `max_bytes` or too many values, 415 for a compressed body, 503 if the memory of all
    bodies is used up.
    """
    coding = request.headers.get("content-encoding", "").strip().lower()
    if coding not in ("", "identity"):
        raise ApiError(
            415,
            "the body is compressed",
            f"its Content-Encoding is {coding[:40]!r}",
            "send it as plain JSON",
            # Do not receive the body.
            headers={"Accept-Encoding": "identity", "Connection": "close"},
        )
    lease: Lease = request.scope[_LEASE]
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > max_bytes:
        raise _too_large(max_bytes)
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for part in request.stream():
                if len(body) + len(part) > max_bytes:
                    raise _too_large(max_bytes)
                lease.take(len(part))
                body += part
    except TimeoutError:
        raise late_body() from None
    except ClientDisconnect:
        raise ApiError(400, "the body is incomplete", "the connection was closed") from None
    if len(body) <= _LARGE_BYTES:
        lease.take(VALUE_BYTES * count_values(body))
        return parse_json(body)
    async with lease.memory.parsing:
        lease.take(VALUE_BYTES * await asyncio.to_thread(count_values, body))
        return await asyncio.to_thread(parse_json, body)


def late_body() -> ApiError:
    """Return the error for a body that did not come within `BODY_TIMEOUT_S`."""
    why = f"it did not come within {BODY_TIMEOUT_S:g} s"
    return ApiError(408, "the body is incomplete", why, headers={"Connection": "close"})


def count_values(body: bytes | bytearray) -> int:
    """Return an upper bound of the number of values in a JSON text, counting commas and brackets.

    If there are many, a second pass leaves out those in strings. Raises ApiError 413 if there are
    too many.
    """
    counts = [body.count(mark) for mark in _MARKS]
    if VALUE_BYTES * sum(counts) > FREE_BYTES:
        counts = [0] * len(_MARKS)
        inside, at = False, 0
        while at < len(body) and not _exceeds(counts):
            part = bytes(body[at : at + _COUNTED_BYTES])
            # Do not cut an escape sequence in two.
            if (len(part) - len(part.rstrip(b"\\"))) % 2:
                part = bytes(body[at : at + _COUNTED_BYTES + 1])
            at += len(part)
            part = part.replace(b"\\\\", b"__").replace(b'\\"', b"__")
            characters = np.frombuffer(part, np.uint8)
            is_inside = np.logical_xor.accumulate(characters == ord('"')) ^ inside
            inside = bool(is_inside[-1])
            outside = characters[~is_inside].tobytes()
            counts = [n + outside.count(m) for n, m in zip(counts, _MARKS, strict=True)]
    if _exceeds(counts):
        raise ApiError(
            413,
            "the request has too many values",
            f"this server reads at most {MAX_VALUES} values, and {MAX_MEMBERS} objects, members "
            "and arrays",
            "send several requests",
            code="request_too_large",
        )
    return sum(counts[:3]) + 1


_MARKS = (b",", b"[", b"{", b":")


def _exceeds(counts: Sequence[int]) -> bool:
    return sum(counts[:3]) >= MAX_VALUES or sum(counts[1:]) > MAX_MEMBERS


def parse_json(body: bytes | bytearray, name: str = "the body") -> Json:
    """Return the value of the JSON text `body`. Raises ApiError 400, with `name`, if not valid."""

    def refused(why: str) -> ApiError:
        return ApiError(400, f"{name} is not valid JSON", why, code="invalid_json")

    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise refused(f"byte {error.start} is not UTF-8") from None
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if "\n" in text.rstrip() else ""
        raise refused(f"{line}column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise refused("it is nested too deep") from None
    except ValueError as error:  # NaN or Infinity, or a number with thousands of digits
        raise refused(str(error)[:100]) from None
    if _depth_exceeds(value, _MAX_DEPTH):
        raise refused(f"it is nested deeper than {_MAX_DEPTH} levels")
    if "\\ud" in text or "\\uD" in text:
        value = _well_formed(value)
    return value


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(
        413,
        "the request is too large",
        f"this server reads bodies of up to {max_bytes} bytes",
        "send less, or start it with a larger --max-body",
        code="request_too_large",
        # The rest of the body is not read, so the connection cannot be used again.
        headers={"Connection": "close"},
    )


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _depth_exceeds(value: Json, limit: int) -> bool:
    """Return whether `value` is nested deeper than `limit`; does not use recursion itself."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(limit + 1):
        if not level:
            return False
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, dict | list)
        ]
    return True


def _well_formed(value: Json) -> Json:
    """Return `value` with each lone surrogate in its texts replaced by U+FFFD."""
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case list():
            return [_well_formed(item) for item in value]
        case dict():
            return {_well_formed(key): _well_formed(item) for key, item in value.items()}
        case _:
            return value
