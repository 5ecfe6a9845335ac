"""What a launch of the plan becomes on a GPU: shaders, their push constants and their grids.

A lowering is a function from a launch to dispatches, registered under the name of its op. It sees
addresses and sizes only, never a Vulkan handle, so that lowerings are tested without a device and
serve any host that has device addresses. The host records what they return, once for each bucket
of a plan, and decides on barriers from the ranges that launches read and write.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, TypeAlias

from zinc.backends.api import Launch, Plan, Ref
from zinc.gpu.arguments.layout import Struct
from zinc.ops.values import Constant, Dim, KVState, RecurrentState, Weight
from zinc.quant.blocks import GGMLType

MAX_PUSH_BYTES = 128  # what every Vulkan device has
MAX_GROUPS = 65535  # of a dispatch in one direction, likewise
MAX_THREADS, MAX_SHARED_BYTES = 1024, 32768  # of a workgroup: no kernel asks for more unasked
SMALLEST_KEYS = 256  # of a bucket
TILE, NARROW = 16, 8  # sides of tiles that subgroups multiply


@dataclass(frozen=True, slots=True)
class KernelVariant:
    """One pipeline: `kernels/<name>.slang`, entry point `main`, with these macros defined."""

    name: str
    defines: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        return " ".join([f"{self.name}.slang", *(f"-D{k}={v}" for k, v in self.defines)])


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One dispatch of `groups` workgroups of a kernel with these arguments.

    With `waits` it reads what an earlier dispatch of the same launch wrote; without, it may run
    beside it.
    """

    kernel: KernelVariant
    arguments: Struct
    groups: tuple[int, int, int]
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Bucket:
    """Upper bounds of a step, for which grids are made: kernels read the step's own numbers.

    keys: cached positions of the longest sequence after the step. samples: the step samples tokens.
    logits: the host reads the step's output.
    """

    tokens: int
    outputs: int
    sequences: int
    keys: int
    samples: bool = False
    logits: bool = True

    @classmethod
    def of(
        cls,
        plan: Plan,
        *,
        tokens: int,
        outputs: int,
        sequences: int,
        keys: int,
        samples: bool = False,
        logits: bool = True,
    ) -> Bucket:
        """Powers of two that hold a step of the plan."""
        return _bucket(
            min(_bound(tokens), plan.max_tokens),
            min(_bound(outputs), plan.max_outputs),
            min(_bound(sequences), plan.max_tokens),
            max(SMALLEST_KEYS, _bound(keys)),
            samples,
            logits,
        )

    def rows(self, dim: Dim) -> int:
        counts = {Dim.TOKENS: self.tokens, Dim.OUTPUTS: self.outputs, Dim.SEQUENCES: self.sequences}
        return counts.get(dim, 1)


_bucket = lru_cache(maxsize=256)(Bucket)  # each step asks for one


def _bound(n: int) -> int:
    """The smallest power of two that is not below n."""
    return 1 << (n - 1).bit_length() if n > 0 else 0


@dataclass(frozen=True, slots=True)
class DeviceWeight:
    """A resident weight, in the layout of its format's packing (zinc.gpu.packing)."""

    address: int
    type: GGMLType
    planes: int
    rows: int
    cols: int


@dataclass(frozen=True, slots=True)
class DeviceKV:
    """Keys and values of a layer: blocks of so many bytes from these addresses on.

    `table` is the index of the layer's block table among the step's.
    """

    keys: int
    values: int
    key_block_bytes: int
    value_block_bytes: int
    block_tokens: int
    dtype: str
    table: int


@dataclass(frozen=True, slots=True)
class Features:
    """What kernels are chosen by. subgroup: lanes of a subgroup; the others as Vulkan says them.

    cooperative_matrix: subgroups multiply float16 tiles of 16 x 16 into float32 ones;
    narrow_matrix: those of 16 x 16 and 16 x 8 too.

    batch_invariant: each row of an op is to be made by the same pipeline, cut up alike, whatever
    the sizes of the step.
    """

    subgroup: int
    integer_dot: bool = True
    cooperative_matrix: bool = False
    narrow_matrix: bool = False
    shared_bytes: int = 32768
    compute_units: int = 1
    batch_invariant: bool = False


class Addresses(Protocol):
    """Where the operands of a plan are in device memory, all as 64-bit addresses."""

    features: Features

    @property
    def step(self) -> int:
        """The step's data: `struct Step` of kernels/step.slang."""
        ...

    def ref(self, ref: Ref) -> int: ...

    def weight(self, weight: Weight) -> DeviceWeight: ...

    def vector(self, weight: Weight | Constant) -> int:
        """A float32 vector."""
        ...

    def kv(self, state: KVState) -> DeviceKV: ...

    def recurrent(self, state: RecurrentState) -> int:
        """Slot 0; slot i lies 4 * i * state.floats bytes further."""
        ...

    def scratch(self, n_bytes: int) -> int:
        """Memory that is this launch's own from its first dispatch to its last."""
        ...


Lowering: TypeAlias = Callable[[Launch, Addresses, Bucket], list[Dispatch]]
LOWERINGS: dict[str, Lowering] = {}
# Of a launch that does the work of the one before it too; None in a bucket where it does not.
JointLowering: TypeAlias = Callable[[Launch, Launch, Addresses, Bucket], list[Dispatch] | None]
JOINT: dict[tuple[str, str], JointLowering] = {}


def lowers(kernel: str) -> Callable[[Lowering], Lowering]:
    """Registers the decorated lowering for the op of that name."""

    def register(lowering: Lowering) -> Lowering:
        LOWERINGS[kernel] = lowering
        return lowering

    return register


def lowers_both(first: str, second: str) -> Callable[[JointLowering], JointLowering]:
    """Registers the decorated lowering for `second` right behind `first`, whose outputs it alone
    reads."""

    def register(lowering: JointLowering) -> JointLowering:
        JOINT[first, second] = lowering
        return lowering

    return register
