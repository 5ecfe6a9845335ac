"""A step in flight: queued, and perhaps still running.

If the device samples tokens, the engine queues the next step before it reads the tokens of this
one, so the device never waits for the host. One step ahead is enough. If a token turns out to be
the last of its answer, the step in flight runs that token in vain: its sample is dropped, and its
keys, values and states are correct for the text.
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
    """A step of `counts` tokens of each sequence in `running`.

    complete: the sequences that get a token, in the order of the output rows. on_device: for each
    of them, whether the device samples it. ends: tokens of each running sequence that are in the
    cache after the step. begun: the time at which it was queued.
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
        """The sequences that get a token and have not ended since."""
        return [s for s in self.complete if s.finish_reason is None]

    def wait(self) -> None:
        """Wait until the step has run. Raises the error of the device."""
        self.result.tokens()

    def outcomes(self) -> Iterator[tuple[Sequence, Sampled | Exception]]:
        """Yield each complete sequence with its token, or with the error of its row.

        Call it after `wait`.
        """
        by_host = [row for row, sampled in enumerate(self.on_device) if not sampled]
        if by_host:
            complete = [self.complete[row] for row in by_host]
            allowed = [s.request.constraint if s.is_constrained else None for s in complete]
            logits = self.result.logits()
            if len(by_host) < len(logits):
                logits = logits[by_host]
            sampled = sample_rows([s.sampler for s in complete], logits, allowed)
            yield from zip(complete, sampled, strict=True)
        if len(by_host) < len(self.complete):
            rows = zip(self.complete, self.on_device, self.result.tokens().tolist(), strict=True)
            for s, on_device, (token, peak) in rows:
                if on_device:
                    yield s, _checked(int(token), peak)


def _checked(token: int, peak: float) -> Sampled | Exception:
    """Return a token that the device sampled, or an error if its largest logit is not finite."""
    try:
        check_peak(peak)
    except Exception as error:
        return error
    return Sampled(token)
