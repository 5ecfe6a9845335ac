"""Compilation and loading of kernels into the context of a CUDA device."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from zinc.backends.cuda import compiler
from zinc.backends.cuda.driver import checked
from zinc.core.dataclass import dataclass
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.host import Progress

PORTABLE_CLUSTER = 8  # blocks of a cluster that every GPU with clusters can run


@dataclass(frozen=True, slots=True)
class Kernel:
    """A loaded kernel and the threads of its blocks."""

    function: Any
    threads: int


class KernelLoader:
    """The loaded kernels of a device for which kernels are compiled as `arch`, such as "sm_90a".

    enter: makes the device's context current in the calling thread.
    """

    def __init__(self, cuda: Any, arch: str, enter: Callable[[], None]) -> None:
        self._cuda, self._arch, self._enter = cuda, arch, enter
        self._kernels: dict[KernelVariant, Kernel] = {}
        self._modules: list[Any] = []
        self._lock = threading.Lock()

    def __getitem__(self, kernel: KernelVariant) -> Kernel:
        """Return a kernel that `compile` has loaded."""
        return self._kernels[kernel]

    def compile(self, kernels: Iterable[KernelVariant], progress: Progress | None = None) -> None:
        """Compile and load the kernels that are not loaded yet. Raises DeviceError."""
        with self._lock:
            missing = [x for x in dict.fromkeys(kernels) if x not in self._kernels]
            if missing:
                self._enter()
                self._compile(missing, progress)

    def _compile(self, missing: list[KernelVariant], progress: Progress | None) -> None:
        # `functools.cache` does not lock: without this call, each thread would compute the digest.
        compiler.text_digest()
        with ThreadPoolExecutor(os.cpu_count() or 1) as threads:
            cubins = threads.map(lambda x: compiler.cubin(x, self._arch), missing)
            for done, (kernel, code) in enumerate(zip(missing, cubins, strict=True)):
                self._kernels[kernel] = self._load(kernel, code)
                if progress is not None:
                    progress(done + 1, len(missing))

    def _load(self, kernel: KernelVariant, code: bytes) -> Kernel:
        cuda = self._cuda
        module = checked(cuda.cuModuleLoadData(code), f"loading the kernel {kernel.name}")
        self._modules.append(module)
        name = compiler.entry(kernel)
        function = checked(cuda.cuModuleGetFunction(module, name), "cuModuleGetFunction")
        if kernel.shared_bytes:
            limit = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            set_ = cuda.cuFuncSetAttribute(function, limit, kernel.shared_bytes)
            checked(set_, f"shared memory of the kernel {kernel.name}")
        if dict(kernel.defines).get("CLUSTER", 0) > PORTABLE_CLUSTER:
            allowed = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            checked(cuda.cuFuncSetAttribute(function, allowed, 1), f"clusters of {kernel.name}")
        key = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK
        # Each kernel states its threads as launch bounds.
        threads = checked(cuda.cuFuncGetAttribute(key, function), "cuFuncGetAttribute")
        return Kernel(function, threads)


def kernel_parameters(dispatch: Dispatch) -> tuple[int, Any]:
    """Return the address of the parameters of a kernel, and the memory that it points to.

    A kernel has one parameter, the struct of its arguments. The caller keeps the memory until the
    driver has copied the struct.
    """
    packed = dispatch.arguments.pack()
    arguments = ctypes.create_string_buffer(packed, len(packed))
    pointers = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
    return ctypes.addressof(pointers), (pointers, arguments)
