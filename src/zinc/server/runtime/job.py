"""Jobs for a runner, and the items that it yields for each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from zinc.chat.events import Event
from zinc.engine.constraint import Constraint, Thinking
from zinc.engine.readout import Readout
from zinc.engine.sampling import Sampled, SamplingParams
from zinc.engine.sequence import Timings
from zinc.server.errors import ApiError
from zinc.server.runtime.reader import TokenReader


@dataclass(frozen=True, slots=True)
class Telemetry:
    """What a stream tells beside its tokens: their timings, and how far the prompt has come."""

    timings: bool = False
    progress: bool = False


NO_TELEMETRY = Telemetry()


@dataclass(frozen=True, slots=True)
class Client:
    """Whose request it is.

    Clients of different `name` get equal shares of the engine. The prefix cache is shared within a
    `namespace` only.
    """

    name: str = ""
    namespace: bytes = b""


ANYBODY = Client()


@dataclass(frozen=True, slots=True)
class Job:
    """One sequence to run, and how its tokens are read.

    `thinking` tells the engine where reasoning ends and how long it may be; `constraint` is what
    the answer is held to. With `one_call` the answer ends after its first whole call. `deadline_s`
    bounds the time from submission to the last token; what is there then is the answer. Jobs of
    higher `priority` go first. `readout` has its rows before the first token or the end comes.
    `dry_breakers` are those of `params` as token ids, which are too slow to find between two steps.
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


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a prompt has come: `timings.prompt_tokens` of its `n_prompt` tokens have run, the
    cached ones among them. The first has these alone, the last all.
    """

    n_prompt: int
    timings: Timings


@dataclass(frozen=True, slots=True)
class Token:
    """A token and the events that became certain with it: often none, at times of earlier tokens.

    `thinking`: whether it belongs to the reasoning, as far as can be said yet. `timings`: up to the
    step that it came with, if the job asks for them.
    """

    sampled: Sampled
    events: list[Event]
    thinking: bool = False
    timings: Timings | None = None


@dataclass(frozen=True, slots=True)
class End:
    """The last of a generation. `events` are those that were held back; `stop` the stop string
    that matched, if any. reason: "stop" or "length".
    """

    reason: str
    events: list[Event]
    stop: str | None
    timings: Timings


Item: TypeAlias = Token | Progress | End | ApiError
