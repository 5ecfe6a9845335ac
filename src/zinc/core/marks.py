"""Marks: empty files in the cache folder that record what need not be done again."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from zinc import __version__
from zinc.core.env import cache_folder


class Mark:
    """The mark of work whose result depends on `facts` and zinc's version.

    folder: name of a folder in the cache folder, whose deletion removes the mark. If the mark
    cannot be written, the work is done each time.
    """

    def __init__(self, folder: str, *facts: object) -> None:
        digest = hashlib.sha256(repr((__version__, *facts)).encode()).hexdigest()[:32]
        self.path: Path = cache_folder() / folder / f"{digest}.done"

    def is_set(self) -> bool:
        """Return whether `set` was called in this process or an earlier one.

        A mark in a folder that cannot be searched is not set.
        """
        return os.path.exists(self.path)  # Path.exists raises PermissionError for such a folder

    def set(self) -> None:
        """Write the file of the mark."""
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.touch()
