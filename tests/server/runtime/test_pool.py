"""Several models: loaded on request, unloaded when idle or to free memory."""

from __future__ import annotations

import asyncio
import gc
import shutil
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from serving import LOAD, PATIENCE_S, Brake, Running, running, wait_for

from zinc import LLM
from zinc.core.errors import FormatError, MemoryLimitError
from zinc.engine.load.files import EMBEDDED_MODEL
from zinc.engine.load.options import LoadOptions
from zinc.server import main
from zinc.server.config import ModelSource, ServerConfig
from zinc.server.errors import ApiError
from zinc.server.runtime import pool as pool_module
from zinc.server.runtime.entry import Entry, file_bytes
from zinc.server.runtime.runner import Observer, Runner

ALICE, BOB = ModelSource("alice", None), ModelSource("bob", EMBEDDED_MODEL)
HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3, "temperature": 0}


def states(server: Running) -> dict[str, str]:
    return {row["id"]: row["state"] for row in server.get("/v1/models").json["data"]}


def test_models_are_loaded_on_request():
    with running(models=(ALICE, BOB)) as server:
        assert states(server) == {"alice": "loaded", "bob": "unloaded"}
        assert server.post("/v1/chat/completions", HELLO).json["model"] == "alice"
        found = server.post("/v1/chat/completions", {**HELLO, "model": "bob"})
        assert found.json["model"] == "bob"
        assert states(server) == {"alice": "loaded", "bob": "loaded"}
        assert server.post("/models/unload", {"model": "bob"}).status == 200
        assert states(server) == {"alice": "loaded", "bob": "unloaded"}
        assert server.post("/models/load", {"model": "bob"}).json == {"success": True}
        assert states(server)["bob"] == "loaded"
        assert server.get("/props?model=bob").json["model_alias"] == "bob"


def test_many_clients_load_a_model_once(monkeypatch: pytest.MonkeyPatch):
    loads = []
    load = pool_module.load_llm

    def counted(options: LoadOptions, *more: Any) -> Any:
        loads.append(options.path)
        return load(options, *more)

    monkeypatch.setattr(pool_module, "load_llm", counted)
    with running(models=(ALICE, BOB)) as server, ThreadPoolExecutor(8) as pool:
        fields = {**HELLO, "model": "bob"}
        found = list(pool.map(lambda _: server.post("/v1/chat/completions", fields), range(8)))
        assert {each.status for each in found} == {200}
        assert len(loads) == 2


def test_an_idle_model_is_unloaded_and_loaded_again():
    with running(ttl_s=0.3) as server:
        assert server.post("/v1/chat/completions", HELLO).status == 200
        wait_for(lambda: states(server) == {"demo": "unloaded"})
        assert server.get("/health").status == 200
        assert server.post("/v1/chat/completions", HELLO).status == 200


def test_a_model_in_use_is_not_unloaded(brake: Brake):
    brake.hold()
    with running(ttl_s=0.2) as server, ThreadPoolExecutor(1) as pool:
        fields = {"prompt": "x", "n_predict": 20, "ignore_eos": True}
        answer = pool.submit(server.post, "/completion", fields)
        wait_for(lambda: server.live() == 1)
        time.sleep(0.6)
        assert server.post("/models/unload", {"model": "demo"}).status == 409
        brake.release()
        assert answer.result(PATIENCE_S).json["tokens_predicted"] == 20


def test_a_model_that_is_used_while_another_one_loads_stays_loaded(
    monkeypatch: pytest.MonkeyPatch,
):
    """It is to be unloaded, but not before the other one is loaded."""
    with running(models=(ALICE, BOB), ttl_s=1000) as server, ThreadPoolExecutor(1) as clients:
        pool = server.application.pool
        assert pool is not None
        with slow_loading(monkeypatch) as go:
            answer = clients.submit(server.post, "/v1/chat/completions", {**HELLO, "model": "bob"})
            wait_for(lambda: states(server)["bob"] == "loading")
            server.call(lambda: setattr(pool.named("alice"), "last_used", -1e9))
            wait_for(lambda: pool._loading._waiters)  # its turn to be unloaded comes next
            assert server.post("/v1/chat/completions", HELLO).status == 200
            go.set()
        assert answer.result(PATIENCE_S).status == 200
        assert states(server) == {"alice": "loaded", "bob": "loaded"}


def test_idle_models_are_unloaded_to_free_memory():
    with running(models=(ALICE, BOB), memory_budget_bytes=80_000_000) as server:
        for name, others in (("bob", "alice"), ("alice", "bob")):
            found = server.post("/v1/chat/completions", {**HELLO, "model": name})
            assert found.status == 200
            assert states(server) == {name: "loaded", others: "unloaded"}


def test_a_model_larger_than_the_budget_is_loaded_alone_with_a_warning(caplog):
    with (
        caplog.at_level("WARNING", logger="zinc.server"),
        running(models=(ALICE, BOB), memory_budget_bytes=1_000_000) as server,
    ):
        assert server.post("/v1/chat/completions", {**HELLO, "model": "bob"}).status == 200
        assert states(server) == {"alice": "unloaded", "bob": "loaded"}
    assert "more than the memory budget of 1 MB" in caplog.text


def test_a_load_waits_for_a_model_in_use_or_gives_up(brake: Brake):
    brake.hold()
    settings = {"models": (ALICE, BOB), "memory_budget_bytes": 80_000_000, "load_wait_s": 0.3}
    with running(**settings) as server, ThreadPoolExecutor(1) as pool:
        long = {"prompt": "x", "n_predict": 20, "ignore_eos": True, "model": "alice"}
        answer = pool.submit(server.post, "/completion", long)
        wait_for(lambda: server.live() == 1)
        found = server.post("/v1/chat/completions", {**HELLO, "model": "bob"})
        assert found.status == 503
        assert found.json["error"]["code"] == "model_loading"
        assert found.headers["retry-after"]
        brake.release()
        assert answer.result(PATIENCE_S).json["tokens_predicted"] == 20
        wait_for(lambda: server.post(
            "/v1/chat/completions", {**HELLO, "model": "bob"}).status == 200)  # fmt: skip


@contextmanager
def slow_loading(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    go = threading.Event()
    load = pool_module.load_llm

    def waiting(options: LoadOptions, progress: Callable[[int, int], None]) -> Any:
        progress(1, 4)
        assert go.wait(PATIENCE_S)
        return load(options, progress)

    monkeypatch.setattr(pool_module, "load_llm", waiting)
    try:
        yield go
    finally:
        go.set()


def test_requests_while_the_server_starts(monkeypatch: pytest.MonkeyPatch):
    with slow_loading(monkeypatch) as go, running(wait=False) as server:
        wait_for(lambda: "progress" in server.get("/v1/models").json["data"][0])
        row = server.get("/v1/models").json["data"][0]
        assert (row["state"], row["progress"]) == ("loading", 0.25)
        assert server.get("/health").status == 503
        found = server.post("/v1/chat/completions", HELLO)
        assert found.status == 503
        assert found.json["error"]["code"] == "model_loading"
        assert found.headers["retry-after"] == "1"
        go.set()
        wait_for(lambda: server.get("/health").status == 200)
        assert server.post("/v1/chat/completions", HELLO).status == 200


def test_a_load_is_not_restarted_after_a_client_gave_up(
    monkeypatch: pytest.MonkeyPatch,
):
    with running(models=(ALICE, BOB), load_wait_s=0.2) as server:
        loads = []
        with slow_loading(monkeypatch) as go:
            load = pool_module.load_llm

            def counted(options: LoadOptions, *more: Any) -> Any:
                loads.append(options.path)
                return load(options, *more)

            monkeypatch.setattr(pool_module, "load_llm", counted)
            for _ in range(3):
                found = server.post("/v1/chat/completions", {**HELLO, "model": "bob"})
                assert found.status == 503
                assert found.json["error"]["code"] == "model_loading"
                assert states(server)["bob"] == "loading"
            go.set()
            wait_for(lambda: states(server)["bob"] == "loaded")
        assert server.post("/v1/chat/completions", {**HELLO, "model": "bob"}).status == 200
        assert len(loads) == 1


def test_a_closed_pool_starts_no_load(monkeypatch: pytest.MonkeyPatch):
    """A request may still wait for the load of another model."""
    loads = []
    go = threading.Event()

    def waiting(options: LoadOptions, *_: Any) -> Any:
        loads.append(options.path)
        go.wait(PATIENCE_S)
        raise FormatError("nothing was loaded")

    async def close_while_loading() -> list[Any]:
        async def borrow(name: str) -> None:
            async with pool.use(name):
                pass

        entries = [Entry(ALICE), Entry(BOB)]
        pool = pool_module.ModelPool(ServerConfig((ALICE, BOB)), entries, lambda _: Observer())
        tasks = [asyncio.create_task(borrow(name)) for name in ("alice", "bob")]
        while not loads:
            await asyncio.sleep(0.01)
        closing = asyncio.create_task(pool.close())
        done = await asyncio.gather(*tasks, return_exceptions=True)
        await closing
        go.set()
        return done

    monkeypatch.setattr(pool_module, "load_llm", waiting)
    errors = asyncio.run(asyncio.wait_for(close_while_loading(), PATIENCE_S))
    assert [(type(e), e.status) for e in errors] == [(ApiError, 503)] * 2
    assert len(loads) == 1


def test_shutdown_ends_requests_that_wait_for_a_model(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(main, "_ERROR_EVENT_S", PATIENCE_S)
    with running(models=(ALICE, BOB), grace_s=0.2) as server, ThreadPoolExecutor(1) as pool:
        with slow_loading(monkeypatch):
            answer = pool.submit(server.post, "/v1/chat/completions", {**HELLO, "model": "bob"})
            wait_for(lambda: states(server)["bob"] == "loading")
            server.server.should_exit = True
            found = answer.result(PATIENCE_S)
        assert found.status == 503
        assert "the server is shutting down" in found.json["error"]["message"]
        assert found.headers["retry-after"]


def test_a_failed_load_frees_its_memory(monkeypatch: pytest.MonkeyPatch):
    """The stored error must not keep references to weights."""

    class Weights:
        pass

    made = []

    def no_memory(*_: Any) -> Any:
        weights = Weights()
        made.append(weakref.ref(weights))
        raise MemoryLimitError("the cache does not fit", "the device is full", "free some")

    with running(models=(ALICE, BOB)) as server:
        with monkeypatch.context() as fault:
            fault.setattr(pool_module, "load_llm", no_memory)
            found = server.post("/v1/chat/completions", {**HELLO, "model": "bob"})
            assert found.status == 500
        (row,) = [r for r in server.get("/v1/models").json["data"] if r["id"] == "bob"]
        assert "the device is full" in row["error"]
        # The loading thread may end a moment after the response.
        wait_for(lambda: gc.collect() >= 0 and made[0]() is None)
        assert server.post("/v1/chat/completions", {**HELLO, "model": "bob"}).status == 200


def test_a_model_that_cannot_be_closed_does_not_keep_others_loaded(
    monkeypatch: pytest.MonkeyPatch,
):
    close: Callable[[LLM], None] = LLM.close
    broken: list[LLM] = []

    def close_all_but_one(llm: LLM) -> None:
        if not broken:
            broken.append(llm)
            raise OSError("the disk is gone")
        close(llm)

    monkeypatch.setattr(LLM, "close", close_all_but_one)
    with running(models=(ALICE, BOB), ttl_s=0.3) as server:
        assert server.post("/models/load", {"model": "bob"}).status == 200
        wait_for(lambda: states(server) == {"alice": "unloaded", "bob": "unloaded"})
        assert server.post("/v1/chat/completions", HELLO).status == 200
    assert len(broken) == 1
    close(broken[0])


def test_models_may_change_while_an_idle_one_is_unloaded(monkeypatch: pytest.MonkeyPatch):
    close = LLM.close

    def slow_close(llm: LLM) -> None:
        pool = server.application.pool
        assert pool is not None
        name = f"more {len(pool.entries)}"
        server.call(lambda: pool.add(replace(ALICE, name=name)))
        close(llm)

    with running(models=(ALICE, BOB), ttl_s=0.3) as server:
        monkeypatch.setattr(LLM, "close", slow_close)
        for name in ("alice", "bob"):
            server.post("/models/load", {"model": name})
            wait_for(lambda name=name: states(server)[name] == "unloaded")
        wait_for(lambda: len(states(server)) >= 4)  # more if one was idle before it was asked for


def test_shutdown_waits_for_a_model_that_is_being_unloaded(
    monkeypatch: pytest.MonkeyPatch,
):
    end, close = Runner.close, LLM.close
    ending, go = threading.Event(), threading.Event()
    closed: list[LLM] = []

    async def slow_end(runner: Runner) -> None:
        ending.set()
        assert await asyncio.to_thread(go.wait, PATIENCE_S)
        await end(runner)

    def counted_close(llm: LLM) -> None:
        closed.append(llm)
        close(llm)

    monkeypatch.setattr(Runner, "close", slow_end)
    monkeypatch.setattr(LLM, "close", counted_close)
    with running(ttl_s=0.2):
        assert ending.wait(PATIENCE_S)
        threading.Timer(0.3, go.set).start()
    assert len(closed) == 1


def test_a_file_that_is_not_a_model(tmp_path: Path):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF" + b"\xff" * 200)
    with running(models=(ALICE, ModelSource("bad", bad))) as server:
        found = server.post("/v1/chat/completions", {**HELLO, "model": "bad"})
        assert found.status == 500
        assert found.json["error"]["code"] == "model_load_failed"
        (row,) = [r for r in server.get("/v1/models").json["data"] if r["id"] == "bad"]
        assert row["state"] == "failed"
        assert server.post("/v1/chat/completions", HELLO).status == 200
        assert "bad.gguf" in row["error"]
        assert server.get("/health").status == 200
        with (
            pytest.raises(FormatError),
            running(models=(ModelSource("x", tmp_path / "none.gguf"),)),
        ):
            pass
    with running(models=(ModelSource("bad", bad), ALICE), wait=False) as server:
        wait_for(lambda: states(server)["bad"] == "failed")
        assert server.get("/health").status == 200  # the other model can answer
        found = server.post("/v1/chat/completions", HELLO)
        assert found.json["error"]["code"] == "model_load_failed"
        assert "bad.gguf" in found.json["error"]["message"]
        assert server.post("/v1/chat/completions", {**HELLO, "model": "alice"}).status == 200


def test_a_library_that_panics_while_a_model_loads(monkeypatch: pytest.MonkeyPatch):
    """Panics of Rust libraries are not an Exception in Python."""

    class PanicException(BaseException):
        pass

    def panic(*_: Any) -> Any:
        raise PanicException("index out of bounds")

    with running(models=(ALICE, BOB)) as server:
        with monkeypatch.context() as fault:
            fault.setattr(pool_module, "load_llm", panic)
            found = server.post("/v1/chat/completions", {**HELLO, "model": "bob"})
        assert found.status == 500
        assert found.json["error"]["code"] == "model_load_failed"
        assert states(server) == {"alice": "loaded", "bob": "failed"}
        assert server.post("/v1/chat/completions", HELLO).status == 200


def test_a_cancelled_load_stops_at_its_next_progress_report(monkeypatch: pytest.MonkeyPatch):
    reports = []

    def endless(options: LoadOptions, progress: Callable[[int, int], None]) -> Any:
        while True:
            progress(1, 4)
            reports.append(time.monotonic())
            time.sleep(0.01)

    monkeypatch.setattr(pool_module, "load_llm", endless)
    with running(wait=False) as server:
        wait_for(lambda: reports)
        assert server.get("/health").status == 503
    assert server.application.pool is not None
    assert server.application.pool.loads_end_within(PATIENCE_S)


def test_a_removed_file_affects_only_its_model(tmp_path: Path):
    """Other models are still listed and answer."""
    file = tmp_path / "model.gguf"
    shutil.copyfile(EMBEDDED_MODEL, file)
    with running(models=(ALICE, ModelSource("gone", file))) as server:
        file.unlink()
        assert states(server) == {"alice": "loaded", "gone": "unloaded"}
        found = server.post("/v1/chat/completions", {**HELLO, "model": "gone"})
        assert found.json["error"]["code"] == "model_load_failed"
        assert server.post("/v1/chat/completions", HELLO).status == 200


def test_a_model_without_a_template_says_so():
    fixture = Path(__file__).parents[2] / "data" / "fixtures" / "qwen3.gguf"
    with running(models=(ALICE, ModelSource("bare", fixture)), load=LOAD) as server:
        found = server.post("/v1/chat/completions", {**HELLO, "model": "bare"})
        assert found.status == 400
        assert found.json["error"]["code"] == "no_chat_template"
        assert str(fixture.parent) not in found.json["error"]["message"]
        ids = {"prompt": [1, 2, 3], "max_tokens": 3, "model": "bare"}
        assert server.post("/v1/completions", ids).status == 200


def test_the_size_of_a_split_file(tmp_path: Path):
    for i, size in ((1, 10), (2, 20)):
        (tmp_path / f"m-0000{i}-of-00002.gguf").write_bytes(b"x" * size)
    (tmp_path / "n-00001-of-00002.gguf").write_bytes(b"x" * 5)
    assert file_bytes(tmp_path / "m-00001-of-00002.gguf") == 30


def test_the_prefix_cache_survives_a_restart(tmp_path: Path):
    load = replace(LOAD, cache_dir=tmp_path)
    story = {**HELLO, "messages": [{"role": "user", "content": "The fox ran home. " * 40}]}
    cached = []
    for _ in range(2):
        with running(load=load) as server:
            usage = server.post("/v1/chat/completions", story).json["usage"]
            cached.append(usage["prompt_tokens_details"]["cached_tokens"])
    assert cached[0] == 0
    assert cached[1] >= usage["prompt_tokens"] - 64


def test_names_are_unique_in_a_configuration():
    config = ServerConfig((ALICE, BOB))
    assert [source.name for source in config.models] == ["alice", "bob"]
