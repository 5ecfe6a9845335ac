"""The CPU backend: a plan becomes a program of the native extension, which runs without the GIL.

Kernels are compiled once for each SIMD level (native/kernels), and the best level that the machine
runs is chosen here. At load, weights are repacked into the layout that GEMV and GEMM read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from zinc.backends.api import (
    CacheLayout,
    HostBackend,
    SplitDevices,
    StepResult,
    TensorData,
    Work,
)
from zinc.backends.capabilities import BackendKind, Capabilities, DeviceInfo, Roofline
from zinc.backends.plans import Operand, Plan, Ref
from zinc.core.errors import DeviceError, MemoryLimitError, RequestError, UnsupportedError
from zinc.ops.node import Node
from zinc.ops.registry import OPS
from zinc.ops.step import Step, StepCondition
from zinc.ops.values import (
    Constant,
    Dim,
    FloatArray,
    KVState,
    RecurrentState,
    RowFormat,
    State,
    Weight,
)
from zinc.quant.blocks import GGMLType, row_bytes
from zinc.quant.codebooks import flat_digits
from zinc.quant.decode import decode

TILE_ROWS = 16  # native/kernel.h
# Bytes of a tensor that are in memory, next to its packed form, while it is loaded.
CHUNK_BYTES = 2 << 20
MAX_THREADS = 1024  # of a pool, native/module.cpp

try:
    from zinc.backends.cpu import _cpu
except ImportError as error:  # pragma: no cover - a source tree that was not built
    raise DeviceError(
        "the CPU backend is not built",
        str(error),
        "run 'pip install .' in a checkout, or: pip install --force-reinstall zinc-llm",
    ) from error


class CpuCache:
    """The KV cache and the recurrent states of every layer, in native memory."""

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
        pass  # views share the memory of the block

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

    def sample(self, step: Step) -> StepResult:
        raise NotImplementedError("the CPU backend has no kernel for sampling")

    def run(self, step: Step, first: int, last: int) -> None:
        self._program.run(first, last, *self._arguments(step))

    def read(self, ref: Ref, rows: int) -> FloatArray:
        runs = 1 if ref.format is RowFormat.F32 else ref.runs
        cols = ref.cols // runs
        size = self._backend.row_bytes(ref.format, cols)
        parts = [
            self._program.read(str(ref.format), ref.offset + i * size, rows, cols, ref.stride)
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
            step.adapters,
        )

    def _operand(self, x: Operand) -> Any:
        match x:
            case Ref():
                stride = 0 if x.dim is Dim.CONSTANT else x.stride  # a single row
                return (str(x.format), x.cols, x.offset, stride)
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


# A buffer far larger than any last-level cache, so that its reads come from memory.
BANDWIDTH_BYTES = 1 << 29
MEASUREMENTS = 5


class CpuKernels:
    """The kernels of one SIMD level, by default the best that this machine runs."""

    name = "cpu"
    split: SplitDevices | None = None

    def __init__(self, level: str | None = None, threads: int | None = None) -> None:
        levels = tuple(_cpu.levels())
        if not levels:
            raise DeviceError(
                "the CPU backend has no kernels for this processor",
                f"it was built for {' and '.join(_cpu.built_levels())} only",
                "run 'pip install --force-reinstall zinc-llm' for a build with all levels",
            )
        if level is not None and level not in levels:
            raise DeviceError(
                f"the CPU backend has no level {level!r} on this machine",
                "",
                f"choose one of {', '.join(levels)}",
            )
        self.level = level or levels[0]
        self.capabilities = Capabilities(
            BackendKind.CPU,
            kv_dtype="q8_0",
            batch_invariant=True,  # native/kernel.h: every sum has a fixed order
            rollback=True,
            host_rows=True,
            level=self.level,
            levels=levels,
            threads=threads,
            cores=available_cores(),
        )
        self._kernels = frozenset(_cpu.kernels(self.level))

    def row_format(self, type: GGMLType) -> RowFormat:
        if not _cpu.packable(self.level, type.name):
            raise UnsupportedError(
                f"the CPU backend cannot run weights of type {type.name}",
                f"level {self.level} has no kernel for them",
                "use a file in another quantisation, or {backend=ref}",
            )
        return RowFormat(_cpu.row_format(self.level, type.name))

    def supports(self, kernel: str) -> bool:
        return kernel in self._kernels

    def stores(self, kernel: str, format: RowFormat) -> bool:
        return OPS[kernel].stores_formats and (format is not RowFormat.BF16 or kernel == "moe_glu")

    def row_bytes(self, format: RowFormat, cols: int) -> int:
        return int(_cpu.row_bytes(str(format), cols))

    def runs_fused(self, node: Node) -> StepCondition | None:
        return None


class CpuBackend(CpuKernels, HostBackend):
    """The CPU as a device.

    threads: 1 to 1024, by default one for each core that this process may use. Raises RequestError
    for another number.
    """

    def __init__(self, threads: int | None = None, level: str | None = None) -> None:
        if threads is not None and not 1 <= threads <= MAX_THREADS:
            raise RequestError(
                f"{threads} CPU threads are not possible",
                f"there can be 1 to {MAX_THREADS}",
                "choose {threads} in that range, or leave it out for one thread per core",
            )
        self.threads = min(available_cores(), MAX_THREADS) if threads is None else threads
        super().__init__(level, self.threads)
        self.pool = _cpu.Pool(self.threads)
        self.weights: dict[str, Any] = {}

    def describe(self) -> str:
        return f"cpu: {self.level}, {self.threads} threads"

    def measure(self) -> Roofline:
        return Roofline(
            bytes_per_s=_cpu.bandwidth(self.pool, BANDWIDTH_BYTES, MEASUREMENTS) * 1e9,
            int8_ops_per_s=_cpu.int8_peak(self.pool, self.level) * 1e9,
        )

    def upload(self, weight: Weight, data: TensorData) -> None:
        try:
            if weight.is_vector:
                vector = decode(data.read(), data.type, data.shape)
                self.weights[weight.name] = _cpu.pack_vector(vector)
            elif weight.rows_from is None or _is_run(weight.rows_from):
                self.weights[weight.name] = self._pack_chunks(weight, data)
            else:
                self.weights[weight.name] = self._pack_whole(weight, data, weight.rows_from)
        except MemoryError as error:
            raise MemoryLimitError(
                f"cannot load the tensor {weight.name}",
                "there is not enough memory for it",
                "use a smaller model or quantisation",
            ) from error

    def _pack_chunks(self, weight: Weight, data: TensorData) -> Any:
        """Pack consecutive rows while they are read, to keep little of the source in memory."""
        tensor = _cpu.allocate(self.level, data.type.name, weight.planes, weight.rows, weight.cols)
        codebook = flat_digits(data.type)
        size = row_bytes(data.type, weight.cols)
        chunks = list(_row_chunks(weight, max(TILE_ROWS, CHUNK_BYTES // size)))
        scratch = np.empty(max(n_rows for _, n_rows in chunks) * size, np.uint8)
        tile = 0
        for first, n_rows in chunks:
            part = data.read_part(first * size, n_rows * size, scratch)
            tile = _cpu.pack_tiles(self.pool, tensor, tile, part, codebook)
        return tensor

    def _pack_whole(self, weight: Weight, data: TensorData, rows: Sequence[int]) -> Any:
        """Pack the given rows of each plane."""
        planes = np.arange(weight.planes, dtype=np.int64) * weight.shape[-2]
        return _cpu.pack(
            self.pool,
            self.level,
            data.type.name,
            data.read(),
            weight.planes,
            weight.rows,
            weight.cols,
            np.add.outer(planes, np.array(rows, np.int64)).reshape(-1),
            flat_digits(data.type),
        )

    @property
    def weight_bytes(self) -> int:
        return sum(tensor.n_bytes for tensor in self.weights.values())

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


def _is_run(rows: Sequence[int]) -> bool:
    """Return whether the rows are consecutive in the file."""
    return isinstance(rows, range) and rows.step == 1


def _row_chunks(weight: Weight, most_rows: int) -> Iterator[tuple[int, int]]:
    """Yield the first row in the file and the count of rows of each chunk of a matrix.

    A chunk has about `most_rows` rows: several whole planes, or a part of a plane that ends at a
    tile boundary.
    """
    stored, rows = weight.shape[-2], weight.rows
    if rows == stored and rows <= most_rows:
        step = most_rows // rows * rows
        total = weight.planes * rows
        yield from ((first, min(step, total - first)) for first in range(0, total, step))
        return
    step = most_rows // TILE_ROWS * TILE_ROWS
    offset = weight.rows_from[0] if weight.rows_from else 0
    for plane in range(weight.planes):
        for first in range(0, rows, step):
            yield plane * stored + offset + first, min(step, rows - first)


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def create(threads: int | None = None, options: Mapping[str, str] | None = None) -> CpuBackend:
    options = options or {}
    return CpuBackend(threads, options.get("level"))


def kernels(options: Mapping[str, str] | None = None) -> CpuKernels:
    return CpuKernels((options or {}).get("level"))


def devices() -> list[DeviceInfo]:
    return []
