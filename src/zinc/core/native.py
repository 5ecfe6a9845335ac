"""Detection of panics in Rust libraries.

A panic arrives as pyo3's PanicException, which derives from BaseException. `except Exception` does
not catch it, and a server would treat it as the end of the process. Code that calls such a library
catches BaseException and checks it with `is_panic`.
"""

from __future__ import annotations


def is_panic(error: BaseException) -> bool:
    """Return whether `error` is a panic of a Rust library.

    Each extension module has its own PanicException class, so the name is compared.
    """
    kind = type(error)
    return kind.__name__ == "PanicException" and kind.__module__ == "pyo3_runtime"
