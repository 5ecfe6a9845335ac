"""Errors that users can cause: what happened, why, and what to do next.

The CLI prints `error.in_options()` and exits with 1; the server maps the class to a status. Any
other exception that escapes is a bug in zinc.

A hint names a setting in braces, with or without a value: "choose {context=4096} or less". From
Python the message says `context=4096`, from the command line `--context 4096`.
"""

from __future__ import annotations

import re

_SETTING = re.compile(r"\{([a-z_]+)(?:=([\w.:,-]+))?\}")
_FULL_STOP = re.compile(r"(?<![\s./])\.+$")  # not the folders "." and ".."
# Settings that are not themselves an argument of `LLM`, and how Python code gives them.
_WITHIN = {
    "batch_invariant": 'options={{"batch_invariant": "true"}}',
    "cpu_moe": "DeviceMap(cpu_moe={})",
    "device": 'options={{"device": {}}}',
    "gpu_layers": "DeviceMap(gpu_layers={})",
    "raw": "generate(prompt)",
    "rope_always": "RopeScaling(always=True)",
    "rope_scale": "RopeScaling(factor={})",
    "shares": "DeviceMap(shares=(...))",
    "split": "DeviceMap(split={})",
    "rope_scaling": "rope=RopeScaling({})",
}


class ZincError(Exception):
    """A failure that a user can act on.

    what: the failure. why: its cause. hint: the next step, with settings in braces. Each is a
    clause without a full stop; `message` joins those that are not empty.
    """

    def __init__(self, what: str, why: str = "", hint: str = "") -> None:
        self.what = _FULL_STOP.sub("", what)
        self.why = _FULL_STOP.sub("", why)
        self.hint = _FULL_STOP.sub("", hint)
        super().__init__(self.message)

    @property
    def message(self) -> str:
        """The sentences, with settings as Python arguments."""
        return self._join(_SETTING.sub(_argument, self.hint))

    def in_options(self) -> str:
        """Return the sentences, with settings as command-line options."""
        return self._join(self.hint_in_options())

    def hint_in_options(self) -> str:
        """Return the hint alone, with settings as command-line options."""
        return _SETTING.sub(_option, self.hint)

    def _join(self, hint: str) -> str:
        head = f"{self.what}: {self.why}" if self.why else self.what
        return f"{head}. {hint[0].upper()}{hint[1:]}." if hint else f"{head}."


def next_step(error: OSError) -> str:
    """Return the hint of an error about a file that cannot be opened, or nothing."""
    match error:
        case FileNotFoundError() | NotADirectoryError() | IsADirectoryError():
            return "check the path"
        case PermissionError():
            return "check the permissions"
        case _:
            return ""


def with_article(value: object) -> str:
    """Return the type of a value as an error names it: "a dict"."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _argument(setting: re.Match[str]) -> str:
    """Return a setting as a Python argument."""
    name, value = setting[1], setting[2]
    quoted = "" if value is None else value if value.isdecimal() else f'"{value}"'
    within = _WITHIN[name].format(quoted or "...") if name in _WITHIN else f"{name}={quoted}"
    return f"`{within}`"


def _option(setting: re.Match[str]) -> str:
    """Return a setting as a command-line option."""
    option = "--" + setting[1].replace("_", "-")
    return option if setting[2] is None else f"{option} {setting[2]}"


class FormatError(ZincError):
    """A model file is truncated, corrupt or not what it claims to be."""


class UnsupportedError(ZincError):
    """The file or request is valid, but zinc has no code for it."""


class ModelError(ZincError):
    """Metadata and tensors of a model contradict each other, or one is missing."""


class TemplateError(ZincError):
    """A chat template is missing, or it failed on these messages."""


class RequestError(ZincError):
    """A request is not valid: an argument out of range, or a prompt longer than the context.

    argument: the argument of SamplingParams that is wrong, for errors about one ("" otherwise).
    """

    def __init__(self, what: str, why: str = "", hint: str = "", *, argument: str = "") -> None:
        super().__init__(what, why, hint)
        self.argument = argument


class TextTooLongError(RequestError):
    """A text has more tokens than there is room for.

    `n_tokens` is the exact token count if `is_exact`, otherwise a lower bound.
    """

    def __init__(self, n_tokens: int, limit: int, *, is_exact: bool = False) -> None:
        number = str(n_tokens) if is_exact else f"at least {n_tokens}"
        super().__init__(
            "the text is too long",
            f"it has {number} tokens, and there is room for {limit}",
            "shorten it, or use a larger context",
        )
        self.n_tokens = n_tokens
        self.limit = limit
        self.is_exact = is_exact


class QueueFullError(ZincError):
    """Too many requests are waiting; a later attempt may succeed."""


class MemoryLimitError(ZincError):
    """A model, context or request does not fit in memory."""


class DeviceError(ZincError):
    """A backend or device is missing, or failed."""
