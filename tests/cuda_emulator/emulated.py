"""A host that runs CUDA kernels on the CPU: g++ compiles them against the emulator.

Compiled kernels are cached in the user's cache folder, by source and macros.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from zinc.backends.api import StepCounts
from zinc.backends.cuda import CudaKernels, compiler
from zinc.core.env import cache_folder
from zinc.gpu.arguments.generate import cpp_headers
from zinc.gpu.backend import GpuBackend
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.features import Features
from zinc.gpu.graph import DispatchGraph
from zinc.gpu.host import Download, Progress, Upload
from zinc.gpu.memory import ALIGNMENT, Buffer, Bytes, MemoryKind
from zinc.hub.lock import exclusive

HERE = Path(__file__).parent
RUNTIME = HERE / "runtime.cpp"
COMPILER = shutil.which("g++")
OPTIONS = ("-std=c++20", "-Og", "-fPIC", "-w", "-fno-strict-aliasing")
COMPILER_BYTES = 4 << 30  # memory limit of g++
WORKERS = min(4, os.cpu_count() or 1)


class EmulatedHost:
    """A `zinc.gpu.host.Host` in host memory. A submission runs at once."""

    features = Features(32, shared_bytes=49152, compute_units=4)
    max_buffer_bytes = 1 << 30
    device_name, driver = "emulated", "none"

    def __init__(self) -> None:
        self._kernels: dict[KernelVariant, ctypes.CDLL] = {}
        self._step_memory: WeakKeyDictionary[Buffer, Bytes] = WeakKeyDictionary()

    def describe(self) -> str:
        return "emulated CUDA device"

    def available_bytes(self) -> int:
        return self.max_buffer_bytes

    def shared_bytes(self) -> int | None:
        return None

    def buffer(self, size: int, kind: MemoryKind = MemoryKind.DEVICE) -> Buffer:
        memory = np.full(size + ALIGNMENT, 0xFF, np.uint8)  # NaN, if read before it is written
        start = -memory.ctypes.data % ALIGNMENT
        memory = memory[start : start + size]
        buffer = Buffer(0, memory.ctypes.data, size, memory)
        if kind is MemoryKind.STEP:  # kernels do not see the host's bytes before they are flushed
            self._step_memory[buffer] = memory
            buffer.bytes = np.zeros(size, np.uint8)
        return buffer

    def flush(self, buffer: Buffer, offset: int, n_bytes: int) -> None:
        chosen = slice(offset, offset + n_bytes)
        self._step_memory[buffer][chosen] = _bytes(buffer)[chosen]

    def write(self, target: Buffer, offset: int, data: Bytes) -> None:
        _bytes(target)[offset : offset + len(data)] = data

    def read(self, source: Buffer, offset: int, n_bytes: int) -> Bytes:
        return _bytes(source)[offset : offset + n_bytes].copy()

    def copy(self, source: Buffer, offset: int, target: Buffer, at: int, n_bytes: int) -> None:
        self.write(target, at, self.read(source, offset, n_bytes))

    def clear(self, target: Buffer) -> None:
        _bytes(target)[:] = 0

    def kernel_name(self, kernel: KernelVariant) -> str:
        return str(kernel)

    def compile(self, kernels: Iterable[KernelVariant], progress: Progress | None = None) -> None:
        missing = [kernel for kernel in dict.fromkeys(kernels) if kernel not in self._kernels]
        folder()  # precompiles the emulator before several threads need it
        with ThreadPoolExecutor(WORKERS) as threads:
            self._kernels.update(zip(missing, threads.map(compiled, missing), strict=True))

    def record(
        self,
        graph: DispatchGraph,
        downloads: Sequence[Download] = (),
        upload: Upload | None = None,
    ) -> EmulatedRecording:
        return self.recording()(self, graph, downloads, upload)

    def recording(self) -> type[EmulatedRecording]:
        """Return the class of recordings, for hosts that submit in another way."""
        return EmulatedRecording

    def run(self, dispatch: Dispatch) -> None:
        self._kernels[dispatch.kernel].zinc_launch(
            dispatch.arguments.pack(), *dispatch.groups, WORKERS
        )

    def wait(self, ticket: int, expected_s: float = 0.0, sleeps: bool = True) -> None:
        pass

    def seconds(self, graph: DispatchGraph, repeats: int) -> float:
        return min(sum(self.level_seconds(graph)) for _ in range(repeats))

    def level_seconds(self, graph: DispatchGraph) -> list[float]:
        seconds = []
        for level in graph.levels():
            start = perf_counter()
            for node in level:
                self.run(node.dispatch)
            seconds.append(perf_counter() - start)
        return seconds


@dataclass(eq=False)
class EmulatedRecording:
    """The dispatches of a step, run in the order of the graph."""

    host: EmulatedHost
    graph: DispatchGraph
    downloads: Sequence[Download]
    upload: Upload | None

    @property
    def counts(self) -> StepCounts:
        return StepCounts(len(self.graph.nodes), len(self.graph.levels()) - 1)

    def submit(self) -> int:
        if self.upload is not None:
            self.host.flush(self.upload.source, 0, self.upload.n_bytes)
        for node in self.graph.nodes:
            self.host.run(node.dispatch)
        for x in self.downloads:
            self.host.write(x.target, 0, self.host.read(x.source, x.offset, x.n_bytes))
        return 0


class EmulatedBackend(CudaKernels, GpuBackend):
    """The CUDA backend on an emulated device."""

    host: EmulatedHost

    def measure(self) -> None:
        return None


@functools.cache
def host() -> EmulatedHost:
    """Return the host that all tests of a process share."""
    return EmulatedHost()


def backend(batch_invariant: bool = False) -> EmulatedBackend:
    return EmulatedBackend(host(), batch_invariant)


@functools.cache
def folder() -> Path:
    """Return the cache folder of the kernels as they are now, with the emulator precompiled."""
    digest = hashlib.sha256(repr((cpp_headers(), OPTIONS)).encode())
    for path in sorted([*compiler.KERNELS.rglob("*.cu*"), *HERE.glob("*.h"), RUNTIME]):
        digest.update(path.read_bytes())
    found = cache_folder() / "emulated" / digest.hexdigest()[:16]
    found.mkdir(parents=True, exist_ok=True)
    with exclusive(found / "lock"):  # headers written again would not match the precompiled one
        if not (found / "emulator.h.gch").exists():
            for name, text in cpp_headers().items():
                (found / name).parent.mkdir(exist_ok=True)
                (found / name).write_text(text)
            for header in HERE.glob("*.h"):
                shutil.copy(header, found)
            _compile("-c", f"-I{found}", RUNTIME, "-o", found / "runtime.o")
            _compile("-x", "c++-header", found / "emulator.h", "-o", found / "emulator.h.gch")
    return found


def compiled(kernel: KernelVariant) -> ctypes.CDLL:
    """Return a kernel as a shared library with the function `zinc_launch`."""
    source = f'#include "emulator.h"\n{compiler.source(kernel)}'
    name = f"{kernel.name}-{hashlib.sha256(source.encode()).hexdigest()[:16]}"
    library = folder() / f"{name}.so"
    if not library.exists():
        with exclusive(library.with_suffix(".lock")):
            if not library.exists():  # no other process has compiled it meanwhile
                path = library.with_suffix(".cpp")
                path.write_text(source)
                headers = f"-I{folder()}", f"-I{compiler.KERNELS}"
                _compile("-shared", *headers, path, folder() / "runtime.o", "-o", library)
    loaded = ctypes.CDLL(str(library))
    loaded.zinc_launch.argtypes = [
        ctypes.c_char_p,
        *[ctypes.c_uint32] * 3,
        ctypes.c_int,
    ]
    loaded.zinc_launch.restype = None
    return loaded


def _compile(*arguments: Any) -> None:
    """Run g++, and put its output in place when it is complete."""
    assert COMPILER is not None
    *rest, output = arguments
    partial = output.with_name(f"{os.getpid()}-{output.name}")
    subprocess.run(
        ["prlimit", f"--as={COMPILER_BYTES}", COMPILER, *OPTIONS, *map(str, rest), str(partial)],
        check=True,
    )
    os.replace(partial, output)


def _bytes(buffer: Buffer) -> Bytes:
    assert buffer.bytes is not None
    return buffer.bytes
