"""Runs of a product with a tile on a device: whether its result is right, and how long it takes.

The launches of a run depend on each other, as in a step, and read copies of the weights in turn.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from zinc.backends.api import CacheLayout
from zinc.backends.plans import Plan
from zinc.gpu.addresses import NominalAddresses, ProgramAddresses
from zinc.gpu.cache import GpuCache
from zinc.gpu.dispatch import KernelVariant
from zinc.gpu.features import Features
from zinc.gpu.graph import DispatchGraph, dispatch_graph
from zinc.gpu.host import Host
from zinc.gpu.kernel_set import KernelSet
from zinc.gpu.memory import Buffer, CounterAllocator, ScratchAllocator
from zinc.gpu.step_data import StepData
from zinc.gpu.tune.clocks import SteadyClocks
from zinc.gpu.tune.operands import chains_products
from zinc.gpu.tune.placed import PlacedLaunch
from zinc.gpu.tune.products import Product
from zinc.gpu.tune.weights import LaunchWeights
from zinc.gpu.tuned import Tile, TunedTiles
from zinc.ops.step import Step
from zinc.ops.values import RowFormat

RUN_S = 2e-3  # duration of a run
MAX_LAUNCHES = 256  # launches per run
# Relative error of a result: kernels may round inputs to float16, and rows between products and
# outputs to 8 bits.
TOLERANCE, TOLERANCE_OF_8_BITS = 2e-3, 1e-2
PEAK = 25  # tolerances that one number may be off by, relative to the root mean square


class Trial:
    """A product on a device, which may run with any tile."""

    def __init__(
        self,
        kernels: KernelSet,
        host: Host,
        features: Features,
        product: Product,
        weights: LaunchWeights,
        clocks: SteadyClocks,
    ) -> None:
        self._kernels, self._host, self._features = kernels, host, features
        self._clocks = clocks
        self._key, self._weights, self._bucket = product.key, weights, product.bucket
        tokens, outputs = self._bucket.tokens, self._bucket.outputs
        every = np.arange(tokens, dtype=np.int32)
        ends = np.array([0, tokens], np.int32)
        step = Step(every, every, 0 * every, every[:outputs], ends, every[:1])
        self._data = StepData(host, tokens, outputs)
        self._data.write(step)
        self._data.flush()
        self._cache = GpuCache((), CacheLayout(64, (1,)), host)
        self._chains_products = chains_products(product.launch)
        self._placed = PlacedLaunch(host, product.launch, self._bucket, weights, step)
        self._n_launches = 0  # per run

    def compile(self, tiles: list[Tile]) -> None:
        """Compile the kernels of the product with each of `tiles`. Raises ZincError."""
        kernels: list[KernelVariant] = []
        for tile in tiles:
            at = NominalAddresses(self._with(tile), "f16")
            dispatches = self._kernels.lower(self._placed.variants[0], at, self._bucket)
            kernels += (dispatch.kernel for dispatch in dispatches)
        self._host.compile(kernels)

    def error(self, tile: Tile) -> str:
        """Run the product once and compare its result with the reference.

        Return a sentence about the difference, or "" if it is within the tolerance. Raises
        ZincError.
        """
        self._placed.clear()
        graph, memory = self._graph(tile, 1)
        recording = self._host.record(graph)
        self._host.wait(recording.submit())
        memory.clear()  # only now, because the launch uses it
        for ref, found, wanted in zip(
            self._placed.outputs, self._placed.read(), self._placed.wanted, strict=True
        ):
            size = float(np.linalg.norm(wanted))
            off = np.abs(found - wanted)
            in_8_bits = self._chains_products or ref.format is RowFormat.Q8_32
            error = float(np.linalg.norm(off)) / size
            allowed = TOLERANCE_OF_8_BITS if in_8_bits else TOLERANCE
            if not error <= allowed:  # also if it is NaN
                return f"the result is off by {error:.1e}"
            peak = float(off.max()) / size * wanted.size**0.5
            if not peak <= PEAK * allowed:
                return f"a number of the result is off by {peak:.1e}"
        return ""

    def seconds(self, tile: Tile, repeats: int) -> float:
        """Return the device's seconds of a launch with `tile`, the least of `repeats` runs.

        The first call chooses the launches of a run, so that one takes about RUN_S seconds. Raises
        ZincError.
        """
        if not self._n_launches:
            n = len(self._placed.variants)
            rounds = RUN_S / self._run(tile, n, repeats=2)
            self._n_launches = n * max(1, min(MAX_LAUNCHES // n, round(rounds)))
        return self._run(tile, self._n_launches, repeats) / self._n_launches

    def _run(self, tile: Tile, n: int, repeats: int) -> float:
        """Run `n` launches, `repeats` times; return the device's seconds of the fastest run."""
        graph, memory = self._graph(tile, n)
        seconds = self._clocks.seconds(graph, repeats)
        memory.clear()
        return seconds

    def _with(self, tile: Tile) -> Features:
        """Return the features of the device with `tile` as the tile of the product."""
        return replace(self._features, tuned=TunedTiles({self._key: tile}))

    def _graph(self, tile: Tile, n: int) -> tuple[DispatchGraph, list[Buffer]]:
        """Return `n` launches one after another, compiled, and the memory that they use."""
        variants, memory = self._placed.variants, list[Buffer]()

        def new_memory(n_bytes: int) -> int:
            memory.append(self._host.buffer(n_bytes))
            self._host.clear(memory[-1])
            return memory[-1].address

        at = ProgramAddresses(
            self._with(tile),
            self._placed.arena,
            self._data.address,
            self._weights.addresses,
            {},
            self._cache,
            ScratchAllocator(new_memory),
            CounterAllocator(new_memory),
        )
        launches = tuple(variants[i % len(variants)] for i in range(n))
        tokens, outputs = self._bucket.tokens, self._bucket.outputs
        plan = Plan(launches, launches[0].outputs[0], self._placed.arena.size, tokens, outputs)
        after = [(i - 1,) if i else () for i in range(n)]
        graph = dispatch_graph(self._kernels, plan, after, at, self._bucket)
        self._host.compile(node.dispatch.kernel for node in graph.nodes)
        return graph, memory
