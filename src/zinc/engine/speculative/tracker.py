"""State of speculation for one sequence: its drafter, current draft and acceptance counts."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum

from zinc.core.dataclass import dataclass
from zinc.engine.speculative.draft import NO_DRAFT, Draft
from zinc.engine.speculative.policy import Record
from zinc.engine.speculative.suffix import SuffixDrafter


class Source(StrEnum):
    """Where a draft comes from: repeated text, the model's NextN block, or a draft model."""

    SUFFIX = "suffix"
    NEXTN = "nextn"
    MODEL = "model"


@dataclass(slots=True)
class DraftTracker:
    """The current draft of one sequence, and counts of all of its drafts.

    drafter: of repeated text; None until the first draft. n_seen: tokens of the text that it knows.
    draft: the draft that the step in flight verifies, from `source`. n_drafted, n_accepted: tokens
    of all drafts, and those of them that are in the answer. n_compared: tokens of the last draft
    that were compared with the text, of which `n_valid` are equal. uses: for each source of chains
    for which that is decided, whether it drafts for this sequence.
    """

    drafter: SuffixDrafter | None = None
    record: Record = field(default_factory=Record)
    n_seen: int = 0
    n_shifted: int = 0
    draft: Draft = NO_DRAFT
    source: Source = Source.SUFFIX
    n_drafted: int = 0
    n_accepted: int = 0
    n_valid: int = 0
    n_compared: int = 0
    uses: dict[Source, bool] = field(default_factory=dict)

    def verified(self, n_valid: int, n_compared: int) -> None:
        """Record that the first `n_valid` of `n_compared` tokens of the draft are accepted."""
        self.n_valid, self.n_compared = n_valid, n_compared
        self.n_drafted += len(self.draft.tokens)
        self.n_accepted += n_valid
