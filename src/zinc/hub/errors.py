"""Errors of model names and downloads."""

from __future__ import annotations

from zinc.core.errors import ZincError


class MissingModelError(ZincError):
    """A valid model name whose model is not on this machine.

    `name` is the MODEL as the user wrote it, for `zinc pull`.
    """

    def __init__(self, name: str, why: str = "", hint: str = "") -> None:
        super().__init__(
            f"the model {name} is not on this machine", why, hint or f"run `zinc pull {name}`"
        )
        self.name = name


class ModelNameError(ZincError):
    """A model name that cannot be understood, or names nothing that exists."""


class DownloadError(ZincError):
    """A failed transfer, or a file that the server refuses. Bytes received so far are kept."""


class ChecksumError(DownloadError):
    """A complete download with the wrong SHA-256. Its bytes are deleted."""
