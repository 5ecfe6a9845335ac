"""A conversation to be continued."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zinc.engine.sampling import SamplingParams
from zinc.server.apis.shared.fields import Constraint
from zinc.server.runtime.job import NO_TELEMETRY, Telemetry


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A conversation to be continued, in OpenAI's shape.

    With `forced_tools` an answer is a call of one of them. A last message of the assistant is the
    beginning of the answer. With `one_call` an answer ends after its first call. `thinking_budget`
    bounds the reasoning, in tokens. With `truncate` the oldest turns are left out when the prompt
    does not fit. `param` names the field that holds the messages, for errors.
    """

    messages: Sequence[Mapping[str, Any]]
    params: SamplingParams
    tools: Sequence[Mapping[str, Any]] | None = None
    forced_tools: Sequence[Mapping[str, Any]] = ()
    one_call: bool = False
    template_args: Mapping[str, Any] = field(default_factory=dict)
    n: int = 1
    constraint: Constraint | None = None
    thinking_budget: int | None = None
    priority: int = 0
    telemetry: Telemetry = NO_TELEMETRY
    truncate: bool = False
    param: str = "messages"
