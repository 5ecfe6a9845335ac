"""A step on its way: what was queued, and what each sequence draws once it has run.

Where the device draws tokens, the step may still run while the host goes on. The engine queues the
one after it before it looks at these tokens, so that the device never waits for the host. One step
ahead is enough for that, and nothing has to be taken back: when a token turns out to be the last,
the step in flight runs just that token. Its draw is dropped; the keys, values and states that it
leaves are those of the text.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from zinc.backends.api import Program, StepResult
from zinc.engine.sampling import Sampled, check_peak, sample_rows
from zinc.engine.sequence import Sequence


@dataclass(slots=True)
class Flight:
    """A step of `counts` tokens of each of `running`, of whom the `complete` ones get a token: from
    the device where `on_device` says so, from the host otherwise.

    ends: tokens of each of `running` that are in the cache behind it. begun: when it was queued.
    """

    program: Program
    result: StepResult
    running: Seq[Sequence]
    counts: Seq[int]
    ends: Seq[int]
    complete: Seq[Sequence]
    on_device: Seq[bool]
    begun: float

    @property
    def live(self) -> list[Sequence]:
        """Those that have not ended since."""
        return [s for s in self.complete if s.finish_reason is None]

    def wait(self) -> None:
        """Returns when it has run. Raises what the device raises."""
        self.result.tokens()

    def outcomes(self) -> Iterator[tuple[Sequence, Sampled | Exception]]:
        """The token that each of `complete` gets, or what is wrong with its row; after `wait`."""
        by_host = [row for row, drawn in enumerate(self.on_device) if not drawn]
        if by_host:
            complete = [self.complete[row] for row in by_host]
            allowed = [s.constraint if s.is_constrained else None for s in complete]
            logits = self.result.logits()
            if len(by_host) < len(logits):
                logits = logits[by_host]
            sampled = sample_rows([s.sampler for s in complete], logits, allowed)
            yield from zip(complete, sampled, strict=True)
        if len(by_host) < len(self.complete):
            rows = self.result.tokens().tolist()
            for s, drawn, (token, peak) in zip(self.complete, self.on_device, rows, strict=True):
                if drawn:
                    yield s, _checked(int(token), peak)


def _checked(token: int, peak: float) -> Sampled | Exception:
    """A token that the device drew, if the largest logit of its row is a number of a model."""
    try:
        check_peak(peak)
    except Exception as error:
        return error
    return Sampled(token)
