"""A step in flight: queued, and perhaps still running.

If the device samples tokens, the engine queues the next step before it reads the tokens of this
one, so the device never waits for the host. One step ahead is enough. If a token turns out to be
the last of its answer, the step in flight runs that token in vain: its sample is dropped, and its
keys, values and states are correct for the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import field

from zinc.backends.api import Program, StepResult
from zinc.core.dataclass import dataclass
from zinc.engine.constraint import Constraint
from zinc.engine.sampling import Sampled, check_peak, sample_rows
from zinc.engine.sequence import Sequence


@dataclass(slots=True)
class StepInFlight:
    """A step of `counts` tokens of each sequence in `running`.

    complete: the sequences that get a token, in the order of the output rows. on_device: for each
    of them, whether the device samples it. ends: tokens of each running sequence that are in the
    cache after the step, without drafted ones. begun: the time at which it was queued. drafts: the
    drafted tokens that the step verifies, by the id of their sequence. A sequence has one output
    row for its last token and one for each drafted token.
    """

    program: Program
    result: StepResult
    running: Seq[Sequence]
    counts: Seq[int]
    ends: Seq[int]
    complete: Seq[Sequence]
    on_device: Seq[bool]
    begun: float
    drafts: Mapping[int, Seq[int]] = field(default_factory=dict)

    @property
    def live(self) -> list[Sequence]:
        """The sequences that get a token and have not ended since."""
        return [s for s in self.complete if s.finish_reason is None]

    def wait(self) -> None:
        """Wait until the step has run. Raises the error of the device."""
        self.result.tokens()

    def outcomes(self) -> Iterator[tuple[Sequence, Sampled | Exception]]:
        """Yield the tokens of the complete sequences in turn, or the errors of their rows.

        Call it after `wait`. The caller gives each token to its sequence before it asks for the
        next, because a drafted token is compared with the text so far.
        """
        if self.drafts:
            yield from self._verified()
            return
        by_host = [row for row, sampled in enumerate(self.on_device) if not sampled]
        if by_host:
            complete = [self.complete[row] for row in by_host]
            allowed = [_constraint(s) for s in complete]
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

    def _verified(self) -> Iterator[tuple[Sequence, Sampled | Exception]]:
        """Yield the token of each output row whose drafted prefix was accepted.

        A row is valid if all drafted tokens before it equal the text of the sequence. So the text
        is the same as without drafts, whatever was drafted, even if a constraint dictates some
        tokens.
        """
        first = 0
        for s, on_device in zip(self.complete, self.on_device, strict=True):
            draft = self.drafts.get(s.id, ())
            begin, n_valid = len(s.ids), 0
            while s.finish_reason is None:
                s.n_run = begin + n_valid
                yield s, self._sampled(s, first + n_valid, on_device)
                fresh = s.ids[begin:]
                n_valid = common_length(fresh, draft)
                if n_valid < len(fresh):
                    break
            if s.finish_reason is None:
                s.n_run = begin + n_valid
            if draft:
                s.drafts.verified(n_valid, min(len(s.ids) - begin, len(draft)))
            first += 1 + len(draft)

    def _sampled(self, s: Sequence, row: int, on_device: bool) -> Sampled | Exception:
        """Return the token of an output row, or its error."""
        if on_device:
            token, peak = self.result.tokens()[row].tolist()
            return _checked(int(token), peak)
        (found,) = sample_rows([s.sampler], self.result.logits()[row : row + 1], [_constraint(s)])
        return found


def common_length(a: Seq[int], b: Seq[int]) -> int:
    """Return the number of leading tokens that are equal."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


def _constraint(s: Sequence) -> Constraint | None:
    return s.request.constraint if s.is_constrained else None


def _checked(token: int, peak: float) -> Sampled | Exception:
    """Return a token that the device sampled, or an error if its largest logit is not finite."""
    try:
        check_peak(peak)
    except Exception as error:
        return error
    return Sampled(token)
