"""The CUDA backend: kernels in CUDA C++, recorded into CUDA graphs.

It needs NVIDIA's driver and the packages of the extra `cuda`: bindings to the driver, and NVRTC,
which compiles the kernels for the GPU. No CUDA toolkit is needed.
"""

from __future__ import annotations

import functools
import importlib.util
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from zinc.backends.api import Backend, Cache, CacheLayout, TensorData, wants_batch_invariance
from zinc.backends.capabilities import BackendKind, Capabilities, DeviceInfo, DeviceKind, Roofline
from zinc.backends.cuda import compiler
from zinc.backends.cuda.driver import candidates, choose, release
from zinc.backends.cuda.lower import registry
from zinc.backends.cuda.lower.half_rows import JOINS
from zinc.backends.cuda.tilings import CUDA_TILINGS
from zinc.backends.cuda.upload import Uploader, can_upload
from zinc.backends.plans import SplitPlan
from zinc.gpu import lower
from zinc.gpu.arguments.structs import MAX_PEERS
from zinc.gpu.backend import GpuBackend, GpuKernels
from zinc.gpu.cache import GpuCache
from zinc.gpu.kernel_set import FUSED, LOWERINGS, KernelSet
from zinc.gpu.memory import Slice
from zinc.gpu.packing import StreamWeights
from zinc.gpu.peers import PeerProgram, peer_program
from zinc.ops.values import State, Weight
from zinc.quant.blocks import row_bytes

if TYPE_CHECKING:
    from zinc.backends.cuda.host import CudaHost

lower.load()
registry.load()

MAX_ARGUMENT_BYTES = 4096  # limit of the parameters of a kernel
PARALLEL_UPLOADS = 6  # threads that read a file faster than PCIe copies

CUDA_KERNELS = KernelSet(
    backend="CUDA",
    lowerings={**LOWERINGS, **registry.LOWERINGS},
    fused={**FUSED, **registry.FUSED},
    tilings=CUDA_TILINGS,
    sources=compiler.sources_digest,
    weights=StreamWeights(),
    max_argument_bytes=MAX_ARGUMENT_BYTES,
    stores_blocks=frozenset({"linear_glu"}),
    joins=JOINS,
)


class CudaKernels(GpuKernels):
    name = "cuda"
    kernel_set = CUDA_KERNELS
    capabilities = Capabilities(
        BackendKind.DEVICE,
        holds_fused_inputs=True,
        rollback=True,
        host_rows=True,
        parallel_uploads=PARALLEL_UPLOADS,
    )


class CudaBackend(CudaKernels, GpuBackend):
    """The CUDA backend on one GPU."""

    host: CudaHost
    compiled_folder = compiler.FOLDER

    def __init__(self, host: CudaHost, batch_invariant: bool = False) -> None:
        super().__init__(host, batch_invariant)
        self._uploader: Uploader | None = None

    def identity(self) -> str:
        return f"{self.describe()}, {release()}, {self.host.compiler}"

    def expect(self, weights: Iterable[Weight]) -> None:
        super().expect(weights)
        self._uploader = Uploader(self.host)

    def allocate(self, states: tuple[State, ...], layout: CacheLayout) -> GpuCache:
        self._uploader = None  # frees its memory
        return super().allocate(states, layout)

    def _write_matrix(
        self,
        weight: Weight,
        data: TensorData,
        rows_from: npt.NDArray[np.int64] | None,
        place: Slice,
    ) -> None:
        if self._uploader is None or not can_upload(data.type, weight.cols):
            super()._write_matrix(weight, data, rows_from, place)
            return
        n_rows = weight.planes * weight.rows
        if rows_from is not None:
            rows = data.read().reshape(-1, row_bytes(data.type, weight.cols))[rows_from]
            data = TensorData(data.type, data.shape, rows.reshape(-1))
        self._uploader.upload(data, n_rows, weight.cols, place)

    def reaches(self, devices: Sequence[Backend]) -> bool:
        """Return whether `devices` are CUDA GPUs that can write each other's memory."""
        from zinc.backends.cuda import peers

        gpus = _cuda_backends(devices)
        if len(gpus) < len(devices) or len(gpus) > MAX_PEERS:
            return False
        return peers.connect([gpu.host for gpu in gpus])

    def link(self, devices: Sequence[Backend], plan: SplitPlan, cache: Cache) -> PeerProgram:
        """Return a program whose GPUs exchange rows without the host."""
        return peer_program(_cuda_backends(devices), plan, cache)

    def measure(self) -> Roofline:
        from zinc.backends.cuda import limits

        return limits.measure(self.host)


def _cuda_backends(devices: Sequence[Backend]) -> list[CudaBackend]:
    return [cast(CudaBackend, x) for x in devices if isinstance(x, CudaBackend)]


_lock = threading.Lock()  # `functools.cache` does not lock


@functools.cache
def host_of(index: int) -> CudaHost:
    """Return the host of GPU `index`, which all backends on it share. Raises DeviceError."""
    from zinc.backends.cuda.host import CudaHost

    return CudaHost(candidates()[index])


def create(threads: int | None = None, options: Mapping[str, str] | None = None) -> CudaBackend:
    chosen = choose((options or {}).get("device", ""))
    with _lock:
        host = host_of(chosen.index)
    return CudaBackend(host, wants_batch_invariance(options))


def kernels(options: Mapping[str, str] | None = None) -> CudaKernels:
    return CudaKernels()


def is_installed() -> bool:
    """Return whether the packages of the extra `cuda` are installed."""
    try:
        return importlib.util.find_spec("cuda.bindings") is not None
    except ModuleNotFoundError:  # not even the package `cuda`
        return False


def devices() -> list[DeviceInfo]:
    if not is_installed():
        return []
    return [
        DeviceInfo(
            f"cuda:{c.index}", c.name, DeviceKind.DISCRETE, c.driver, c.missing, matrix_units=True
        )
        for c in candidates()
    ]
