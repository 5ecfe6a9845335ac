"""The reference backend: runs any plan in numpy float32, with the references of the op registry.

Weights are decoded to float32 and activations stay float32, whatever format the plan asks for.
Addresses are ignored: a value is looked up by its id. It is slow, and the oracle of tests.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from zinc.backends.api import CacheLayout, FinishedStep, HostBackend, TensorData, Work
from zinc.backends.capabilities import BackendKind, Capabilities, DeviceInfo
from zinc.backends.plans import Operand, Plan, Ref
from zinc.ops.attention import CacheView
from zinc.ops.recurrent_state import StateView
from zinc.ops.registry import OPS
from zinc.ops.step import Step
from zinc.ops.values import Constant, FloatArray, KVState, RecurrentState, RowFormat, State, Weight
from zinc.quant.blocks import GGMLType
from zinc.quant.decode import decode


class RefCache:
    """The KV cache and the recurrent states of every layer, as float32 arrays."""

    def __init__(self, states: tuple[State, ...], layout: CacheLayout) -> None:
        self.layout = layout
        self.layers: dict[str, CacheView] = {}
        self.recurrent: dict[str, StateView] = {}
        self.n_bytes = 0
        for s in states:
            if isinstance(s, RecurrentState):
                view = StateView(np.zeros((layout.state_slots, s.floats), np.float32))
                self.recurrent[s.name] = view
                self.n_bytes += view.slots.nbytes
                continue
            group = layout.group_of.get(s.name, 0)
            shape = (layout.n_blocks[group], layout.block_tokens, s.n_heads)
            k = np.zeros((*shape, s.head_dim), np.float32)
            if s.v_from_k:
                v = k[..., s.head_dim - s.head_dim_v :]
                self.n_bytes += k.nbytes
            else:
                v = np.zeros((*shape, s.head_dim_v), np.float32)
                self.n_bytes += k.nbytes + v.nbytes
            self.layers[s.name] = CacheView(group, k, v)

    def copy_block(self, group: int, source: int, target: int) -> None:
        for view in self.layers.values():
            if view.group == group:
                view.k[target] = view.k[source]
                view.v[target] = view.v[source]

    def copy_state(self, source: int, target: int) -> None:
        for state in self.recurrent.values():
            state.slots[target] = state.slots[source]

    def block_views(self, group: int, block: int) -> list[npt.NDArray[np.uint8]]:
        views = []
        for layer in self.layers.values():
            if layer.group == group:
                views.append(layer.k[block].reshape(-1).view(np.uint8))
                if layer.v.base is not layer.k:  # otherwise values are part of the keys
                    views.append(layer.v[block].reshape(-1).view(np.uint8))
        return views

    def put_block(self, group: int, block: int, views: list[npt.NDArray[np.uint8]]) -> None:
        pass  # views share the memory of the block

    def state_views(self, slot: int) -> list[npt.NDArray[np.uint8]]:
        return [state.slots[slot].view(np.uint8) for state in self.recurrent.values()]

    def put_state(self, slot: int, views: list[npt.NDArray[np.uint8]]) -> None:
        pass


class RefProgram:
    def __init__(self, plan: Plan, weights: Mapping[str, FloatArray], cache: RefCache) -> None:
        self.plan, self._weights, self._cache = plan, weights, cache
        self._values: dict[int, FloatArray] = {}
        self.work = Work()
        self._sampled = np.empty(0, np.int32)

    def step(self, step: Step) -> FloatArray:
        given = self.plan.given
        self._values = {id: x for id, x in self._values.items() if given and id == given.id}
        self.run(step, 0, len(self.plan.launches))
        return self._values[self.plan.output.id]

    def sample(self, step: Step) -> FinishedStep:
        assert self.plan.sampled is not None
        logits = self.step(step.with_ids(self._sampled))
        rows = self._values[self.plan.sampled.id]
        self._sampled = rows[:, 0].astype(np.int32)
        return FinishedStep(rows, logits)

    def run(self, step: Step, first: int, last: int) -> None:
        for launch in self.plan.launches[first:last]:
            if not launch.runs_in(step):
                continue
            outputs: Sequence[FloatArray]
            if step.rows(launch.dim):
                inputs = [self._operand(x) for x in launch.inputs]
                outputs = OPS[launch.kernel].run(step, inputs, launch.attributes)
            else:  # what it reads need not be there: other devices send no rows
                outputs = [np.zeros((step.rows(x.dim), x.cols), np.float32) for x in launch.outputs]
            for ref, array in zip(launch.outputs, outputs, strict=True):
                self._values[ref.id] = array

    def read(self, ref: Ref, rows: int) -> FloatArray:
        return self._values[ref.id][:rows].copy()

    def write(self, ref: Ref, rows: FloatArray) -> None:
        self._values[ref.id] = rows.copy()

    def kernels(self, step: Step, launch: int) -> list[str]:
        return [self.plan.launches[launch].kernel]

    def profile(self, step: Step) -> list[float]:
        seconds = []
        for i in range(len(self.plan.launches)):
            start = time.perf_counter()
            self.run(step, i, i + 1)
            seconds.append(time.perf_counter() - start)
        return seconds

    def _operand(self, x: Operand) -> Any:
        match x:
            case Ref():
                return self._values[x.id][:, x.first : x.first + x.cols]
            case Weight():
                return self._weights[x.name]
            case Constant():
                return np.array(x.values, np.float32)
            case KVState():
                return self._cache.layers[x.name]
            case RecurrentState():
                return self._cache.recurrent[x.name]
            case _:
                return None


class RefBackend(HostBackend):
    name = "ref"
    # numpy splits matrix products by their sizes, so it is not batch-invariant.
    capabilities = Capabilities(BackendKind.REFERENCE, rollback=True, host_rows=True)

    def __init__(self) -> None:
        self._weights: dict[str, FloatArray] = {}

    def describe(self) -> str:
        return "ref: numpy float32, the reference"

    def row_format(self, type: GGMLType) -> RowFormat:
        return RowFormat.F32

    def supports(self, kernel: str) -> bool:
        return kernel in OPS

    def stores(self, kernel: str, format: RowFormat) -> bool:
        return True  # every value is float32 here, whatever the plan asks for

    def row_bytes(self, format: RowFormat, cols: int) -> int:
        return 4 * cols

    def upload(self, weight: Weight, data: TensorData) -> None:
        array = decode(data.read(), data.type, data.shape)
        if weight.rows_from is not None and not weight.is_vector:
            array = np.take(array, weight.rows_from, axis=-2)
        self._weights[weight.name] = array

    @property
    def weight_bytes(self) -> int:
        return sum(array.nbytes for array in self._weights.values())

    def allocate(self, states: tuple[State, ...], layout: CacheLayout) -> RefCache:
        return RefCache(states, layout)

    def prepare(self, plan: Plan, cache: Any) -> RefProgram:
        return RefProgram(plan, self._weights, cache)


def create(threads: int | None = None, options: Mapping[str, str] | None = None) -> RefBackend:
    return RefBackend()


def kernels(options: Mapping[str, str] | None = None) -> RefBackend:
    return RefBackend()


def devices() -> list[DeviceInfo]:
    return []
