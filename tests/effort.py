"""Selection of test cases: those that repeat the code of others run with `pytest --every` only.

The option is read at collection; cases that are left out by default have the mark `every`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

EVERY = False  # set from the command line, before tests are imported


def examples(n: int) -> int:
    """Return the number of examples of a property test: a quarter of `n` by default."""
    return n if EVERY else -(-n // 4)


def on_backends(
    families: Iterable[str],
    backends: Collection[str],
    everywhere: Collection[str],
    always: Collection[str] = ("cpu",),
) -> list[Any]:
    """Return parameters (family, backend) for a test.

    By default, backends other than those in `always` run the families in `everywhere` only: they
    are slow and run the same code for the others.
    """
    return [
        pytest.param(
            family,
            backend,
            marks=() if backend in always or family in everywhere else pytest.mark.every,
        )
        for family in families
        for backend in backends
    ]
