"""Errors: what happened, why, and what to do next.

Everything that a user can cause ends in one of these classes, each one sentence a part. The CLI
prints `str(error)` and exits with 1; the server maps the class to a status. Anything else that
escapes is a bug in zinc.
"""

from __future__ import annotations


class ZincError(Exception):
    """A failure that a user can act on.

    `what` says what failed, `why` gives the cause, `hint` the next step. Each is a clause without
    a final full stop; the message joins those that are given.
    """

    def __init__(self, what: str, why: str = "", hint: str = "") -> None:
        self.what = what.rstrip(".")
        self.why = why.rstrip(".")
        self.hint = hint.rstrip(".")
        super().__init__(self.message)

    @property
    def message(self) -> str:
        head = f"{self.what}: {self.why}" if self.why else self.what
        return f"{head}. {self.hint[0].upper()}{self.hint[1:]}." if self.hint else f"{head}."


class FormatError(ZincError):
    """A model file is truncated, corrupt or not what it claims to be."""


class UnsupportedError(ZincError):
    """The file or request is valid, but zinc has no code for it."""


class ModelError(ZincError):
    """Metadata and tensors of a model contradict each other, or one is missing."""


class TemplateError(ZincError):
    """A chat template is missing, or it failed on these messages."""


class RequestError(ZincError):
    """A request is not valid: an argument out of range, or a prompt longer than the context."""


class QueueFullError(ZincError):
    """Too many requests are waiting already; a later try may find room."""


class MemoryLimitError(ZincError):
    """What was asked for does not fit in memory."""


class DeviceError(ZincError):
    """A backend or device is missing, or failed."""
