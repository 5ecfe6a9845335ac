"""Selection of test cases: those that repeat the code of others run with `pytest --every` only.

The option is read at collection. Cases that are left out by default have the mark `every`. Of a
test with the mark `alike(n)`, n cases run by default, as far apart in their order as possible.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import pytest

EVERY = False  # set from the command line, before tests are imported


def examples(n: int) -> int:
    """Return the number of examples of a property test: an eighth of `n` by default."""
    return n if EVERY else -(-n // 8)


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


def by_default(values: Iterable[Any]) -> list[Any]:
    """Return those of `values`, the parameters of a test, that lack the mark `every`.

    If all have it, return all of them: pytest then deselects the test instead of skipping it.
    """
    found = list(values)
    return [x for x in found if not _is_for_every(x)] or found


def _is_for_every(value: Any) -> bool:
    """Return whether a parameter is a `pytest.param` with the mark `every`."""
    marks = getattr(value, "marks", ()) if isinstance(value, tuple) else ()
    return any(mark.name == pytest.mark.every.name for mark in marks)


def chosen(items: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield the cases that run by default of those without the mark `every`."""
    by_test: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        by_test[item.nodeid.partition("[")[0]].append(item)
    for cases in by_test.values():
        mark = cases[0].get_closest_marker("alike")
        n = min(mark.args[0], len(cases)) if mark else len(cases)
        yield from (cases[i * len(cases) // n] for i in range(n))
