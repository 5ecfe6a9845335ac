"""Weights of a launch in device memory: random, and with enough copies to exceed any cache."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeGuard

import numpy as np

from zinc.backends.plans import Launch, Operand
from zinc.core.rounding import ceil_div
from zinc.gpu.addresses import DeviceWeight
from zinc.gpu.host import Host
from zinc.gpu.kernel_set import KernelSet
from zinc.gpu.memory import Pool, Slice
from zinc.gpu.tune.operands import distinct_rows, follows_rows, random_matrix, repeated
from zinc.ops.operands import Kind
from zinc.ops.registry import OPS
from zinc.ops.values import Constant, FloatArray, Weight

ROTATE_BYTES = 300 << 20  # least bytes read between two reads of the same copy
MAX_COPIES = 128


class LaunchWeights:
    """The weights of `launch` on a device.

    addresses: of the copies of each matrix, and of each vector, under the names that `inputs` gives
    them. values: what the reference reads of each operand, None for rows. n_bytes: of one copy.
    """

    def __init__(self, kernels: KernelSet, host: Host, launch: Launch) -> None:
        self.launch, self._kernels, self._host = launch, kernels, host
        self._rng, self._pool = np.random.default_rng(5), Pool(host)
        self.addresses: dict[str, tuple[DeviceWeight | None, Slice]] = {}
        self.values: list[FloatArray | None] = [None] * len(launch.inputs)
        matrices = {i: x for i, x in enumerate(launch.inputs) if _is_matrix(x)}
        sizes = [self._packed_bytes(x) for x in matrices.values()]
        self.n_bytes = sum(sizes)
        room = max(1, host.available_bytes() // 2 // self.n_bytes)
        self.n_copies = min(room, MAX_COPIES, ceil_div(ROTATE_BYTES, self.n_bytes))
        self._pool.expect(sizes * self.n_copies)
        for i, matrix in matrices.items():
            self._add_matrix(i, matrix)
        for i, (operand, x) in enumerate(OPS[launch.kernel].signature.declared(launch.inputs)):
            if operand.kind is Kind.VECTOR and isinstance(x, Weight | Constant):
                self._add_vector(i, x, follows_rows(operand))

    def inputs(self, variant: int) -> tuple[Operand, ...]:
        """Return the inputs of the launch, which name copy number `variant` modulo the copies."""
        copy = variant % self.n_copies
        return tuple(
            replace(x, name=f"{i}.{copy}" if _is_matrix(x) else f"{i}")
            if isinstance(x, Weight)
            else x
            for i, x in enumerate(self.launch.inputs)
        )

    def rows(self, part: int) -> tuple[int, int]:
        """Return the weight rows of a part of the launch, and how many of them are distinct."""
        signature = OPS[self.launch.kernel].signature
        first = signature.n_single + part * signature.n_repeated if signature.n_repeated else 0
        weight = next(x for x in self.launch.inputs[first:] if _is_matrix(x))
        return weight.rows, distinct_rows(self.launch, weight)

    def rows_of_operand(self, i: int) -> tuple[int, int]:
        """Return `rows` of the part to which operand number `i` belongs."""
        signature = OPS[self.launch.kernel].signature
        return self.rows(max(0, i - signature.n_single) // max(1, signature.n_repeated))

    def _packed_bytes(self, weight: Weight) -> int:
        n_rows = weight.planes * weight.rows
        return self._kernels.weights.packed_bytes(weight.type, n_rows, weight.cols)

    def _add_matrix(self, i: int, weight: Weight) -> None:
        planes, rows, cols = weight.planes, weight.rows, weight.cols
        made = random_matrix(self._rng, weight, distinct_rows(self.launch, weight))
        packed = self._kernels.weights.pack(
            weight.type, made.blocks, planes, rows, cols, made.rows_from
        )
        first = self._pool.take(len(packed))
        self._host.write(first.buffer, first.offset, packed)
        for copy in range(self.n_copies):
            place = first if copy == 0 else self._pool.take(len(packed))
            if copy > 0:
                self._host.copy(first.buffer, first.offset, place.buffer, place.offset, place.size)
            resident = DeviceWeight(place.address, weight.type, planes, rows, cols)
            self.addresses[f"{i}.{copy}"] = resident, place
        self.values[i] = made.values

    def _add_vector(self, i: int, vector: Weight | Constant, follows: bool) -> None:
        rows, distinct = self.rows_of_operand(i)
        if follows:
            n = vector.cols * distinct // rows
            values = self._rng.standard_normal(n).astype(np.float32)
            given = repeated(values, rows, distinct)
        else:  # signs: a norm leaves its rows exact in 8 bits
            values = given = self._rng.choice(np.array([-1, 1], np.float32), vector.cols)
        place = self._pool.take(given.nbytes)
        self._host.write(place.buffer, place.offset, given.view(np.uint8))
        self.addresses[f"{i}"] = None, place
        self.values[i] = values


def _is_matrix(x: Operand) -> TypeGuard[Weight]:
    return isinstance(x, Weight) and not x.is_vector
