"""How much of what is alike is tested: some of it, or with `pytest --every` all.

Tests decide when they are collected: whole cases that are left out have the mark `every`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

EVERY = False  # set from the command line, before tests are imported


def examples(n: int) -> int:
    """Examples of a property: a quarter of them."""
    return n if EVERY else -(-n // 4)


def on_backends(
    families: Iterable[str], backends: Collection[str], everywhere: Collection[str]
) -> list[Any]:
    """Pairs of family and backend: all on the CPU, elsewhere others than `everywhere` by --every.

    The code is the same for them, and slow there.
    """
    return [
        pytest.param(
            family,
            backend,
            marks=() if backend == "cpu" or family in everywhere else pytest.mark.every,
        )
        for family in families
        for backend in backends
    ]
