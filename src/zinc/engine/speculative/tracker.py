"""A sequence's drafts: its drafter, the draft in flight, and what has become of earlier ones."""

from __future__ import annotations

from dataclasses import dataclass, field

from zinc.engine.speculative.draft import NO_DRAFT, Draft, Drafter
from zinc.engine.speculative.policy import Record


@dataclass(slots=True)
class Drafts:
    """Drafts of one sequence.

    drafter: None until the first draft. n_seen: tokens of the text that the drafter knows.
    draft: what the step in flight verifies. n_accepted: of its `n_drafted` tokens in all.
    n_compared: tokens of the last draft that were compared with the text, of which
    `n_valid` are equal.
    """

    drafter: Drafter | None = None
    record: Record = field(default_factory=Record)
    n_seen: int = 0
    n_shifted: int = 0
    draft: Draft = NO_DRAFT
    n_drafted: int = 0
    n_accepted: int = 0
    n_valid: int = 0
    n_compared: int = 0

    def verified(self, n_valid: int, n_compared: int) -> None:
        """Record that the first `n_valid` of `n_compared` tokens of the draft are accepted."""
        self.n_valid, self.n_compared = n_valid, n_compared
        self.n_drafted += len(self.draft.tokens)
        self.n_accepted += n_valid
