"""Faults of a CUDA card fail requests and not the server. No card is needed."""

from __future__ import annotations

import pytest
from cuda_emulator.fake_driver import FakeDriver, install
from serving import Answer, Running, running

from zinc.engine.load.options import LoadOptions

LOAD = LoadOptions(backend="cuda", context=512)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    card = FakeDriver(idle=True)
    install(monkeypatch, card)
    return card


def ask(server: Running, **more: object) -> Answer:
    fields = {"prompt": "The sea is", "temperature": 0, "max_tokens": 8, "ignore_eos": True}
    return server.post("/v1/completions", {**fields, **more})


def test_memory_that_runs_out_fails_the_request_and_the_next_is_served(fake: FakeDriver) -> None:
    with running(load=LOAD) as server:
        assert ask(server).status == 200
        with fake.failing("OUT_OF_MEMORY", "cuMemAlloc", "cuGraphInstantiate"):
            answer = ask(server, prompt="The sea " * 60)  # these sizes are recorded anew
            assert answer.status == 503
            message = answer.json["error"]["message"]
            assert message.startswith("the device has no memory left")
            assert "--context" in message
            assert server.get("/health").status == 200
        server.wait_idle()
        assert ask(server, prompt="The sea " * 60).status == 200


def test_a_lost_device_ends_streams_with_the_cause_and_the_server_stops(fake: FakeDriver) -> None:
    calls = ("cuGraphLaunch", "cuEventSynchronize", "cuMemcpyHtoDAsync", "cuMemFree")
    with running(load=LOAD) as server:
        assert ask(server).status == 200
        with fake.failing("ECC_UNCORRECTABLE", *calls, after=60):
            stream = ask(server, stream=True, max_tokens=100)
            assert stream.status == 200
            assert len(stream.events) > 1
            message = stream.events[-1]["error"]["message"]
            assert message.startswith("the CUDA device was lost: the GPU has a memory fault")
            assert "start zinc again" in message
            for _ in range(2):
                later = ask(server)
                assert later.status == 500
                assert later.json["error"]["message"].startswith("the CUDA device was lost")
            assert server.get("/health").status == 200
            server.wait_idle()
