"""A chat request, in the form that all APIs are translated to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from zinc.core.dataclass import dataclass
from zinc.engine.sampling import SamplingParams
from zinc.server.apis.shared.fields import Constraint
from zinc.server.runtime.job import NO_TELEMETRY, Telemetry


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A conversation to continue. Messages and tools have the form of OpenAI's chat API.

    messages: if the last one is the assistant's, the answer continues it.
    tools: functions that the model may call.
    forced_tools: the answer must be a call of one of these.
    one_call: the answer ends after its first call.
    template_args: variables for the chat template.
    n: number of answers.
    thinking_budget: most tokens of reasoning.
    truncate: leave out the oldest turns if the prompt does not fit.
    prediction: predicted text of the answer, from which the suffix drafter drafts.
    param: the request field that holds the messages, named in errors.
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
    prediction: str = ""
    param: str = "messages"
