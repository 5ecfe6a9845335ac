"""The header of a model file on a server, read without downloading the file.

`zinc pull` and `zinc show` compute from it how much memory a model needs before it is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from zinc.formats.gguf import GGUFFile
from zinc.formats.gguf_part import read_part
from zinc.formats.source import Source, Stamp
from zinc.hub.errors import DownloadError
from zinc.hub.transport import Patience, StatusError, TransientError, Transport, persist, read

_READ_BYTES = 1 << 20


class RemoteSource(Source):
    """A file on a server, read by byte ranges. describe: as in `Download`."""

    def __init__(
        self,
        transport: Transport,
        url: str,
        name: str,
        n_bytes: int,
        describe: Callable[[StatusError], DownloadError],
    ) -> None:
        self.path = Path(name)
        self.size = n_bytes
        self.opened = Stamp(0, 0, n_bytes, 0, 0)
        self._transport, self._url, self._describe = transport, url, describe

    def stamp(self) -> Stamp:
        """Return the stamp of the file. A file of a commit does not change, so it is constant."""
        return self.opened

    def read(self, start: int, n_bytes: int, what: str) -> bytes:
        """Return `n_bytes` of the file starting at `start`. Raises DownloadError."""
        patience = Patience(
            f"reading {what} of {self.path.name}",
            self._transport.pause_s,
            lambda why, seconds: None,
        )
        return persist(lambda: self._range(start, n_bytes), patience, self._describe)

    def read_into(self, target: NDArray[np.uint8], start: int, what: str) -> None:
        """Fill `target` with the bytes of the file starting at `start`. Raises DownloadError."""
        target[:] = np.frombuffer(self.read(start, target.nbytes, what), np.uint8)

    def _range(self, start: int, n_bytes: int) -> bytes:
        header = {
            "Range": f"bytes={start}-{start + n_bytes - 1}",
            "Accept-Encoding": "identity",
        }
        with self._transport.open(self._url, header) as response:
            # A server without ranges sends the file from its beginning.
            skipped = 0 if response.status == 206 else start
            data = bytearray()
            while len(data) < skipped + n_bytes:
                piece = read(response, min(_READ_BYTES, skipped + n_bytes - len(data)))
                if not piece:
                    raise TransientError(f"the connection was cut after {len(data):,} bytes")
                data += piece
        return bytes(data[skipped:])


def open_remote(sources: Sequence[Source]) -> GGUFFile:
    """Open the model with the parts `sources`. Raises FormatError as `GGUFFile.open` does."""
    return GGUFFile([read_part(source) for source in sources])
