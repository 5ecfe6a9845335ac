"""The listening socket of a cluster's address, which all of its fronts share.

The first front opens the socket. Later fronts receive it from a running front, through a Unix
socket in a folder of the user. All connections therefore wait in one queue, and none is refused
while fronts are replaced.

    folder/HOST-PORT-ID.sock    where a front gives its listening socket away
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from pathlib import Path

from zinc.core.errors import RequestError
from zinc.server.main import bind

_ANSWER_S = 10.0  # for another front to give its socket away
_HINT = (
    "choose another {port}, or stop what uses it; `zinc cluster down` stops a cluster, as is needed"
    " to change its {host}"
)


def open_listener(host: str, port: int, folder: Path) -> socket.socket:
    """Return a socket that listens on `host` and `port`, shared with other fronts if any run.

    folder: of all fronts of one cluster. Raises RequestError if the address cannot be used.
    """
    listeners = []
    for path in sorted(folder.glob(f"{host}-{port}-*.sock")):
        try:
            listeners.append(_received(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)  # its front has ended
        except OSError:
            continue  # it is stopping, or does not answer
    for other in listeners[1:]:
        other.close()
    return listeners[0] if listeners else bind(host, port, _HINT)


def _received(path: Path) -> socket.socket:
    """Return the listening socket of the front at `path`. Raises OSError."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(_ANSWER_S)
        peer.connect(str(path))
        _, handles, _, _ = socket.recv_fds(peer, 1, 1)
    if not handles:
        raise OSError("no socket was sent")
    return socket.socket(fileno=handles[0])


class Sharing:
    """Server that gives a listening socket to other fronts until it is closed."""

    def __init__(self, listener: socket.socket, host: str, port: int, folder: Path) -> None:
        self._path = folder / f"{host}-{port}-{secrets.token_hex(4)}.sock"
        self._door = socket.socket(socket.AF_UNIX)
        try:
            self._door.bind(str(self._path))
            self._door.listen()
        except OSError as error:
            self._door.close()
            raise RequestError(
                f"the fronts cannot share port {port}", str(error), f"check {folder}"
            ) from None
        self._door.setblocking(False)
        self._task = asyncio.create_task(self._give(listener.fileno()))
        # Not in `close`: the event loop would still watch the number of the closed socket.
        self._task.add_done_callback(lambda _: self._door.close())

    async def _give(self, handle: int) -> None:
        loop = asyncio.get_running_loop()
        while True:
            peer, _ = await loop.sock_accept(self._door)
            with peer, contextlib.suppress(OSError):
                socket.send_fds(peer, [b"\0"], [handle])

    def close(self) -> None:
        """Stop giving the socket away."""
        self._task.cancel()
        self._path.unlink(missing_ok=True)


def user_folder(folder: Path) -> Path:
    """Return `folder`, which only this user may use; it is created. Raises RequestError."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise RequestError(f"cannot use the folder {folder}", str(error), "remove it") from None
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise RequestError(
            f"cannot use the folder {folder}", "other users can access it", "remove it"
        )
    return folder
