"""Fields, event forms and checks that OpenAI's endpoints share."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from zinc import __version__
from zinc.engine.sequence import Timings
from zinc.server.apis.shared.service import StreamEvents
from zinc.server.errors import invalid
from zinc.server.http.fields import Fields
from zinc.server.http.responses import event
from zinc.server.runtime.served_model import ServedModel

FINGERPRINT = f"build-zinc-{__version__}"  # llama.cpp's clients expect a "b" at the start
DONE = b"data: [DONE]\n\n"

OPENAI = StreamEvents(error_event=lambda error: event(error.openai()))


def response_head(prefix: str) -> dict[str, Any]:
    """Return the members id, created and system_fingerprint. The id begins with `prefix`."""
    return {
        "id": f"{prefix}-{uuid.uuid4().hex}",
        "created": int(time.time()),
        "system_fingerprint": FINGERPRINT,
    }


class Ended(Protocol):
    """How an answer ended: the reason ("stop", "length" or "calls") and the stop string, if any."""

    @property
    def reason(self) -> str: ...
    @property
    def stop(self) -> str | None: ...
    @property
    def timings(self) -> Timings: ...


Members = Callable[[ServedModel, Sequence[Ended]], dict[str, Any]]
"""Returns the members that an API adds to a finished answer, given the ends of its choices."""


def no_members(model: ServedModel, ends: Sequence[Ended]) -> dict[str, Any]:
    """Return no members: OpenAI's own form."""
    return {}


class StreamOptions(Fields):
    """OpenAI's `stream_options`."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class NeutralFields(Fields):
    """Fields of OpenAI without effect on the answer, such as accounting. They are ignored."""

    user: str | None = None
    metadata: dict[str, Any] | None = None
    client_metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None


def check_count(n: int | None, name: str, most: int) -> int:
    """Return `n`, by default 1. Raises ApiError if it is not between 1 and `most`.

    name: the request field, named in the error.
    """
    count = 1 if n is None else n
    if not 1 <= count <= most:
        raise invalid(name, f"{name} is {count}", f"it must lie between 1 and {most}")
    return count
