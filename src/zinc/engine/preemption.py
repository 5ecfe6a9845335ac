"""The cost of preempting a sequence: swapping its cache out and in, or recomputing it.

Swapping costs time per byte, recomputing costs time per token. Both rates are measured while the
engine runs, and the faster way is taken as long as host memory has room for the copies. Long
sequences of small models are swapped; short ones with a large recurrent state are recomputed.
"""

from __future__ import annotations

from zinc.core.dataclass import dataclass

# Weight of a new measurement in the moving average.
_WEIGHT = 0.2
# Before the first measurement: one memory channel, read and written.
_COPY_SECONDS_PER_BYTE = 1 / 4e9


@dataclass(slots=True)
class Rates:
    """Measured costs of running and of copying.

    token_s: seconds per prompt token, None until measured. byte_s: seconds per byte copied one way.
    """

    token_s: float | None = None
    byte_s: float = _COPY_SECONDS_PER_BYTE

    def ran(self, n_tokens: int, seconds: float) -> None:
        """Record a step of `n_tokens` that contained prompts."""
        each = seconds / n_tokens
        self.token_s = each if self.token_s is None else _mixed(self.token_s, each)

    def copied(self, n_bytes: int, seconds: float) -> None:
        """Record how long a copy of `n_bytes`, out or in, took."""
        if n_bytes:
            self.byte_s = _mixed(self.byte_s, seconds / n_bytes)

    def swap_pays(self, n_tokens: int, n_bytes: int) -> bool:
        """Return whether copying `n_bytes` out and in is cheaper than running `n_tokens` again."""
        return self.token_s is not None and 2 * n_bytes * self.byte_s < n_tokens * self.token_s


def _mixed(old: float, new: float) -> float:
    """Return the moving average of `old` after a new measurement."""
    return old + _WEIGHT * (new - old)
