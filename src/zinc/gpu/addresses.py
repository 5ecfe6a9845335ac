"""Device addresses of a plan's operands, which lowerings write into kernel arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from zinc.backends.plans import Ref
from zinc.core.dataclass import dataclass
from zinc.gpu.features import Features
from zinc.gpu.kv_layout import key_block_bytes, value_block_bytes
from zinc.gpu.memory import Buffer, CounterAllocator, ScratchAllocator, Slice
from zinc.ops.values import Constant, KVState, RecurrentState, Weight
from zinc.quant.blocks import GGMLType

NOMINAL_ADDRESS = 1 << 32  # stands for any address; aligned to anything


@dataclass(frozen=True, slots=True)
class DeviceWeight:
    """A matrix [planes, rows, cols] in device memory, in the layout of the kernel set."""

    address: int
    type: GGMLType
    planes: int
    rows: int
    cols: int


@dataclass(frozen=True, slots=True)
class DeviceKV:
    """A layer's cache blocks in device memory (`zinc.gpu.kv_layout`).

    `keys` and `values` are the addresses of block 0; `table` is the index of the layer's block
    table among the step's tables.
    """

    keys: int
    values: int
    key_block_bytes: int
    value_block_bytes: int
    block_tokens: int
    dtype: str
    table: int

    @property
    def block_shift(self) -> int:
        """log2 of the tokens of a block."""
        return self.block_tokens.bit_length() - 1


class DeviceCache(Protocol):
    """A cache whose states lie in device memory.

    layers: blocks of each KV state by name. recurrent: address of each recurrent state by name.
    """

    layers: dict[str, DeviceKV]
    recurrent: dict[str, int]


class Addresses(Protocol):
    """64-bit device addresses of the operands of a plan, and facts about the device."""

    features: Features
    scratch: ScratchAllocator
    counters: CounterAllocator

    @property
    def step(self) -> int:
        """Address of the step's data (`StepHeader`)."""
        ...

    @property
    def adapters(self) -> int:
        """Address of the step's scales of adapters (`zinc.gpu.step_data`)."""
        ...

    def ref(self, ref: Ref) -> int: ...

    def weight(self, weight: Weight) -> DeviceWeight: ...

    def vector(self, weight: Weight | Constant) -> int:
        """Return the address of a float32 vector."""
        ...

    def kv(self, state: KVState) -> DeviceKV: ...

    def recurrent(self, state: RecurrentState) -> int:
        """Return the address of slot 0. Slot i lies 4 * i * state.floats bytes after it."""
        ...


class ProgramAddresses:
    """Addresses of a program whose memory is allocated.

    `step` is the address of the step data that the next recording reads, and `adapters` that of
    its scales of adapters.
    """

    def __init__(
        self,
        features: Features,
        arena: Buffer,
        step: int,
        weights: Mapping[str, tuple[DeviceWeight | None, Slice]],
        constants: Mapping[Constant, Slice],
        cache: DeviceCache,
        scratch: ScratchAllocator,
        counters: CounterAllocator,
    ) -> None:
        self.features, self.step, self.scratch = features, step, scratch
        self.counters, self.adapters = counters, 0
        self._arena, self._weights, self._constants = arena, weights, constants
        self._cache = cache

    def ref(self, ref: Ref) -> int:
        return self._arena.address + ref.offset

    def weight(self, weight: Weight) -> DeviceWeight:
        found, _ = self._weights[weight.name]
        assert found is not None, f"{weight.name} is a vector"
        return found

    def vector(self, weight: Weight | Constant) -> int:
        if isinstance(weight, Constant):
            return self._constants[weight].address
        return self._weights[weight.name][1].address

    def kv(self, state: KVState) -> DeviceKV:
        return self._cache.layers[state.name]

    def recurrent(self, state: RecurrentState) -> int:
        return self._cache.recurrent[state.name]


class NominalAddresses:
    """Placeholder addresses that need no device. Operands outside the arena share one address.

    Kernels and grids do not depend on addresses, so placeholders suffice to count dispatches and
    to compile kernels before a model is loaded.
    """

    step = NOMINAL_ADDRESS
    adapters = NOMINAL_ADDRESS

    def __init__(self, features: Features, kv_dtype: str, block_tokens: int = 64) -> None:
        self.features, self.scratch = features, ScratchAllocator(_nominal_scratch)
        self.counters = CounterAllocator(_nominal_scratch)
        self._kv_dtype, self._block_tokens = kv_dtype, block_tokens

    def ref(self, ref: Ref) -> int:
        return NOMINAL_ADDRESS + ref.offset

    def weight(self, weight: Weight) -> DeviceWeight:
        return DeviceWeight(NOMINAL_ADDRESS, weight.type, weight.planes, weight.rows, weight.cols)

    def vector(self, weight: Weight | Constant) -> int:
        return NOMINAL_ADDRESS

    def kv(self, state: KVState) -> DeviceKV:
        return DeviceKV(
            NOMINAL_ADDRESS,
            NOMINAL_ADDRESS,
            key_block_bytes(state, self._kv_dtype, self._block_tokens),
            value_block_bytes(state, self._kv_dtype, self._block_tokens),
            self._block_tokens,
            self._kv_dtype,
            0,
        )

    def recurrent(self, state: RecurrentState) -> int:
        return NOMINAL_ADDRESS


def _nominal_scratch(n_bytes: int) -> int:
    """Return an address for a ring of `n_bytes`. A larger ring is at least twice as large."""
    return NOMINAL_ADDRESS + 2 * n_bytes
