"""A server that all tests of this folder share; each test must leave nothing behind in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from serving import LOAD, Brake, Running, brake_engines, running

from zinc import LLM
from zinc.engine.engine import Engine
from zinc.engine.sequence import Sequence


@pytest.fixture(scope="session")
def server() -> Iterator[Running]:
    with running() as found:
        yield found


@pytest.fixture(autouse=True)
def _nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check after each test on the shared server that no sequence runs and no block is in use.

    Methods of an engine must not stay replaced either, since they would bypass `brake`.
    """
    yield
    if "server" in request.fixturenames:
        server: Running = request.getfixturevalue("server")
        server.wait_idle()
        assert server.application.pool is not None
        for model in server.application.pool.loaded:
            assert not any(map(callable, vars(model.llm.engine).values()))


@pytest.fixture
def cancelled(monkeypatch: pytest.MonkeyPatch) -> list[Sequence]:
    """Collect the sequences that are cancelled before their end."""
    cancel, found = Engine.cancel, list[Sequence]()

    def noted(engine: Engine, sequence: Sequence, reason: str = "cancelled") -> None:
        if reason == "cancelled" and sequence.finish_reason is None:
            found.append(sequence)
        cancel(engine, sequence, reason)

    monkeypatch.setattr(Engine, "cancel", noted)
    return found


@pytest.fixture
def brake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Brake]:
    """Return a brake that can stop every engine until the end of the test."""
    found = brake_engines(monkeypatch)
    yield found
    found.release()


@pytest.fixture(scope="session")
def llm() -> Iterator[LLM]:
    """The model of the shared server, loaded without a server."""
    with LLM(backend=LOAD.backend, threads=LOAD.threads) as found:
        yield found
