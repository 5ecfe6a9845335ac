"""A request: a prompt as token ids, and what its client says about the answer."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from zinc.core.dataclass import dataclass
from zinc.engine.adapters import AdapterUse
from zinc.engine.constraint import Constraint, Thinking
from zinc.engine.readout import Readout
from zinc.engine.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class Request:
    """A request to `Engine.submit`.

    dry_breakers: sequences of token ids that stop the DRY sampler from matching further. client:
    prompt tokens are shared equally among clients. namespace: requests reuse cached prefixes of
    their own namespace only. priority: requests of higher priority run first. constraint: a parser
    that limits the answer of this request alone. checkpoints: positions in the prompt where another
    prompt may depart from it, besides those that the engine finds itself. readout: takes the rows
    of the prompt. prediction: token ids that the suffix drafter searches for drafts. adapters: the
    LoRA adapters that change the model for it.
    """

    ids: Sequence[int]
    params: SamplingParams
    end_tokens: Collection[int] = ()
    dry_breakers: Collection[Sequence[int]] = ()
    client: str = ""
    namespace: bytes = b""
    priority: int = 0
    constraint: Constraint | None = None
    thinking: Thinking | None = None
    checkpoints: Collection[int] = ()
    readout: Readout | None = None
    prediction: Sequence[int] = ()
    adapters: AdapterUse | None = None
