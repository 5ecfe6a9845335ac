"""What the launches of a plan move and compute in a step of one sequence."""

from __future__ import annotations

from dataclasses import dataclass

from zinc.backends.api import Launch
from zinc.ops.graph import Dim, Weight
from zinc.quant.blocks import row_bytes

# Bytes an element of the cache takes; launch costs are stated for float16.
KV_ELEMENT_BYTES = {"f16": 2.0, "q8_0": 34 / 32}


@dataclass(frozen=True, slots=True)
class StepShape:
    """A step of `tokens` new tokens and `outputs` output rows after `depth` cached tokens."""

    tokens: int
    outputs: int
    depth: int
    kv_dtype: str = "f16"

    def rows(self, launch: Launch) -> int:
        match launch.dim:
            case Dim.TOKENS:
                return self.tokens
            case Dim.OUTPUTS:
                return self.outputs
            case _:
                return 1

    def bytes(self, launch: Launch) -> int:
        """Weights, activations and cached keys and values that the launch reads or writes."""
        cost = launch.cost
        scale = KV_ELEMENT_BYTES[self.kv_dtype] / KV_ELEMENT_BYTES["f16"]
        return cost.bytes(self.rows(launch)) + round(cost.key_bytes * self.keys(launch) * scale)

    def flops(self, launch: Launch) -> int:
        return launch.cost.flops(self.rows(launch), self.pairs(launch))

    def keys(self, launch: Launch) -> int:
        """Cached positions that the step reads."""
        window = int(launch.attributes.get("window", 0))
        keys = self.depth + self.tokens
        return min(keys, window + self.tokens - 1) if window else keys

    def pairs(self, launch: Launch) -> int:
        """(query, key) pairs that are scored."""
        window = int(launch.attributes.get("window", 0))
        if not window:
            return self.tokens * self.depth + self.tokens * (self.tokens + 1) // 2
        return sum(min(self.depth + i + 1, window) for i in range(self.tokens))


def file_bytes(weight: Weight) -> int:
    """Bytes of the weight as the file stores it."""
    rows = 1 if weight.is_vector else weight.planes * weight.rows
    return rows * row_bytes(weight.type, weight.cols)
