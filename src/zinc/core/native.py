"""Panics of libraries written in Rust, as ordinary errors.

A panic arrives as pyo3's PanicException, which derives from BaseException: `except Exception` does
not see it, and a server would treat it as the end of the process. Code that calls such a library
catches BaseException and asks `is_panic`, or is decorated with `panics_refuse`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from zinc.core.errors import RequestError

P = ParamSpec("P")
R = TypeVar("R")


def is_panic(error: BaseException) -> bool:
    """Return whether `error` is a panic of a Rust library.

    Every extension module has a PanicException class of its own, so the name has to do.
    """
    kind = type(error)
    return kind.__name__ == "PanicException" and kind.__module__ == "pyo3_runtime"


def panics_refuse(what: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function that hands a request's input to a Rust library.

    A panic becomes a RequestError that says `what` cannot be done.
    """

    def decorate(call: Callable[P, R]) -> Callable[P, R]:
        @wraps(call)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return call(*args, **kwargs)
            except BaseException as error:
                if not is_panic(error):
                    raise
                raise RequestError(what, f"a library failed on it ({error})"[:300]) from error

        return guarded

    return decorate
