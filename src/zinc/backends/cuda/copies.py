"""Short copies in a recorded graph: by a kernel, which starts sooner than a copy engine.

The GPU reads and writes pinned memory of the host at its address there.
"""

from __future__ import annotations

from zinc.core.rounding import ceil_div
from zinc.gpu.arguments.structs import CopyArguments
from zinc.gpu.dispatch import Dispatch, KernelVariant

KERNEL = KernelVariant("copy", ())
MAX_BYTES = 64 << 10  # longer copies to the host are left to the copy engine
_WORD_BYTES, _THREADS = 4, 128  # as in kernels/copy.cu


def copy(source: int, target: int, n_bytes: int) -> Dispatch:
    """Return the dispatch that copies `n_bytes`, a multiple of four, between two addresses."""
    n_words, rest = divmod(n_bytes, _WORD_BYTES)
    assert not rest
    arguments = CopyArguments(step=0, source=source, target=target, n_words=n_words)
    return Dispatch(KERNEL, arguments, (ceil_div(n_words, _THREADS), 1, 1))
