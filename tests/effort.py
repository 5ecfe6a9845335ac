"""How much of what is alike is tested: some of it, or with `pytest --every` all.

Tests decide when they are collected: whole cases that are left out have the mark `every`.
"""

from __future__ import annotations

EVERY = False  # set from the command line, before tests are imported


def examples(n: int) -> int:
    """Examples of a property: a quarter of them."""
    return n if EVERY else -(-n // 4)
