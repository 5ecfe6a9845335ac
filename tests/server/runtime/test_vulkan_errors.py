"""GPU failures (out of memory, lost device) fail requests and not the server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from present import absent
from serving import Answer, Running, running

from zinc.backends.vulkan.device import open_device
from zinc.backends.vulkan.vk.library import check
from zinc.engine.load.options import LoadOptions

pytestmark = pytest.mark.skipif("vulkan" in absent(), reason=absent().get("vulkan", ""))

OUT_OF_DEVICE_MEMORY, DEVICE_LOST = -2, -4


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(load=LoadOptions(backend="vulkan", context=512)) as found:
        yield found


def failing(monkeypatch: pytest.MonkeyPatch, result: int, *calls: str, after: int = 0) -> None:
    """Make Vulkan calls return an error, at once or after a number of calls."""
    functions, made = open_device().vk, [0]
    for name in calls:

        def call(*arguments: object, name: str = name, was: object = getattr(functions, name)):
            made[0] += name == calls[0]
            return was(*arguments) if after and made[0] <= after else check(result, name)

        monkeypatch.setattr(functions, name, call)


def ask(server: Running, **more: object) -> Answer:
    fields = {"prompt": "The sea is", "temperature": 0, "max_tokens": 3, **more}
    return server.post("/v1/completions", fields)


def text(server: Running) -> str:
    answer = ask(server)
    assert answer.status == 200, answer.body
    return answer.json["choices"][0]["text"]


def test_memory_that_runs_out_fails_the_request_and_the_next_is_served(server, monkeypatch):
    before = text(server)
    with monkeypatch.context() as faults:
        # A different number of rows is recorded again.
        failing(faults, OUT_OF_DEVICE_MEMORY, "vkAllocateMemory", "vkAllocateCommandBuffers")
        answer = ask(server, prompt="The sea " * 60)
        assert answer.status == 503
        assert answer.json["error"]["message"].startswith("the device has no memory left")
        assert "--context" in answer.json["error"]["message"]
        assert server.get("/health").status == 200
    server.wait_idle()
    assert text(server) == before


def test_a_lost_device_ends_streams_with_the_cause_and_the_server_stays_up(server, monkeypatch):
    before = text(server)
    calls = ("vkQueueSubmit", "vkGetSemaphoreCounterValue", "vkWaitSemaphores")
    with monkeypatch.context() as faults:
        failing(faults, DEVICE_LOST, *calls, after=20)
        stream = ask(server, stream=True, max_tokens=100, ignore_eos=True)
        assert stream.status == 200
        assert len(stream.events) > 1
        message = stream.events[-1]["error"]["message"]
        assert message.startswith("the Vulkan device was lost")
        assert "start zinc again" in message
        later = ask(server)
        assert later.status == 500
        assert later.json["error"]["message"].startswith("the Vulkan device was lost")
        assert server.get("/health").status == 200
        server.wait_idle()
    assert text(server) == before, "the fault was only pretended"


def test_a_server_on_a_lost_device_stops_cleanly(monkeypatch):
    with running(load=LoadOptions(backend="vulkan", context=512)) as server:
        assert text(server)
        failing(monkeypatch, DEVICE_LOST, "vkQueueSubmit", "vkGetSemaphoreCounterValue")
        assert ask(server).status == 500
