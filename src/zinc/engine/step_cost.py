"""Bytes and FLOPs of the launches of a plan."""

from __future__ import annotations

from zinc.backends.plans import Launch
from zinc.core.dataclass import dataclass
from zinc.core.kv_types import BYTES_PER_NUMBER
from zinc.ops.values import Dim


@dataclass(frozen=True, slots=True)
class StepShape:
    """The sizes of a step, for costs.

    Each of `sequences` sequences has `depth` cached tokens, and brings `tokens` new tokens and
    `outputs` output rows.
    """

    tokens: int
    outputs: int
    depth: int
    kv_dtype: str = "f16"
    sequences: int = 1

    def runs(self, launch: Launch) -> bool:
        """Return whether a launch runs in the step."""
        n_tokens, n_keys = self.tokens * self.sequences, self.depth + self.tokens
        return launch.runs(n_tokens, n_keys, is_decode=self.tokens == 1)

    def rows(self, launch: Launch) -> int:
        """Return the rows that a launch computes."""
        return self.rows_of(launch.dim)

    def rows_of(self, dim: Dim) -> int:
        """Return the rows of a dimension."""
        match dim:
            case Dim.TOKENS:
                return self.tokens * self.sequences
            case Dim.OUTPUTS:
                return self.outputs * self.sequences
            case Dim.SEQUENCES:
                return self.sequences
            case _:
                return 1

    def bytes(self, launch: Launch) -> int:
        """Return the bytes of weights, activations, keys and values that a launch moves.

        A launch that does not run in the step moves none.
        """
        if not self.runs(launch):
            return 0
        cost = launch.cost
        # Costs of launches assume a float16 cache.
        scale = BYTES_PER_NUMBER[self.kv_dtype] / BYTES_PER_NUMBER["f16"]
        keys = round(cost.key_bytes * self.keys(launch) * scale)
        return cost.bytes(self.rows(launch), sequences=self.sequences) + keys

    def flops(self, launch: Launch) -> int:
        """Return the floating-point operations of a launch."""
        if not self.runs(launch):
            return 0
        return launch.cost.flops(self.rows(launch), self.pairs(launch))

    def keys(self, launch: Launch) -> int:
        """Return the number of cached positions that a launch reads."""
        window = int(launch.attributes.get("window", 0))
        keys = self.depth + self.tokens
        return self.sequences * (min(keys, window + self.tokens - 1) if window else keys)

    def pairs(self, launch: Launch) -> int:
        """Return the number of (query, key) pairs that a launch scores."""
        window = int(launch.attributes.get("window", 0))
        if not window:
            pairs = self.tokens * self.depth + self.tokens * (self.tokens + 1) // 2
        else:
            pairs = sum(min(self.depth + i + 1, window) for i in range(self.tokens))
        return self.sequences * pairs
