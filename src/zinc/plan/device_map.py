"""Division of a model that does not fit on a device between the device and the CPU.

Layers move to the CPU from the front of the model, as with llama.cpp's -ngl; the output moves last.
In a model with experts, the experts move first, as with --n-cpu-moe: they are most of the bytes,
but little of the work, because a token uses few of them. The embedding reads one row per token, so
it is on the CPU whenever anything else is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum

from zinc.core.dataclass import dataclass
from zinc.core.errors import RequestError
from zinc.ops.node import Node
from zinc.ops.registry import OPS, Phase

DEVICE, HOST = 0, 1


class SplitMode(StrEnum):
    """How several devices divide a model: each has some layers, or a part of every layer."""

    LAYER = "layer"
    TENSOR = "tensor"
    AUTO = "auto"  # the one that is estimated to be faster


@dataclass(frozen=True, slots=True)
class DeviceMap:
    """The parts of a model that run on the device; the rest runs on the CPU.

    gpu_layers: number of layers on the device, counted from the end of the model; the output counts
    as the first of them. None, or a number larger than the model (such as -ngl 99), means
    everything. cpu_moe: number of layers, counted from the front, whose experts are on the CPU in
    any case. shares: for a model on several devices, the part that each device takes, relative to
    the others; () divides by their speed. split: what several devices divide, see `SplitMode`.
    """

    gpu_layers: int | None = None
    cpu_moe: int = 0
    shares: tuple[float, ...] = ()
    split: str = SplitMode.LAYER

    def check(self, nodes: Iterable[Node], n_layers: int) -> None:
        """Raise RequestError if a model with these nodes cannot be divided like this."""
        for name, is_given in (("shares", self.shares), ("split", self.split != SplitMode.LAYER)):
            if is_given:
                raise RequestError(
                    "the model cannot be divided over devices",
                    "it runs on one device",
                    f"name several devices with {{device}}, or leave {{{name}}} out",
                )
        for name, number in (("gpu_layers", self.gpu_layers or 0), ("cpu_moe", self.cpu_moe)):
            if number < 0:
                raise RequestError(
                    f"{name} cannot be {number}",
                    "it is a number of layers",
                    f"choose one from 0 to {n_layers}",
                )
        if self.cpu_moe and not has_experts(nodes):
            raise RequestError(
                f"the experts of {self.cpu_moe} layers cannot be on the CPU",
                "the model has no experts",
                "leave {cpu_moe} out, or choose {gpu_layers}",
            )

    def first_layer(self, n_layers: int) -> int:
        """Return the first layer on the device; `n_layers` means the output."""
        return 0 if self.gpu_layers is None else max(n_layers + 1 - self.gpu_layers, 0)

    def is_whole(self, n_layers: int) -> bool:
        """Return whether everything is on the device."""
        return self.first_layer(n_layers) == 0 and self.cpu_moe == 0

    def assign(self, n_layers: int) -> Callable[[Node], int]:
        """Return a function that maps each node of a graph to DEVICE or HOST."""
        first = self.first_layer(n_layers)

        def of(node: Node) -> int:
            if node.label == "embed":
                return HOST
            if node.label == "head":
                return DEVICE if first <= n_layers else HOST
            layer = int(node.label.removeprefix("blk."))
            kept = layer < self.cpu_moe and OPS[node.op].phase is Phase.MOE
            return HOST if layer < first or kept else DEVICE

        return of

    def describe(self, n_layers: int) -> str:
        """Return a sentence for users."""
        first = self.first_layer(n_layers)
        if first > n_layers:
            return f"all {n_layers} layers on the CPU"
        parts = []
        if first:
            layers = f"the last {n_layers - first} of {n_layers} layers and " * (first < n_layers)
            parts.append(f"{layers}the output on the device")
        if self.cpu_moe > first:
            n_moe = min(self.cpu_moe, n_layers)
            parts.append(f"the experts of the first {n_moe} of {n_layers} layers on the CPU")
        return ", ".join(parts) or "the whole model on the device"


def has_experts(nodes: Iterable[Node]) -> bool:
    """Return whether any node belongs to a mixture of experts."""
    return any(OPS[node.op].phase is Phase.MOE for node in nodes)


def choose(nodes: Sequence[Node], n_layers: int, fits: Callable[[DeviceMap], bool]) -> DeviceMap:
    """Return the map that keeps most on the device among those that `fits` accepts.

    Experts leave the device before layers do. A map with everything on the CPU always fits.
    """
    n_moe = n_layers if has_experts(nodes) else 0
    steps = [DeviceMap(cpu_moe=n) for n in range(n_moe + 1)]
    steps += [DeviceMap(n, n_moe) for n in range(n_layers, -1, -1)]
    if fits(steps[0]):  # the usual case, and each call makes a plan
        return steps[0]
    low, high = 1, len(steps) - 1
    while low < high:
        middle = (low + high) // 2
        if fits(steps[middle]):
            high = middle
        else:
            low = middle + 1
    return steps[low]
