"""Pipeline parallelism: division of a model's layers over several devices.

Each device runs a range of consecutive layers, one device after the other, so only the residual
stream is sent from one device to the next. The first device also has the embedding, the last one
the output. The ranges minimise the time of the slowest device for a token, within the memory of
each device.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from itertools import accumulate, pairwise

from zinc.core.dataclass import dataclass
from zinc.ops.node import Node


@dataclass(frozen=True, slots=True)
class LayerLoad:
    """The bytes of memory that a layer takes, and the bytes that it moves for a token."""

    memory_bytes: int
    token_bytes: int


@dataclass(frozen=True, slots=True)
class DeviceRoom:
    """The bytes that a device has for layers, and its speed relative to the other devices."""

    memory_bytes: int
    speed: float = 1.0


@dataclass(frozen=True, slots=True)
class LayerSplit:
    """The number of layers that each device runs, in order."""

    counts: tuple[int, ...]

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The first layer of each device, and the layer after its last one."""
        return list(pairwise((0, *accumulate(self.counts))))

    def assign(self) -> Callable[[Node], int]:
        """Return a function that maps each node of a graph to the index of a device."""
        return lambda node: self.device_of(node.label)

    def device_of(self, label: str) -> int:
        """Return the index of the device that runs the part `label` of a model."""
        starts = [first for first, _ in self.ranges]
        if label == "embed":
            return 0
        if label == "head":
            return len(starts) - 1
        return bisect_right(starts, int(label.removeprefix("blk."))) - 1

    def describe(self, names: Sequence[str]) -> str:
        """Return a sentence for users; `names` are those of the devices."""
        return ", ".join(
            f"layer{'s' * (last - first > 1)} {layer_range(range(first, last))} on {name}"
            for (first, last), name in zip(self.ranges, names, strict=True)
        )


def layer_range(layers: Sequence[int]) -> str:
    """Return ascending layer numbers as text, such as "0-3, 7"."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and runs[-1][1] == layer - 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)


def even_split(n_layers: int, n_devices: int) -> LayerSplit:
    """Return the split into ranges whose lengths differ by at most one layer."""
    ends = [n_layers * (i + 1) // n_devices for i in range(n_devices)]
    return LayerSplit(tuple(b - a for a, b in pairwise((0, *ends))))


def divide_layers(
    loads: Sequence[LayerLoad],
    devices: Sequence[DeviceRoom],
    joined: Collection[int] = (),
) -> LayerSplit | None:
    """Return the fastest split of layers with `loads` that fits on `devices`.

    Each device gets at least one layer. joined: layers that must be on the device of the layer
    before. Returns None if no split fits.
    """
    memory = (0, *accumulate(load.memory_bytes for load in loads))
    moved = (0, *accumulate(load.token_bytes for load in loads))
    # For each number of layers on the devices so far: the time of the slowest, and their counts.
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for device in devices:
        found: dict[int, tuple[float, tuple[int, ...]]] = {}
        for first, (slowest, counts) in best.items():
            for last in range(first + 1, len(loads) + 1):
                if memory[last] - memory[first] > device.memory_bytes:
                    break
                if last in joined:
                    continue
                time = max(slowest, (moved[last] - moved[first]) / device.speed)
                if last not in found or time < found[last][0]:
                    found[last] = time, (*counts, last - first)
        best = found
    return LayerSplit(best[len(loads)][1]) if len(loads) in best else None
