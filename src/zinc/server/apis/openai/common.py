"""Shapes that OpenAI's endpoints share: messages, tools, usage, log-probabilities."""

from __future__ import annotations

from typing import Any

from zinc import __version__
from zinc.server.apis.shared.service import StreamEvents
from zinc.server.errors import invalid
from zinc.server.http.body import Fields
from zinc.server.http.responses import event

FINGERPRINT = f"build-zinc-{__version__}"  # clients of llama.cpp expect its b for "build"
DONE = b"data: [DONE]\n\n"

OPENAI = StreamEvents(error_event=lambda error: event(error.openai()))


class StreamOptions(Fields):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class NeutralFields(Fields):
    """Fields of OpenAI that say nothing about the answer: accounting, and hints to their fleet."""

    user: str | None = None
    metadata: dict[str, Any] | None = None
    client_metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None


def check_count(n: int | None, name: str, most: int) -> int:
    count = 1 if n is None else n
    if not 1 <= count <= most:
        raise invalid(name, f"{name} is {count}", f"it must lie between 1 and {most}")
    return count
