"""Errors of model names and downloads."""

from __future__ import annotations

from zinc.core.errors import ZincError


class MissingModelError(ZincError):
    """A model name is valid, and the model is not on this machine.

    `name` is the MODEL as the user wrote it, for `zinc pull`.
    """

    def __init__(self, name: str, why: str = "", hint: str = "") -> None:
        super().__init__(
            f"the model {name} is not on this machine", why, hint or f"run `zinc pull {name}`"
        )
        self.name = name


class ModelNameError(ZincError):
    """A model name cannot be understood, or names nothing that exists."""


class DownloadError(ZincError):
    """A server refused a file, or a transfer failed. Bytes received so far are kept."""


class ChecksumError(DownloadError):
    """A complete download has the wrong SHA-256. Its bytes are deleted."""
