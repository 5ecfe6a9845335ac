"""One server for all tests of this folder, and a check after each that nothing is left in it."""

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
    """After each test on the shared server, no sequence runs and no block is held.

    Nor is a method of an engine replaced: once its own, it would hide what `brake` does to all.
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
    """Sequences that were ended before they were done, as they are."""
    cancel, found = Engine.cancel, list[Sequence]()

    def noted(engine: Engine, sequence: Sequence, reason: str = "cancelled") -> None:
        if reason == "cancelled" and sequence.finish_reason is None:
            found.append(sequence)
        cancel(engine, sequence, reason)

    monkeypatch.setattr(Engine, "cancel", noted)
    return found


@pytest.fixture
def brake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Brake]:
    """Holds every engine while a test wants it to, and no longer than the test."""
    found = brake_engines(monkeypatch)
    yield found
    found.release()


@pytest.fixture(scope="session")
def llm() -> Iterator[LLM]:
    """The same model, without a server around it."""
    with LLM(backend=LOAD.backend, threads=LOAD.threads) as found:
        yield found
