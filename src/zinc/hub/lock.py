"""A lock file, held by one process or thread at a time and released when the process ends."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL_S = 0.1

if sys.platform == "win32":
    import msvcrt

    def _try_lock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _try_lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def exclusive(path: Path, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock of the file `path`, which is created if need be.

    on_wait: called once if another holds the lock. Raises OSError if the file cannot be created.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        is_waiting = False
        while True:
            try:
                _try_lock(descriptor)
                break
            except OSError:
                if not is_waiting:
                    on_wait()
                is_waiting = True
                time.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)
