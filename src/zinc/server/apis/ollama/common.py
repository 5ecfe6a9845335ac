"""Fields and helpers that Ollama's endpoints share: stream lines, model names, durations.

https://docs.ollama.com/api. Streams are JSON objects, one per line. Durations are in nanoseconds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pydantic import Field

from zinc.engine.sampling import SamplingParams
from zinc.engine.sequence import Timings
from zinc.server.apis.openai.chat_request import ThinkingFields
from zinc.server.apis.shared.fields import (
    MAX_TOP_LOGPROBS,
    Constraint,
    ConstraintFields,
    QueueFields,
    StopField,
    constraint_of,
    sampling_params,
)
from zinc.server.apis.shared.service import StreamEvents
from zinc.server.errors import invalid, unsupported
from zinc.server.http.body import Json
from zinc.server.http.responses import encode_json
from zinc.server.runtime.pool import ModelPool

# The version of Ollama's API that these endpoints implement; clients check it.
API_VERSION = "0.12.6"
DEFAULT_TAG = ":latest"


class GenerationFields(ThinkingFields, ConstraintFields, QueueFields):
    """Fields of the endpoints that generate text.

    `options`, `format` and `think` are foreign fields, which are translated to fields of this class
    (`apis/shared/foreign_fields`).
    """

    model: str | None = None
    stream: bool | None = Field(None, description="answer in lines as text arrives (default: true)")
    keep_alive: float | str | None = Field(
        None, description="how long the model stays loaded: seconds or a duration such as 5m"
    )
    max_tokens: int | None = Field(None, ge=-1)
    stop: StopField = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)


def params_of(fields: GenerationFields) -> SamplingParams:
    """Return the sampling parameters of a request. Raises ApiError."""
    if fields.top_logprobs and not fields.logprobs:
        raise invalid("top_logprobs", "top_logprobs is given without logprobs", "", "set logprobs")
    return sampling_params(
        fields,
        max_tokens=fields.max_tokens,
        stop=fields.stop,
        logprobs=(fields.top_logprobs or 0) if fields.logprobs else None,
    )


def constraint_in(fields: GenerationFields) -> Constraint | None:
    """Return the constraint that `format` asks for, or None. Raises ApiError."""
    return constraint_of(None, fields)


def refuse_images(images: list[Any] | None, param: str) -> None:
    """Raise ApiError if a request contains images."""
    if images:
        raise unsupported(param, "only text is supported")


def line(data: Json) -> bytes:
    """Return `data` as a line of a stream."""
    return encode_json(data) + b"\n"


# JSON lines have no comments, so no ping can be sent during silence.
OLLAMA = StreamEvents(
    error_event=lambda error: line(error.ollama()), ping=b"", media_type="application/x-ndjson"
)


def timestamp(unix_s: float | None = None) -> str:
    """Return a time, by default now, as RFC 3339."""
    moment = datetime.fromtimestamp(time.time() if unix_s is None else unix_s, UTC)
    return moment.isoformat().replace("+00:00", "Z")


def own_name(pool: ModelPool, name: str | None) -> str | None:
    """Return the name of a model in the pool, given the name that a client uses.

    Ollama's clients may append the tag `latest`.
    """
    if name is None or name in pool.entries or not name.endswith(DEFAULT_TAG):
        return name
    return name.removesuffix(DEFAULT_TAG)


class Clock:
    """Clock of one request, in nanoseconds. Create it after reading the request."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._load_s = 0.0

    def loaded(self) -> None:
        """Record that the load has ended."""
        self._load_s = time.perf_counter() - self._started

    def durations(self, timings: Timings | None = None) -> dict[str, int]:
        """Return the durations and token counts of a finished answer."""
        found = {
            "total_duration": _ns(time.perf_counter() - self._started),
            "load_duration": _ns(self._load_s),
        }
        if timings is not None:
            found |= {
                "prompt_eval_count": timings.prompt_tokens,
                "prompt_eval_duration": _ns(timings.prompt_seconds),
                "eval_count": timings.generated_tokens,
                "eval_duration": _ns(timings.generate_seconds),
            }
        return found


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


_UNITS: Mapping[str, float] = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def keep_alive_seconds(value: float | str | None) -> float | None:
    """Return `keep_alive` in seconds; None if it is not given, infinity if it is negative.

    A string is a number of seconds or a duration in Go's notation, such as "1h30m". Raises
    ApiError.
    """
    if value is None:
        return None
    try:
        seconds = float(value) if not isinstance(value, str) else _duration(value)
        if math.isnan(seconds):
            raise ValueError(value)
    except ValueError:
        raise invalid(
            "keep_alive",
            f"keep_alive is {str(value)[:40]!r}",
            "it must be a number of seconds or a duration such as 10m",
        ) from None
    return float("inf") if seconds < 0 else seconds


def _duration(text: str) -> float:
    """Return the seconds of a duration in Go's notation. Raises ValueError."""
    sign, rest = (-1.0, text[1:]) if text.startswith("-") else (1.0, text)
    try:
        return sign * float(rest)
    except ValueError:
        if not rest:
            raise
    seconds = 0.0
    while rest:
        digits = len(rest) - len(rest.lstrip("0123456789."))
        unit = next((u for u in _UNITS if rest[digits:].startswith(u)), None)
        if unit is None:
            raise ValueError(text)
        seconds += float(rest[:digits]) * _UNITS[unit]
        rest = rest[digits + len(unit) :]
    return sign * seconds
