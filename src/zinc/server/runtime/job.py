"""Jobs for a runner, and the items that it delivers for each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeAlias

from zinc.chat.events import Event
from zinc.core.dataclass import dataclass
from zinc.engine.constraint import Constraint, Thinking
from zinc.engine.readout import Readout
from zinc.engine.sampling import Sampled, SamplingParams
from zinc.engine.sequence import Timings
from zinc.server.errors import ApiError
from zinc.server.runtime.reader import TokenReader


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Which further items a stream contains: timings with each token, progress of the prompt."""

    timings: bool = False
    progress: bool = False


NO_TELEMETRY = Telemetry()


@dataclass(frozen=True, slots=True)
class Client:
    """The sender of a request.

    name: the engine is shared equally between clients with different names. namespace: the prefix
    cache is shared only within a namespace. lora: scales of LoRA adapters by id, for this request;
    None are those of the model.
    """

    name: str = ""
    namespace: bytes = b""
    lora: Mapping[int, float] | None = None


ANYBODY = Client()


@dataclass(frozen=True, slots=True)
class Job:
    """One sequence to run, and how to read its tokens.

    ids: the prompt. reader: creates the reader of the answer's tokens.
    thinking: the markers of reasoning, and its token budget.
    constraint: limits the tokens of the answer.
    one_call: end the answer after its first complete call.
    deadline_s: time limit from submission; the tokens up to then are the answer.
    priority: jobs with a higher priority run first.
    readout: receives rows of hidden states; complete before the first token is delivered.
    dry_breakers: the DRY breakers of `params` as token ids, computed before submission because
        that is slow.
    prediction: ids of text that the answer may repeat, for drafts of it.
    """

    ids: Sequence[int]
    params: SamplingParams
    reader: Callable[[], TokenReader]
    thinking: Thinking | None = None
    constraint: Constraint | None = None
    one_call: bool = False
    deadline_s: float | None = None
    priority: int = 0
    readout: Readout | None = None
    dry_breakers: Collection[Sequence[int]] = ()
    telemetry: Telemetry = NO_TELEMETRY
    prediction: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Progress:
    """How much of a prompt has been processed: `timings.prompt_tokens` of `n_prompt` tokens.

    Cached tokens count as processed. The first item of a prompt reports only these, the last one
    all of its tokens.
    """

    n_prompt: int
    timings: Timings


@dataclass(frozen=True, slots=True)
class Token:
    """A token, and the events that it completes.

    events: can be empty, or contain text of earlier tokens, while a marker or a stop string may be
    in progress. thinking: whether the token belongs to the reasoning, as far as is known. timings:
    of the answer so far, if the job asks for them.
    """

    sampled: Sampled
    events: list[Event]
    thinking: bool = False
    timings: Timings | None = None


@dataclass(frozen=True, slots=True)
class End:
    """The last item of a generation.

    reason: "stop" or "length". events: those held back until now. stop: the stop string that
    matched, if any.
    """

    reason: str
    events: list[Event]
    stop: str | None
    timings: Timings


Item: TypeAlias = Token | Progress | End | ApiError
