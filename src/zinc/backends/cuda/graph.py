"""Dispatches recorded as a CUDA graph, which is launched again for each step.

Kernels use programmatic dependent launch if the GPU supports it. A kernel then starts while the
last blocks of the kernel before it still run. It loads weights first, and waits for the end of the
earlier kernel before it reads its inputs (`waitForInputs` in kernels/prelude.cuh).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from zinc.backends.api import StepCounts
from zinc.backends.cuda import copies
from zinc.backends.cuda.driver import checked, driver
from zinc.backends.cuda.loader import KernelLoader, kernel_parameters
from zinc.gpu.dispatch import Dispatch
from zinc.gpu.graph import DispatchGraph
from zinc.gpu.host import Download, Upload

STARTS_EARLY = True  # set to False to check whether a race is due to early starts


class GraphRecording:
    """A `zinc.gpu.host.Recording` as an instantiated CUDA graph.

    graph: instantiated, destroyed with the recording. downloads, upload: its copies, whose buffers
    the recording keeps. launch: queues the graph and returns a ticket.
    """

    def __init__(
        self,
        graph: Any,
        counts: StepCounts,
        downloads: Sequence[Download],
        upload: Upload | None,
        launch: Callable[[Any], int],
    ) -> None:
        self._graph, self.counts = graph, counts
        self._copies, self._launch = (downloads, upload), launch
        weakref.finalize(self, driver().cuGraphExecDestroy, graph).atexit = False

    def submit(self) -> int:
        return self._launch(self._graph)


class GraphBuilder:
    """A builder of CUDA graphs from the dispatch graphs of a device.

    context: of the device. starts_early: use programmatic dependent launch.
    """

    def __init__(self, kernels: KernelLoader, context: Any, starts_early: bool) -> None:
        self._kernels, self._context, self._starts_early = kernels, context, starts_early

    def instantiate(
        self, graph: DispatchGraph, downloads: Sequence[Download], upload: Upload | None
    ) -> Any:
        """Return an instantiated graph of the upload, the dispatches and then the downloads.

        Raises DeviceError.
        """
        cuda = driver()
        made = checked(cuda.cuGraphCreate(0), "cuGraphCreate")
        try:
            self._fill(cuda, made, graph, downloads, upload)
            return checked(cuda.cuGraphInstantiate(made, 0), "cuGraphInstantiate")
        finally:
            cuda.cuGraphDestroy(made)

    def _fill(
        self,
        cuda: Any,
        made: Any,
        graph: DispatchGraph,
        downloads: Sequence[Download],
        upload: Upload | None,
    ) -> None:
        """Add the upload, each dispatch and then the downloads to the graph `made`."""
        first = []
        if upload is not None:
            # Kernels may read the step's data before `waitForInputs`. So the kernels that depend on
            # no other kernel start after the whole copy, and the rest start after those.
            copy = copies.copy(upload.source.handle, upload.source.address, upload.n_bytes)
            first.append(self._kernel(cuda, made, copy, []))
        edges = graph.edges()
        before: list[list[int]] = [[] for _ in graph.nodes]
        for earlier, later in edges:
            before[later].append(earlier)
        nodes: list[Any] = []
        for node, after in zip(graph.nodes, before, strict=True):
            nodes.append(self._kernel(cuda, made, node.dispatch, [] if after else first))
            self._connect(cuda, made, [nodes[i] for i in after], nodes[-1])
        inner = {earlier for earlier, _ in edges}
        last = [node for i, node in enumerate(nodes) if i not in inner]
        for download in downloads:
            self._download(cuda, made, last, download)

    def _kernel(self, cuda: Any, made: Any, dispatch: Dispatch, after: list[Any]) -> Any:
        """Add a kernel that starts when the nodes `after` have ended."""
        kernel = self._kernels[dispatch.kernel]
        # The driver copies the parameters when it makes the node.
        pointers, _arguments = kernel_parameters(dispatch)
        params = cuda.CUDA_KERNEL_NODE_PARAMS()
        params.func = kernel.function
        params.gridDimX, params.gridDimY, params.gridDimZ = dispatch.groups
        params.blockDimX, params.blockDimY, params.blockDimZ = kernel.threads, 1, 1
        params.sharedMemBytes = dispatch.kernel.shared_bytes
        params.kernelParams = pointers
        node = cuda.cuGraphAddKernelNode(made, after, len(after), params)
        return checked(node, f"recording {dispatch.kernel.name}")

    def _connect(self, cuda: Any, made: Any, after: list[Any], node: Any) -> None:
        """Add the edges from the kernels `after`, which the kernel `node` waits for."""
        if not after:
            return
        edge = cuda.CUgraphEdgeData()
        if STARTS_EARLY and self._starts_early:
            kind = cuda.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC
            edge.type = int(kind)
            edge.from_port = int(cuda.CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC)
        edges, n = [edge] * len(after), len(after)
        added = cuda.cuGraphAddDependencies(made, after, [node] * n, edges, n)
        checked(added, "cuGraphAddDependencies")

    def _download(self, cuda: Any, made: Any, after: list[Any], download: Download) -> None:
        """Add a copy to the host after the kernels `after`."""
        source = download.source.address + download.offset
        if download.n_bytes <= copies.MAX_BYTES:
            copy = copies.copy(source, download.target.address, download.n_bytes)
            self._connect(cuda, made, after, self._kernel(cuda, made, copy, []))
            return
        assert download.target.bytes is not None
        params = cuda.CUDA_MEMCPY3D()
        params.srcMemoryType = cuda.CUmemorytype.CU_MEMORYTYPE_DEVICE
        params.srcDevice = cuda.CUdeviceptr(source)
        params.dstMemoryType = cuda.CUmemorytype.CU_MEMORYTYPE_HOST
        params.dstHost = download.target.bytes.ctypes.data
        params.WidthInBytes, params.Height, params.Depth = download.n_bytes, 1, 1
        node = cuda.cuGraphAddMemcpyNode(made, after, len(after), params, self._context)
        checked(node, "cuGraphAddMemcpyNode")
