"""Upload of weights: blocks are copied as they lie in the file, and a kernel packs them.

A file is read straight into pinned memory. While the device copies and packs one part, other
threads read the next ones, so neither numpy nor a second copy in memory limits the rate.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from zinc.backends.api import TensorData
from zinc.core.dataclass import dataclass
from zinc.core.rounding import ceil_div, round_up
from zinc.gpu.arguments.structs import PackArguments
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.memory import Buffer, Slice
from zinc.gpu.packing import FLOATS, LAYOUTS, offsets
from zinc.quant.blocks import BLOCKS, GGMLType

if TYPE_CHECKING:
    from zinc.backends.cuda.host import CudaHost
    from zinc.backends.cuda.staging import StagingBuffer

THREADS = 256  # per block of kernels/pack.cu
_T = GGMLType
# Types that kernels/pack.cu knows.
PACKED = (
    *(_T.Q4_0, _T.Q4_1, _T.Q5_0, _T.Q5_1, _T.Q8_0, _T.IQ4_NL, _T.MXFP4, _T.IQ4_XS),
    *(_T.Q2_K, _T.Q3_K, _T.Q4_K, _T.Q5_K, _T.Q6_K),
)


def can_upload(type: GGMLType, cols: int) -> bool:
    """Return whether `Uploader` takes rows of `cols` elements of a type."""
    return type in PACKED or (type in FLOATS and round_up(cols, FLOATS[type]) == cols)


@functools.cache
def pack_kernel(type: GGMLType) -> KernelVariant:
    """Return the kernel that packs blocks of a type."""
    file, packed = BLOCKS[type], LAYOUTS[type]
    sizes = (
        ("FORMAT", int(type)),
        ("BLOCK_BYTES", file.block_bytes),
        ("Q_WORDS", packed.q // 4),
        ("H_WORDS", packed.h // 4),
        ("S_BYTES", packed.s),
    )
    fields = ((f"AT_{field.name.upper()}", field.offset) for field in file.fields)
    return KernelVariant("pack", (*sizes, *fields))


class Uploader:
    """An uploader that copies matrices to a device and packs them there. It is thread-safe."""

    def __init__(self, host: CudaHost) -> None:
        self._host = host
        self._raw: dict[StagingBuffer, Buffer] = {}  # blocks on the device that are not packed yet

    def upload(self, data: TensorData, n_rows: int, cols: int, target: Slice) -> None:
        """Write a matrix of `n_rows` rows to `target`.

        Raises FormatError, DeviceError or MemoryLimitError.
        """
        layout, staging = BLOCKS[data.type], self._host.memory.staging
        n_bytes = n_rows * cols // layout.block_size * layout.block_bytes
        streams = _Streams.of(data.type, n_rows, cols, target.address)
        # A reader may hash a part until it reads the next one, so the buffer is not given back yet.
        with staging.take() as buffer:
            step = len(buffer.bytes) // layout.block_bytes * layout.block_bytes
            for start in range(0, n_bytes, step):
                staging.wait(buffer)
                part = data.read_part(start, min(step, n_bytes - start), buffer.bytes)
                if part.ctypes.data != buffer.address:
                    buffer.bytes[: len(part)] = part
                if data.type in FLOATS:
                    self._host.memory.to_device(target.address + start, buffer.address, len(part))
                else:
                    self._pack(data.type, buffer, len(part), streams, start)
                staging.mark(buffer)

    def _pack(
        self, type: GGMLType, buffer: StagingBuffer, n_bytes: int, to: _Streams, start: int
    ) -> None:
        """Queue copying and packing of the blocks in `buffer`; `start` is their place in a tensor.

        The streams of the whole tensor are `to`.
        """
        if buffer not in self._raw:
            self._raw[buffer] = self._host.buffer(len(buffer.bytes))
        raw = self._raw[buffer].address
        block_bytes, packed = BLOCKS[type].block_bytes, LAYOUTS[type]
        first, n_blocks = start // block_bytes, n_bytes // block_bytes
        arguments = PackArguments(
            step=0,
            blocks=raw,
            q=to.q + first * packed.q,
            h=to.h + first * packed.h,
            s=to.s + first * packed.s,
            n_blocks=n_blocks,
        )
        items = packed.q // 4 + packed.h // 4 + packed.s
        groups = (ceil_div(n_blocks * items, THREADS), 1, 1)
        kernel = pack_kernel(type)
        self._host.compile([kernel])
        self._host.memory.to_device(raw, buffer.address, n_bytes)
        self._host.launch(Dispatch(kernel, arguments, groups))


@dataclass(frozen=True, slots=True)
class _Streams:
    """Addresses of the streams of a packed matrix."""

    q: int
    h: int
    s: int

    @classmethod
    def of(cls, type: GGMLType, n_rows: int, cols: int, address: int) -> _Streams:
        at = offsets(type, n_rows, cols)
        return cls(address, address + at.h, address + at.s + at.codebook)
