"""Selection of test cases by the marks `every` and `alike`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import effort
import pytest


def cases(test: str, n: int, alike: int | None) -> list[Any]:
    """Return `n` cases of a test, which has the mark `alike` if that is given."""
    mark = None if alike is None else SimpleNamespace(args=(alike,))
    return [
        SimpleNamespace(nodeid=f"{test}[{i}]", get_closest_marker={"alike": mark}.get)
        for i in range(n)
    ]


@pytest.mark.parametrize(
    ("n", "alike", "expected"),
    [(6, None, range(6)), (6, 3, [0, 2, 4]), (7, 3, [0, 2, 4]), (2, 5, [0, 1]), (5, 1, [0])],
)
def test_cases_far_apart_are_chosen(n: int, alike: int | None, expected: Any) -> None:
    others = cases("other", 4, None)
    chosen = list(effort.chosen([*cases("test", n, alike), *others]))
    assert [x.nodeid for x in chosen] == [
        *(f"test[{i}]" for i in expected),
        *(x.nodeid for x in others),
    ]


def test_cases_for_every_are_left_out_unless_they_are_all() -> None:
    slow = [pytest.param(i, marks=pytest.mark.every) for i in range(2)]
    other = pytest.param(2, marks=pytest.mark.skip)
    assert effort.by_default(iter([*slow, 3, (4, 5), other])) == [3, (4, 5), other]
    assert effort.by_default(slow) == slow
