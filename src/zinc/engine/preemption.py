"""What a sequence that has to make room loses: nothing if it is copied away, or its time.

Copying its blocks and state out and in again costs by the byte, running it again costs by the
token; both rates are measured as the engine goes, and the cheaper way is taken as long as there is
room for the copies. Long sequences of small models are copied, short ones with a large recurrent
state are run again.
"""

from __future__ import annotations

from dataclasses import dataclass

# How much a new measurement counts.
_WEIGHT = 0.2
# Until something was copied: a memory of one channel, read and written.
_COPY_SECONDS_PER_BYTE = 1 / 4e9


@dataclass(slots=True)
class Rates:
    """Seconds a token of a prompt, and seconds a byte copied one way; None when not known yet."""

    token_s: float | None = None
    byte_s: float = _COPY_SECONDS_PER_BYTE

    def ran(self, n_tokens: int, seconds: float) -> None:
        """Takes note of a step with prompts in it."""
        each = seconds / n_tokens
        self.token_s = each if self.token_s is None else _mixed(self.token_s, each)

    def copied(self, n_bytes: int, seconds: float) -> None:
        if n_bytes:
            self.byte_s = _mixed(self.byte_s, seconds / n_bytes)

    def swap_pays(self, n_tokens: int, n_bytes: int) -> bool:
        """Whether copying out and in is cheaper than to run so many tokens again."""
        return self.token_s is not None and 2 * n_bytes * self.byte_s < n_tokens * self.token_s


def _mixed(old: float, new: float) -> float:
    return old + _WEIGHT * (new - old)
