"""A server for attacks; after each test it must still answer ordinary requests."""

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
    """Check after each attack that nothing is left in the server and that it answers."""
    yield
    if "server" in request.fixturenames:
        found: Running = request.getfixturevalue("server")
        found.wait_idle()
        answer = found.post("/v1/completions", {"prompt": "a", "max_tokens": 1})
        assert answer.status == 200
