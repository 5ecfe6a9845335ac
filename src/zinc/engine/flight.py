"""A step whose tokens the device draws: it may still run while the host goes on.

The engine queues the step after it before it looks at these tokens, so that the device never waits
for the host. One step ahead is enough for that, and nothing has to be taken back: when a token
turns out to be the last, the step in flight runs just that token. Its draw is dropped; the keys,
values and states that it leaves are those of the text.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from zinc.backends.api import DrawingProgram, Drawn
from zinc.engine.sampling.chain import Draw
from zinc.engine.sequence import Sequence
from zinc.ops.sampling import draws_of
from zinc.ops.step import Draws

_BY_HOST: Draw = (0, 0, 1.0, 0.0, 1.0, 0.0)


def as_draws(draws: Seq[Draw | None]) -> Draws:
    """What a step has of them; None is a row that the host draws."""
    return draws_of([_BY_HOST if draw is None else draw for draw in draws])


@dataclass(frozen=True, slots=True)
class Flight:
    """A step of `running`, of whom the `complete` ones get a token: from the device where
    `on_device` says so, from the host otherwise.

    begun, n_tokens: when it was queued, and how many tokens it runs.
    """

    program: DrawingProgram
    drawn: Drawn
    running: Seq[Sequence]
    complete: Seq[Sequence]
    on_device: Seq[bool]
    begun: float
    n_tokens: int

    @property
    def live(self) -> list[Sequence]:
        """Those that have not ended since."""
        return [s for s in self.complete if s.finish_reason is None]
