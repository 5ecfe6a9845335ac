"""Results that take seconds and that all processes of a parallel test run share."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from typing import TypeVar

import pytest

from zinc.hub.lock import exclusive

T = TypeVar("T")


def once(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[], T]) -> T:
    """Return the result of `make`, which the first process of this test run calls.

    It is pickled in a file `name` that lives as long as the temporary folders of the run.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # each has its own folder
        folder = folder.parent
    path = folder / f"{name}.pickle"
    with exclusive(path.with_suffix(".lock")):
        if not path.exists():
            path.write_bytes(pickle.dumps(make()))
    found: T = pickle.loads(path.read_bytes())
    return found
