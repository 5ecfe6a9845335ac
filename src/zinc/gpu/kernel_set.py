"""Kernel sets: the kernels of a GPU backend, and how launches become dispatches of them.

A lowering is a function from a launch to dispatches, registered under the name of its op. It sees
addresses and sizes only. `zinc.gpu.lower` has the lowerings of the Slang kernels. A backend with
its own kernels replaces some of them and defines the weight layout that its kernels read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from zinc.backends.plans import Launch
from zinc.core.dataclass import dataclass
from zinc.core.errors import UnsupportedError
from zinc.gpu.addresses import Addresses
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch
from zinc.gpu.memory import Bytes
from zinc.gpu.tiling import Tiling
from zinc.ops.node import Node
from zinc.ops.step import StepCondition
from zinc.ops.values import RowFormat
from zinc.quant.blocks import GGMLType

Lowering: TypeAlias = Callable[[Launch, Addresses, Bucket], list[Dispatch]]
LOWERINGS: dict[str, Lowering] = {}
# Condition of a fused op: returns the steps in which a node runs, None if the kernel cannot run it.
FusedCondition: TypeAlias = Callable[[Node], StepCondition | None]
FUSED: dict[str, FusedCondition] = {}
# Returns one dispatch for two, of which the second reads the output of the first; None if no kernel
# does both.
Join: TypeAlias = Callable[[Dispatch, Dispatch], Dispatch | None]
Function = TypeVar("Function", bound=Callable[..., object])


def registering(table: dict[str, Function]) -> Callable[[str], Callable[[Function], Function]]:
    """Return a decorator that puts a function into `table` under the name of an op."""

    def of_op(kernel: str) -> Callable[[Function], Function]:
        def register(function: Function) -> Function:
            table[kernel] = function
            return function

        return register

    return of_op


# A lowering raises NotImplementedError, with the reason, for a launch that no kernel can run.
lowers = registering(LOWERINGS)
fuses = registering(FUSED)


class WeightLayout(Protocol):
    """How matrices lie in device memory for the kernels that read them."""

    def row_format(self, type: GGMLType) -> RowFormat | None:
        """Return the format of rows multiplied with weights of `type`, None if no kernel can."""
        ...

    def packed_bytes(self, type: GGMLType, n_rows: int, cols: int) -> int:
        """Return the bytes of `n_rows` packed rows. The rows of all planes count together."""
        ...

    def pack(
        self,
        type: GGMLType,
        data: Bytes,
        planes: int,
        rows: int,
        cols: int,
        rows_from: npt.NDArray[np.int64] | None = None,
    ) -> Bytes:
        """Return the device's bytes of a matrix [planes, rows, cols] from the bytes of its file.

        With `rows_from`, row i of all planes * rows is row rows_from[i] of the file.
        """
        ...


@dataclass(frozen=True, eq=False)
class KernelSet:
    """The kernels of a backend: lowerings by op, conditions of fused ops, weight layout and limits.

    backend: the backend's name in error messages. max_argument_bytes: limit of the arguments of a
    dispatch. fused: the steps in which a kernel runs a fused op, by op.
    stores_blocks: ops whose kernels can store rows of Q8_32, besides those that every backend has
    (`stores_formats` of the op). tilings: the tiles of each tunable kernel, by name. sources:
    returns a digest of the kernels' code. joins: functions that fuse the last dispatch of a launch
    with the first one of the next launch, by the op of the first launch.
    """

    backend: str
    lowerings: Mapping[str, Lowering]
    weights: WeightLayout
    max_argument_bytes: int
    fused: Mapping[str, FusedCondition]
    tilings: Mapping[str, Tiling]
    sources: Callable[[], str]
    stores_blocks: frozenset[str] = frozenset()
    joins: Mapping[str, Join] = field(default_factory=dict)

    def lower(self, launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
        """Return the dispatches of a launch in a step of `bucket`. Raises UnsupportedError.

        `at.scratch.taken` then lists the scratch memory of this launch.
        """
        at.scratch.taken.clear()
        if not bucket.rows(launch.dim) or not bucket.runs(launch):
            return []
        try:
            dispatches = self.lowerings[launch.kernel](launch, at, bucket)
        except (KeyError, NotImplementedError, ValueError) as error:
            raise self._unsupported(launch, str(error)) from error
        return self._checked(launch, at, dispatches)

    def lower_all(
        self, launches: Iterable[Launch], at: Addresses, bucket: Bucket
    ) -> Iterator[Dispatch]:
        """Yield the dispatches of every launch, joined as in a step."""
        before: Launch | None = None
        waiting: list[Dispatch] = []  # of `before`
        for launch in launches:
            if not (dispatches := self.lower(launch, at, bucket)):
                continue
            joined = self.joined(before, waiting, dispatches) if before else None
            if joined is not None:
                waiting, dispatches = [*waiting[:-1], joined], dispatches[1:]
            yield from waiting
            before, waiting = launch, dispatches
        yield from waiting

    def joined(
        self, launch: Launch, dispatches: Sequence[Dispatch], following: Sequence[Dispatch]
    ) -> Dispatch | None:
        """Return the last of `dispatches` fused with the first of `following`, None if not fused.

        dispatches: those of `launch`. following: those of the launch that runs next.
        """
        join = self.joins.get(launch.kernel)
        if join is None or not dispatches or not following:
            return None
        return join(dispatches[-1], following[0])

    def _checked(self, launch: Launch, at: Addresses, dispatches: list[Dispatch]) -> list[Dispatch]:
        """Return the dispatches that have at least one workgroup. Raises UnsupportedError."""
        for dispatch in dispatches:
            size = dispatch.arguments.layout().end
            assert size <= self.max_argument_bytes, f"{launch.kernel}: {size} bytes of arguments"
            if (groups := max(dispatch.groups)) > at.features.max_groups:
                raise self._unsupported(
                    launch,
                    f"it needs {groups} workgroups in one dimension, and a dispatch has at most "
                    f"{at.features.max_groups}",
                )
        return [d for d in dispatches if min(d.groups) > 0]

    def _unsupported(self, launch: Launch, why: str) -> UnsupportedError:
        return UnsupportedError(
            f"the {self.backend} backend cannot run {launch.label or 'this model'}",
            f"{launch.kernel}: {why}",
            "choose another backend with {backend}",
        )
