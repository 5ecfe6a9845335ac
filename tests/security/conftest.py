"""A real server for attacks, and a look at whether it answers ordinary requests afterwards."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "server"))

from serving import Running, running


@pytest.fixture(scope="session")
def server() -> Iterator[Running]:
    with running() as found:
        yield found


@pytest.fixture(autouse=True)
def _still_serves(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each attack on the shared server nothing is left in it, and it answers."""
    yield
    if "server" in request.fixturenames:
        found: Running = request.getfixturevalue("server")
        found.wait_idle()
        answer = found.post("/v1/completions", {"prompt": "a", "max_tokens": 1})
        assert answer.status == 200
