"""The part of a backend that any GPU shares: weights, caches and programs over a `Host`."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from zinc.backends.api import CacheLayout, SplitDevices, StepCounts, TensorData
from zinc.backends.capabilities import BackendKind, Capabilities
from zinc.backends.plans import Plan
from zinc.backends.tuning import TuneReport
from zinc.core.errors import UnsupportedError
from zinc.core.marks import Mark
from zinc.core.progress import ProgressBar
from zinc.gpu import ahead
from zinc.gpu.addresses import DeviceWeight, NominalAddresses
from zinc.gpu.bucket import Bucket
from zinc.gpu.cache import GpuCache
from zinc.gpu.dispatch import KernelVariant
from zinc.gpu.graph import dispatch_graph
from zinc.gpu.hazards import dependencies
from zinc.gpu.host import Host
from zinc.gpu.kernel_set import KernelSet
from zinc.gpu.memory import Pool, Slice
from zinc.gpu.program import GpuProgram
from zinc.gpu.rows import row_bytes
from zinc.gpu.tile_table import Origin, table_path, tuned_tiles
from zinc.gpu.tuned import NO_TILES, TunedTiles
from zinc.ops.node import Node
from zinc.ops.registry import OPS
from zinc.ops.step import Step, StepCondition
from zinc.ops.values import RowFormat, State, Weight
from zinc.quant.blocks import GGMLType
from zinc.quant.decode import decode


class GpuKernels:
    """A `zinc.backends.api.Kernels` for the kernel set that a subclass names."""

    name: str
    kernel_set: KernelSet
    capabilities = Capabilities(BackendKind.DEVICE)
    split: SplitDevices | None = None

    def row_format(self, type: GGMLType) -> RowFormat:
        found = self.kernel_set.weights.row_format(type)
        if found is None:
            raise UnsupportedError(
                f"the {self.kernel_set.backend} backend cannot run weights of type {type.name}",
                "it has no kernel that decodes them",
                "use a file in another quantisation, or {backend=cpu}",
            )
        return found

    def supports(self, kernel: str) -> bool:
        return kernel in self.kernel_set.lowerings

    def stores(self, kernel: str, format: RowFormat) -> bool:
        able = OPS[kernel].stores_formats or kernel in self.kernel_set.stores_blocks
        return format is RowFormat.Q8_32 and able

    def row_bytes(self, format: RowFormat, cols: int) -> int:
        return row_bytes(format, cols)

    def runs_fused(self, node: Node) -> StepCondition | None:
        condition = self.kernel_set.fused.get(node.op)
        if condition is None or self.capabilities.batch_invariant:
            return None
        return condition(node)


class GpuBackend(GpuKernels):
    """A `zinc.backends.api.Backend` on a `Host`.

    compiled_folder: name of the cache folder of compiled kernels. If it is not empty, `prepare`
    compiles the kernels of all step sizes, so that no request waits for a compiler.
    """

    compiled_folder = ""

    def __init__(self, host: Host, batch_invariant: bool = False) -> None:
        self.host = host
        self.capabilities = replace(self.capabilities, batch_invariant=batch_invariant)
        # Batch-invariant mode uses one tile for steps of all sizes; `zinc tune` does not time it.
        tuned = NO_TILES if batch_invariant else self._tuned_tiles()
        self.features = replace(host.features, batch_invariant=batch_invariant, tuned=tuned)
        self._pool, self._lock = Pool(host), threading.Lock()
        self.weights: dict[str, tuple[DeviceWeight | None, Slice]] = {}

    def describe(self) -> str:
        mode = ", batch invariant" if self.capabilities.batch_invariant else ""
        tuned = ", tuned tiles" if self.n_tuned else ""
        return f"{self.host.describe()}{mode}{tuned}"

    def identity(self) -> str:
        return repr(self.origin)

    @property
    def n_tuned(self) -> int:
        return len(self.features.tuned)

    @property
    def origin(self) -> Origin:
        """Device, driver and code of the kernels, on which the speed of a tile depends."""
        return Origin(self.name, self._device, self.host.driver, self.kernel_set.sources())

    @property
    def _device(self) -> str:
        """The device in a table of tiles."""
        return f"{self.host.device_name}, {self.host.features.compute_units} compute units"

    def _tuned_tiles(self) -> TunedTiles:
        path = table_path(self.name, self._device)
        tilings = self.kernel_set.tilings
        return tuned_tiles(path, lambda: self.origin, self.host.features, tilings)

    def counts(
        self, plan: Plan, kv_dtype: str, *, tokens: int, outputs: int, sequences: int, keys: int
    ) -> StepCounts:
        exact = Bucket(tokens, outputs, sequences, keys, is_decode=tokens == sequences)
        bucket = exact.rounded(plan.max_tokens, plan.max_outputs)
        at = NominalAddresses(self.features, kv_dtype)
        graph = dispatch_graph(self.kernel_set, plan, dependencies(plan, bucket), at, bucket)
        return StepCounts(len(graph.nodes), len(graph.levels()) - 1)

    def expect(self, weights: Iterable[Weight]) -> None:
        self._pool.expect(self._packed_bytes(weight) for weight in weights)

    def upload(self, weight: Weight, data: TensorData) -> None:
        place = self._take(self._packed_bytes(weight))
        if weight.is_vector:
            vector = decode(data.read(), data.type, data.shape)
            self.host.write(place.buffer, place.offset, vector.view(np.uint8).reshape(-1))
            self.weights[weight.name] = None, place
            return
        rows_from = None
        if weight.rows_from is not None:
            planes = np.arange(weight.planes, dtype=np.int64) * weight.shape[-2]
            rows_from = np.add.outer(planes, np.array(weight.rows_from, np.int64)).reshape(-1)
        self._write_matrix(weight, data, rows_from, place)
        resident = DeviceWeight(place.address, data.type, weight.planes, weight.rows, weight.cols)
        self.weights[weight.name] = resident, place

    def _write_matrix(
        self,
        weight: Weight,
        data: TensorData,
        rows_from: npt.NDArray[np.int64] | None,
        place: Slice,
    ) -> None:
        """Pack a matrix into `place`. `rows_from`: as for `WeightLayout.pack`."""
        packed = self.kernel_set.weights.pack(
            data.type, data.read(), weight.planes, weight.rows, weight.cols, rows_from
        )
        self.host.write(place.buffer, place.offset, packed)

    def _take(self, n_bytes: int) -> Slice:
        """Return device memory for a weight. It is thread-safe. Raises MemoryLimitError."""
        with self._lock:
            return self._pool.take(n_bytes)

    def _packed_bytes(self, weight: Weight) -> int:
        """Return the bytes that `upload` takes for a weight."""
        if weight.is_vector:
            return 4 * math.prod(weight.shape)
        n_rows = weight.planes * weight.rows
        return self.kernel_set.weights.packed_bytes(weight.type, n_rows, weight.cols)

    @property
    def weight_bytes(self) -> int:
        return self._pool.n_bytes

    def available_bytes(self) -> int | None:
        return self.host.available_bytes()

    def shared_bytes(self) -> int | None:
        return self.host.shared_bytes()

    def allocate(self, states: tuple[State, ...], layout: CacheLayout) -> GpuCache:
        return GpuCache(states, layout, self.host)

    def compile(self, steps: Iterable[tuple[Plan, Step]], kv_dtype: str) -> None:
        at = NominalAddresses(self.features, kv_dtype)
        wanted = [
            dispatch.kernel
            for plan, step in steps
            for dispatch in self.kernel_set.lower_all(plan.launches, at, Bucket.of_step(plan, step))
        ]
        self._compile(wanted)

    def prepare(self, plan: Plan, cache: GpuCache) -> GpuProgram:
        if self.compiled_folder:
            self._compile_ahead(plan, cache.layout)
        return GpuProgram(
            plan, self.host, self.kernel_set, self.features, self.weights, cache, self._compile
        )

    def tune(
        self,
        plans: Sequence[Plan],
        path: Path | None,
        budget_s: float | None,
        progress: Callable[[int, int], None],
    ) -> TuneReport:
        from zinc.gpu.tune.run import Tuner, tune  # imported late: most processes do not tune

        tuner = Tuner(self.kernel_set, self.host, self.features, self.origin, path)
        return tune(tuner, plans, budget_s, progress)

    def _compile_ahead(self, plan: Plan, layout: CacheLayout) -> None:
        """Compile the kernels of `plan`, unless an earlier run has stored them in the cache folder.

        In that case, each kernel is loaded from there when a step first needs it.
        """
        context = max(layout.n_blocks, default=1) * layout.block_tokens
        sizes = plan.max_tokens, plan.max_outputs, context, layout.block_tokens, layout.kv_dtype
        mark = Mark(self.compiled_folder, self.identity(), plan.hash, self.features, sizes)
        if mark.is_set() and not self.n_tuned:  # tuned tiles are not among the facts
            return
        steps = ahead.distinct_buckets(plan, context)
        self._compile(
            ahead.kernels(
                self.kernel_set, plan, self.features, steps, layout.kv_dtype, layout.block_tokens
            )
        )
        mark.set()

    def _compile(self, kernels: Iterable[KernelVariant]) -> None:
        """Make kernels ready, with a progress bar if it takes long. Raises DeviceError."""
        with ProgressBar("compiling kernels") as bar:
            self.host.compile(kernels, bar)
