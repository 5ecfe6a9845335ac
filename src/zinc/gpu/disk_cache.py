"""Files of compiled kernels in the user's cache, which several processes may write at once."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path


def save(path: Path, data: bytes) -> None:
    """Write a cache file atomically. Errors are ignored, because a cache is optional."""
    partial = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            partial = file.name
            file.write(data)
        os.replace(partial, path)
    except OSError:
        if partial:
            with suppress(OSError):
                os.unlink(partial)
