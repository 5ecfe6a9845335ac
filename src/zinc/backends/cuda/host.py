"""A CUDA device as a `zinc.gpu.host.Host`: memory, compiled kernels and recorded graphs.

A process uses the primary context of a device and one stream, so all backends on it share memory
and kernels, and their work runs in the order of the calls.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from zinc.backends.api import StepCounts
from zinc.backends.cuda import compiler, copies
from zinc.backends.cuda.driver import Candidate, attribute, checked, driver
from zinc.backends.cuda.graph import GraphBuilder, GraphRecording
from zinc.backends.cuda.loader import KernelLoader, kernel_parameters
from zinc.backends.cuda.memory import Memory
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.features import Features
from zinc.gpu.graph import DispatchGraph, Node
from zinc.gpu.host import Download, Progress, Upload
from zinc.gpu.memory import Buffer, Bytes, MemoryKind

WARP = 32
SHARED_BYTES = 48 << 10  # shared memory of a block without a request for more
EARLY_START = (9, 0)  # compute capability from which a kernel may start before others have ended
CLUSTERS = 9, 10  # major compute capabilities whose clusters have up to 16 blocks
SLEEP_S = 2e-4  # a sleeping wait wakes up this much before the expected end
SLICE_S = 5e-4  # longest sleep: an early end of a step is noticed within this time


class CudaHost:
    """A `zinc.gpu.host.Host` for one CUDA device, which it opens. Raises DeviceError."""

    def __init__(self, candidate: Candidate) -> None:
        self.candidate = candidate
        self._cuda = cuda = driver()
        self.context = checked(
            cuda.cuDevicePrimaryCtxRetain(candidate.handle), "cuDevicePrimaryCtxRetain"
        )
        self.enter()
        flags = int(cuda.CUstream_flags.CU_STREAM_NON_BLOCKING)
        self.stream = checked(cuda.cuStreamCreate(flags), "cuStreamCreate")
        self.memory = Memory(cuda, self.stream, self.enter)
        self._arch = compiler.architecture(candidate.capability)
        self._kernels = KernelLoader(cuda, self._arch, self.enter)
        self._lock = threading.Lock()
        self._events: dict[int, Any] = {}  # events of submissions that nobody has waited for yet
        self._spare: list[Any] = []
        self._last = 0
        units = attribute(candidate.handle, "MULTIPROCESSOR_COUNT")
        self._features = Features(
            WARP,
            warp_groups=candidate.capability[0] == 9,
            clusters=candidate.capability[0] in CLUSTERS,
            shared_bytes=SHARED_BYTES,
            most_shared_bytes=attribute(candidate.handle, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
            compute_units=units,
        )
        _, self._total_bytes = checked(cuda.cuMemGetInfo(), "cuMemGetInfo")

    def enter(self) -> None:
        """Make the device's context current in the calling thread."""
        checked(self._cuda.cuCtxSetCurrent(self.context), "cuCtxSetCurrent")

    @property
    def features(self) -> Features:
        return self._features

    @property
    def device_name(self) -> str:
        return self.candidate.name

    @property
    def driver(self) -> str:
        return self.candidate.driver

    @property
    def compiler(self) -> str:
        """Text that names compiler, options, architecture and sources of the kernels."""
        return compiler.identity(self._arch)

    @property
    def starts_early(self) -> bool:
        """Whether graphs use programmatic dependent launch, which needs capability 9.0."""
        return self.candidate.capability >= EARLY_START

    @property
    def max_buffer_bytes(self) -> int:
        return int(self._total_bytes)

    def describe(self) -> str:
        return str(self.candidate)

    def available_bytes(self) -> int:
        return self.memory.available_bytes()

    def shared_bytes(self) -> int | None:
        return None

    def buffer(self, size: int, kind: MemoryKind = MemoryKind.DEVICE) -> Buffer:
        return self.memory.buffer(size, kind)

    def flush(self, buffer: Buffer, offset: int, n_bytes: int) -> None:
        self.memory.flush(buffer, offset, n_bytes)

    def write(self, target: Buffer, offset: int, data: Bytes) -> None:
        self.memory.write(target, offset, data)

    def read(self, source: Buffer, offset: int, n_bytes: int) -> Bytes:
        return self.memory.read(source, offset, n_bytes)

    def copy(self, source: Buffer, offset: int, target: Buffer, at: int, n_bytes: int) -> None:
        self.memory.copy(source, offset, target, at, n_bytes)

    def clear(self, target: Buffer) -> None:
        self.memory.clear(target)

    def kernel_name(self, kernel: KernelVariant) -> str:
        macros = (f"-D{name}={value}" for name, value in kernel.defines)
        return " ".join([f"{kernel.name}.cu", *macros])

    def compile(self, kernels: Iterable[KernelVariant], progress: Progress | None = None) -> None:
        self._kernels.compile([*kernels, copies.KERNEL], progress)

    def record(
        self,
        graph: DispatchGraph,
        downloads: Sequence[Download] = (),
        upload: Upload | None = None,
    ) -> GraphRecording:
        self.enter()
        builder = GraphBuilder(self._kernels, self.context, self.starts_early)
        made = builder.instantiate(graph, downloads, upload)
        counts = StepCounts(len(graph.nodes), max(0, len(graph.levels()) - 1))
        return GraphRecording(made, counts, downloads, upload, self.launch_graph)

    def launch_graph(self, graph: Any) -> int:
        """Queue an instantiated graph. Return a ticket for `wait`."""
        cuda = self._cuda
        with self._lock:
            self.enter()
            checked(cuda.cuGraphLaunch(graph, self.stream), "cuGraphLaunch")
            event = self._spare.pop() if self._spare else self._event(timing=False)
            checked(cuda.cuEventRecord(event, self.stream), "cuEventRecord")
            self._last += 1
            self._events[self._last] = event
            return self._last

    def wait(self, ticket: int, expected_s: float = 0.0, sleeps: bool = True) -> None:
        with self._lock:
            event = self._events.pop(ticket, None)
        if event is None:
            return
        self.enter()
        if sleeps:
            self._sleep(event, expected_s - SLEEP_S)
        checked(self._cuda.cuEventSynchronize(event), "waiting for a step")
        with self._lock:
            self._spare.append(event)

    def _sleep(self, event: Any, seconds: float) -> None:
        """Sleep for `seconds`, or until a submission has ended.

        The expected duration comes from earlier steps. With one long sleep, no step would seem
        shorter than expected, so one slow step would slow down all later steps.
        """
        end = time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > SLEEP_S:
            time.sleep(min(left, SLICE_S))
            status, *_ = self._cuda.cuEventQuery(event)
            if status != self._cuda.CUresult.CUDA_ERROR_NOT_READY:
                return

    def seconds(self, graph: DispatchGraph, repeats: int) -> float:
        recording, tickets = self.record(graph), list[int]()
        found = self._spans([lambda: tickets.append(recording.submit())] * repeats)
        for ticket in tickets:
            self.wait(ticket)
        return min(found)

    def level_seconds(self, graph: DispatchGraph) -> list[float]:
        def launch_all(level: Sequence[Node]) -> None:
            for node in level:
                self.launch(node.dispatch)

        return self._spans([partial(launch_all, level) for level in graph.levels()])

    def _spans(self, acts: Sequence[Callable[[], None]]) -> list[float]:
        """Return the device's seconds for what each of `acts` queues."""
        cuda = self._cuda
        self.enter()
        events = [self._event(timing=True) for _ in range(len(acts) + 1)]
        try:
            checked(cuda.cuEventRecord(events[0], self.stream), "cuEventRecord")
            for act, event in zip(acts, events[1:], strict=True):
                act()
                checked(cuda.cuEventRecord(event, self.stream), "cuEventRecord")
            checked(cuda.cuEventSynchronize(events[-1]), "cuEventSynchronize")
            spans = pairwise(events)
            elapsed = (checked(cuda.cuEventElapsedTime(*x), "cuEventElapsedTime") for x in spans)
            return [ms / 1e3 for ms in elapsed]
        finally:
            for event in events:
                cuda.cuEventDestroy(event)

    def launch(self, dispatch: Dispatch) -> None:
        """Queue one dispatch of a compiled kernel. Raises DeviceError."""
        self.enter()
        kernel = self._kernels[dispatch.kernel]
        pointers, _arguments = kernel_parameters(dispatch)
        blocks, threads = dispatch.groups, (kernel.threads, 1, 1)
        launch = self._cuda.cuLaunchKernel
        shared = dispatch.kernel.shared_bytes
        result = launch(kernel.function, *blocks, *threads, shared, self.stream, pointers, 0)
        checked(result, f"launching {dispatch.kernel.name}")

    def _event(self, timing: bool) -> Any:
        flags = self._cuda.CUevent_flags
        chosen = flags.CU_EVENT_DEFAULT if timing else flags.CU_EVENT_DISABLE_TIMING
        return checked(self._cuda.cuEventCreate(int(chosen)), "cuEventCreate")
