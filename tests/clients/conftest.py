"""Client libraries against a running server; those not installed are skipped.

The libraries conflict with each other, so each is installed into a folder of its own and put on
PYTHONPATH (CONTRIBUTING.md). Their own warnings are not errors here.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from server.serving import Running, running

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if str(item.path).startswith(f"{HERE}{os.sep}"):
            item.add_marker(pytest.mark.filterwarnings("ignore"))


@pytest.fixture(scope="session")
def server() -> Iterator[Running]:
    with running() as found:
        yield found


@pytest.fixture(autouse=True)
def _nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check after each test that no sequence runs and no cache block is in use."""
    yield
    gc.collect()  # close connections that a library left open, and their warnings, within this test
    request.getfixturevalue("server").wait_idle()


@pytest.fixture
def loop() -> Iterator[asyncio.Runner]:
    """Return an event loop for the whole test: a client must be closed in the loop it ran in."""
    with asyncio.Runner() as found:
        yield found


@pytest.fixture
def url(server: Running, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of the OpenAI API, with no keys or URLs in the environment."""
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    return f"{server.url}/v1"
