"""The CPU backend: plans become a program that C++ walks with its own threads, without the GIL.

Kernels are compiled once for each SIMD level (native/kernels); the best that the machine runs is
chosen here. Weights are repacked at load into the layout that mat-vec and GEMM both read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from zinc.backends.api import ROUNDING, CacheLayout, Operand, Plan, Ref, TensorData, Work
from zinc.core.errors import DeviceError, MemoryLimitError, UnsupportedError
from zinc.ops.graph import Act, Constant, Dim, FloatArray, KVState, RecurrentState, State, Weight
from zinc.ops.step import Step
from zinc.quant.blocks import GGMLType
from zinc.quant.codebooks import flat_digits
from zinc.quant.decode import decode

try:
    from zinc.backends.cpu import _cpu
except ImportError as error:  # pragma: no cover - a source tree that was not built
    raise DeviceError(
        "the CPU backend is not built",
        str(error),
        "install the package with 'pip install .', or run 'make dev' in a checkout",
    ) from error


class CpuCache:
    """Keys and values of every layer in the blocks the layout asks for, and recurrent states."""

    def __init__(self, states: tuple[State, ...], layout: CacheLayout) -> None:
        self.layout = layout
        self.layers: dict[str, Any] = {}
        self._groups: list[list[Any]] = [[] for _ in layout.n_blocks]
        self.recurrent: dict[str, Any] = {}
        for s in states:
            if isinstance(s, RecurrentState):
                self.recurrent[s.name] = _cpu.StateLayer(layout.state_slots, max(1, s.floats))
                continue
            group = layout.group_of.get(s.name, 0)
            self.layers[s.name] = _cpu.KVLayer(
                group,
                layout.n_blocks[group],
                layout.block_tokens,
                s.n_heads,
                s.head_dim,
                s.head_dim_v,
                layout.kv_dtype,
                s.v_from_k,
            )
            self._groups[group].append(self.layers[s.name])
        everything = (*self.layers.values(), *self.recurrent.values())
        self.n_bytes: int = sum(layer.n_bytes for layer in everything)

    def copy_block(self, group: int, source: int, target: int) -> None:
        for layer in self._groups[group]:
            layer.copy_block(source, target)

    def copy_state(self, source: int, target: int) -> None:
        for layer in self.recurrent.values():
            slots = layer.view()
            slots[target] = slots[source]

    def block_views(self, group: int, block: int) -> list[npt.NDArray[np.uint8]]:
        return [
            layer.view(values)[block] for layer in self._groups[group] for values in (False, True)
        ]

    def put_block(self, group: int, block: int, views: list[npt.NDArray[np.uint8]]) -> None:
        pass  # the views are the block

    def state_views(self, slot: int) -> list[npt.NDArray[np.uint8]]:
        return [layer.view()[slot].view(np.uint8) for layer in self.recurrent.values()]

    def put_state(self, slot: int, views: list[npt.NDArray[np.uint8]]) -> None:
        pass


class CpuProgram:
    def __init__(self, plan: Plan, backend: CpuBackend, cache: CpuCache) -> None:
        self.plan, self._cache, self._backend = plan, cache, backend
        self.work = Work()
        self._constants: dict[str, Any] = {}
        self._program = _cpu.Program(backend.pool, backend.level, plan.arena_bytes)
        for launch in plan.launches:
            try:
                self._program.add(
                    launch.kernel,
                    str(launch.dim),
                    1,
                    [self._operand(x) for x in launch.inputs],
                    [self._operand(x) for x in launch.outputs],
                    {name: float(value) for name, value in launch.attrs},
                )
            except ValueError as error:
                raise UnsupportedError(
                    f"the CPU backend cannot run {launch.label or 'this model'}",
                    str(error),
                    "choose another backend with {backend}",
                ) from error

    def step(self, step: Step) -> FloatArray:
        arguments = self._arguments(step)
        started = perf_counter()
        self._program.step(*arguments)
        self.work.waited_s += perf_counter() - started
        self.work.submissions += 1
        out = self.plan.output
        if not len(step.output_rows):  # a chunk in the middle of a prompt
            return np.empty((0, out.cols), np.float32)
        return self._program.view(out.offset, len(step.output_rows), out.cols, out.stride)

    def run(self, step: Step, first: int, last: int) -> None:
        self._program.run(first, last, *self._arguments(step))

    def read(self, ref: Ref, rows: int) -> FloatArray:
        runs = 1 if ref.act is Act.F32 else ref.runs
        cols = ref.cols // runs
        size = self._backend.row_bytes(ref.act, cols)
        parts = [
            self._program.read(str(ref.act), ref.offset + i * size, rows, cols, ref.stride)
            for i in range(runs)
        ]
        return np.concatenate(parts, axis=1)

    def write(self, ref: Ref, rows: FloatArray) -> None:
        view = self._program.view(ref.offset, len(rows), ref.cols, ref.stride)
        view[...] = rows

    def kernels(self, step: Step, launch: int) -> list[str]:
        return [f"{self.plan.launches[launch].kernel} ({self._backend.level})"]

    def profile(self, step: Step) -> list[float]:
        self._program.set_profile(True)
        try:
            self._program.step(*self._arguments(step))
            return [ns * 1e-9 for ns in self._program.times_ns()]
        finally:
            self._program.set_profile(False)

    def _arguments(self, step: Step) -> tuple[Any, ...]:
        if step.n_tokens > self.plan.max_tokens or len(step.output_rows) > self.plan.max_outputs:
            raise ValueError(
                f"a step of {step.n_tokens} tokens and {len(step.output_rows)} outputs exceeds "
                f"the plan's {self.plan.max_tokens} and {self.plan.max_outputs}"
            )
        return (
            step.ids,
            step.positions,
            step.sequence,
            step.output_rows,
            step.seq_start,
            step.state_slot,
            list(step.tables),
        )

    def _operand(self, x: Operand) -> Any:
        match x:
            case Ref():
                stride = 0 if x.dim is Dim.CONSTANT else x.stride  # one row for all
                return (str(x.act), x.cols, x.offset, stride)
            case Weight():
                return self._backend.weights[x.name]
            case Constant():
                if x.name not in self._constants:
                    self._constants[x.name] = _cpu.pack_vector(np.array(x.values, np.float32))
                return self._constants[x.name]
            case KVState():
                return self._cache.layers[x.name]
            case RecurrentState():
                return self._cache.recurrent[x.name]
            case _:
                return None


class CpuKernels:
    """The kernels of one SIMD level, by default the best that this machine runs."""

    name = "cpu"

    def __init__(self, level: str | None = None) -> None:
        levels = _cpu.levels()
        if level is not None and level not in levels:
            raise DeviceError(
                f"the CPU backend has no level {level!r} on this machine",
                "",
                f"choose one of {', '.join(levels)}",
            )
        self.level = level or levels[0]
        self._kernels = frozenset(_cpu.kernels(self.level))

    def activation(self, type: GGMLType) -> Act:
        if not _cpu.packable(self.level, int(type)):
            raise UnsupportedError(
                f"the CPU backend cannot run weights of type {type.name}",
                f"level {self.level} has no kernel for them",
                "use a file in another quantisation, or {backend=ref}",
            )
        return Act(_cpu.activation(self.level, int(type)))

    def supports(self, kernel: str) -> bool:
        return kernel in self._kernels

    def stores(self, kernel: str, act: Act) -> bool:
        return kernel in ROUNDING and (act is not Act.BF16 or kernel == "moe_glu")

    def row_bytes(self, act: Act, cols: int) -> int:
        return int(_cpu.row_bytes(str(act), cols))


class CpuBackend(CpuKernels):
    batch_invariant = True  # native/kernel.h: sums are added up in an order of their own

    def __init__(self, threads: int | None = None, level: str | None = None) -> None:
        super().__init__(level)
        self.threads = threads or available_cores()
        self.pool = _cpu.Pool(self.threads)
        self.weights: dict[str, Any] = {}

    def describe(self) -> str:
        return f"cpu: {self.level}, {self.threads} threads"

    def counts(self, plan: Plan, kv_dtype: str, **rows: int) -> None:
        return None

    def upload(self, weight: Weight, data: TensorData) -> None:
        try:
            if weight.is_vector:
                vector = decode(data.data, data.type, data.shape)
                self.weights[weight.name] = _cpu.pack_vector(vector)
                return
            rows_from = None
            if weight.rows_from is not None:
                planes = np.arange(weight.planes, dtype=np.int64) * weight.shape[-2]
                rows_from = np.add.outer(planes, np.array(weight.rows_from, np.int64)).reshape(-1)
            self.weights[weight.name] = _cpu.pack(
                self.pool,
                self.level,
                int(data.type),
                data.data,
                weight.planes,
                weight.rows,
                weight.cols,
                rows_from,
                flat_digits(data.type),
            )
        except MemoryError as error:
            raise MemoryLimitError(
                f"cannot load the tensor {weight.name}",
                "there is not enough memory for it",
                "use a smaller model or quantisation",
            ) from error

    @property
    def weight_bytes(self) -> int:
        return sum(tensor.n_bytes for tensor in self.weights.values())

    def available_bytes(self) -> int | None:
        return None

    def allocate(self, states: tuple[State, ...], layout: CacheLayout) -> CpuCache:
        try:
            return CpuCache(states, layout)
        except MemoryError as error:
            raise MemoryLimitError(
                "cannot allocate the cache",
                f"{sum(layout.n_blocks) * layout.block_tokens:,} positions do not fit in memory",
                "choose a smaller {context} or {kv_dtype}",
            ) from error

    def prepare(self, plan: Plan, cache: Any) -> CpuProgram:
        return CpuProgram(plan, self, cache)


def available_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def create(threads: int | None = None, options: Mapping[str, str] | None = None) -> CpuBackend:
    options = options or {}
    return CpuBackend(threads, options.get("level"))


def kernels(options: Mapping[str, str] | None = None) -> CpuKernels:
    return CpuKernels((options or {}).get("level"))
