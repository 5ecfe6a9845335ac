"""A stand-in for the module `cuda.bindings.driver` that runs everything on the CPU.

Device memory is host memory, a cubin is the pickled variant of a kernel, and its function is the
kernel compiled for the emulator. Graph nodes run in the order of their edges.
"""

from __future__ import annotations

import ctypes
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cuda_emulator.emulated import WORKERS, compiled

from zinc.backends import cuda
from zinc.backends.cuda import compiler, driver, graph, host
from zinc.backends.cuda.host import CudaHost
from zinc.core.marks import Mark
from zinc.gpu.dispatch import KernelVariant

OUT_OF_MEMORY = SimpleNamespace(name="CUDA_ERROR_OUT_OF_MEMORY")
ATTRIBUTES = {
    "MULTIPROCESSOR_COUNT": 4,
    "COMPUTE_CAPABILITY_MAJOR": 9,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448,
}


class _Names:
    """An enum in which every name is a member: itself, or 0 as an integer."""

    def __getattr__(self, name: str) -> Any:
        return _Name(name)


class _Name(str):
    def __int__(self) -> int:
        return 0


class IdleKernel:
    """A kernel that does nothing, for tests in which results do not matter."""

    def zinc_threads(self) -> int:
        return 32

    def zinc_argument_bytes(self) -> int:
        return 0

    def zinc_launch(self, *_: Any) -> None:
        pass


class FakeDriver:
    """One device with `n_bytes` of memory. `calls` counts the calls by name.

    Kernels are compiled for the emulator, or do nothing if `idle`.
    """

    CUdevice_attribute = CUfunction_attribute = CUevent_flags = CUstream_flags = _Names()
    CUmemorytype = CUresult = _Names()
    CUgraphDependencyType = SimpleNamespace(CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC=1)
    CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC = 1
    CUDA_KERNEL_NODE_PARAMS = CUDA_MEMCPY3D = CUgraphEdgeData = SimpleNamespace
    CUdeviceptr = int

    def __init__(self, n_bytes: int = 1 << 30, *, idle: bool = False) -> None:
        self.n_bytes, self.idle = n_bytes, idle
        self.memory: dict[int, Any] = {}
        self.host_memory: dict[int, Any] = {}
        self.calls: dict[str, int] = {}
        self.context: Any = None  # the current one
        self.edges: list[tuple[int, int, bool]] = []  # of graphs: earlier, later, starts early

    def __getattr__(self, name: str) -> Any:
        """Return a call without effect for the functions that need none."""
        assert name.startswith("cu"), name

        def call(*_: Any) -> tuple[int, Any]:
            self.calls[name] = self.calls.get(name, 0) + 1
            return 0, name

        return call

    @contextmanager
    def failing(self, status: str, *calls: str, after: int = 0) -> Iterator[None]:
        """Make `calls` return CUDA_ERROR_`status`, except for the first `after` of them."""
        left = [after]

        def failing(name: str) -> Any:
            works = getattr(self, name)

            def call(*arguments: Any) -> tuple[Any, ...]:
                left[0] -= 1
                if left[0] >= 0:
                    return works(*arguments)  # type: ignore[no-any-return]
                return SimpleNamespace(name=f"CUDA_ERROR_{status}"), None

            return call

        self.__dict__ |= {name: failing(name) for name in calls}
        try:
            yield
        finally:
            for name in calls:
                del self.__dict__[name]

    def cuDeviceGetCount(self) -> tuple[int, int]:  # noqa: N802
        return 0, 1

    def cuDriverGetVersion(self) -> tuple[int, int]:  # noqa: N802
        return 0, 13000

    def cuDeviceGetName(self, length: int, device: Any) -> tuple[int, bytes]:  # noqa: N802
        return 0, b"Fake card\0\0"

    def cuDeviceGetAttribute(self, key: str, device: Any) -> tuple[int, int]:  # noqa: N802
        return 0, ATTRIBUTES.get(key.removeprefix("CU_DEVICE_ATTRIBUTE_"), 0)

    def cuCtxGetCurrent(self) -> tuple[int, Any]:  # noqa: N802
        return 0, self.context

    def cuCtxSetCurrent(self, context: Any) -> tuple[int]:  # noqa: N802
        self.context = context
        return (0,)

    def cuMemGetInfo(self) -> tuple[int, int, int]:  # noqa: N802
        return 0, self.n_bytes - sum(map(len, self.memory.values())), self.n_bytes

    def cuMemAlloc(self, size: int) -> tuple[Any, ...]:  # noqa: N802
        if size > self.cuMemGetInfo()[1]:
            return OUT_OF_MEMORY, None
        return 0, _block(self.memory, size)

    def cuMemHostAlloc(self, size: int, flags: int) -> tuple[int, int]:  # noqa: N802
        return 0, _block(self.host_memory, size)

    def cuMemFree(self, address: int) -> tuple[int]:  # noqa: N802
        del self.memory[address]
        return (0,)

    def cuMemFreeHost(self, address: int) -> tuple[int]:  # noqa: N802
        del self.host_memory[address]
        return (0,)

    def cuMemcpyHtoDAsync(  # noqa: N802
        self, target: int, source: int, n: int, stream: Any
    ) -> tuple[int]:
        ctypes.memmove(target, source, n)
        return (0,)

    cuMemcpyDtoHAsync = cuMemcpyDtoDAsync = cuMemcpyHtoDAsync  # noqa: N815

    def cuMemsetD8Async(self, at: int, value: int, n: int, stream: Any) -> tuple[int]:  # noqa: N802
        ctypes.memset(at, value, n)
        return (0,)

    def cuModuleLoadData(self, code: bytes) -> tuple[int, KernelVariant]:  # noqa: N802
        return 0, pickle.loads(code)

    def cuModuleGetFunction(self, module: KernelVariant, name: bytes) -> tuple[int, Any]:  # noqa: N802
        assert name.decode() == f"zinc_{module.name}"
        return 0, IdleKernel() if self.idle else compiled(module)

    def cuFuncGetAttribute(self, key: str, function: Any) -> tuple[int, int]:  # noqa: N802
        return 0, function.zinc_threads()

    def cuGraphCreate(self, flags: int) -> tuple[int, list[Any]]:  # noqa: N802
        return 0, []

    def cuGraphAddKernelNode(  # noqa: N802
        self, graph: list[Any], after: list[int], n: int, params: Any
    ) -> tuple[int, int]:
        assert n == len(after)
        assert params.blockDimX == params.func.zinc_threads()
        pointer = ctypes.c_void_p.from_address(params.kernelParams).value
        arguments = ctypes.string_at(pointer, params.func.zinc_argument_bytes())
        grid = params.gridDimX, params.gridDimY, params.gridDimZ
        graph.append(lambda: params.func.zinc_launch(arguments, *grid, WORKERS))
        self.edges += ((earlier, len(graph) - 1, False) for earlier in after)
        return 0, len(graph) - 1

    def cuGraphAddDependencies(  # noqa: N802
        self, graph: list[Any], before: list[int], after: list[int], edges: list[Any], n: int
    ) -> tuple[int]:
        assert n == len(before) == len(after) == len(edges)
        for earlier, later, edge in zip(before, after, edges, strict=True):
            assert earlier < later < len(graph)
            self.edges.append((earlier, later, bool(vars(edge))))
        return (0,)

    def cuGraphAddMemcpyNode(  # noqa: N802
        self, graph: list[Any], after: list[int], n: int, params: Any, context: Any
    ) -> tuple[int, int]:
        size = params.WidthInBytes * params.Height * params.Depth
        graph.append(lambda: ctypes.memmove(params.dstHost, params.srcDevice, size))
        return 0, len(graph) - 1

    def cuGraphInstantiate(self, graph: list[Any], flags: int) -> tuple[int, list[Any]]:  # noqa: N802
        return 0, list(graph)

    def cuGraphLaunch(self, graph: list[Any], stream: Any) -> tuple[int]:  # noqa: N802
        for run in graph:
            run()
        return (0,)

    def cuLaunchKernel(self, function: Any, *rest: Any) -> tuple[int]:  # noqa: N802
        *grid, threads, _, _, _, _, pointers, _ = rest
        assert threads == function.zinc_threads()
        pointer = ctypes.c_void_p.from_address(pointers).value
        arguments = ctypes.string_at(pointer, function.zinc_argument_bytes())
        function.zinc_launch(arguments, *grid, WORKERS)
        return (0,)

    def cuEventElapsedTime(self, start: Any, end: Any) -> tuple[int, float]:  # noqa: N802
        return 0, 1.0


def _block(memory: dict[int, Any], size: int) -> int:
    """Add `size` bytes to `memory` and return their address."""
    block = (ctypes.c_uint8 * (size + 256))()
    address = -(-ctypes.addressof(block) // 256) * 256
    memory[address] = block
    return address


def install(monkeypatch: pytest.MonkeyPatch, fake: FakeDriver) -> CudaHost:
    """Make the CUDA backend use `fake` until the end of the test. Return its host.

    Marks are kept in memory until then.
    """
    found: set[Path] = set()
    monkeypatch.setattr(Mark, "is_set", lambda mark: mark.path in found)
    monkeypatch.setattr(Mark, "set", lambda mark: found.add(mark.path))
    for module in (driver, graph, host):
        monkeypatch.setattr(module, "driver", lambda: fake)
    monkeypatch.setattr(compiler, "architecture", lambda capability: "sm_90")
    monkeypatch.setattr(compiler, "identity", lambda arch: f"a compiler for {arch}")
    monkeypatch.setattr(compiler, "cubin", lambda kernel, arch: pickle.dumps(kernel))
    opened = CudaHost(driver.choose())
    monkeypatch.setattr(cuda, "host_of", lambda index: opened)
    return opened
