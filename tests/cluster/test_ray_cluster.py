"""Tests of a cluster on Ray, with the official clients that are installed."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hub.fake_hub import FakeHub
from present import of_embedded_model

from zinc.engine.load.files import resolve_model

Cluster = Callable[..., subprocess.CompletedProcess[str]]
PATIENCE_S = 120.0
RESTART_S = 8.0  # for Ray to start a front again
PORT = 27_500 + os.getpid() % 1000
URL = f"http://127.0.0.1:{PORT}"
ASK = [{"role": "user", "content": "Tell me of the river and the old stone bridge."}]

pytestmark = pytest.mark.filterwarnings("default")  # Ray's own


@pytest.fixture
def cluster(ray_address: str, ray_environment: dict[str, str]) -> Iterator[Cluster]:
    """Yield a function that runs `zinc cluster`, and stop the cluster in the end."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "zinc", "cluster", *words, "--address", ray_address]
        return subprocess.run(
            command,
            env=ray_environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )

    yield run
    run("down")


def chat(max_tokens: int, text: str = "") -> str:
    """Return an answer of the cluster, to `text` if it is given."""
    return ask_replica(max_tokens, text)[0]


def ask_replica(max_tokens: int, text: str = "", model: str = "any") -> tuple[str, str]:
    """Return an answer of the cluster, and the name of its replica."""
    messages = [{"role": "user", "content": text}] if text else ASK
    body = {"model": model, "messages": messages, "max_tokens": max_tokens, "temperature": 0}
    request = urllib.request.Request(
        f"{URL}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        found: str = json.load(reply)["choices"][0]["message"]["content"]
        return found, reply.headers["X-Zinc-Replica"]


def chat_with_openai(max_tokens: int) -> tuple[str, str]:
    """Return the same answer whole and streamed, by the client of OpenAI."""
    import openai

    given = {"model": "any", "messages": ASK, "max_tokens": max_tokens, "temperature": 0}
    with openai.OpenAI(base_url=f"{URL}/v1", api_key="none") as client:
        whole = client.chat.completions.create(**given).choices[0].message.content
        parts = client.chat.completions.create(**given, stream=True)
        streamed = "".join(p.choices[0].delta.content or "" for p in parts if p.choices)
    return whole or "", streamed


def chat_with_anthropic(max_tokens: int) -> tuple[str, str]:
    """Return the same answer whole and streamed, by the client of Anthropic."""
    import anthropic

    # `create` of version 2 has no parameter `temperature`.
    given = {
        "model": "any", "messages": ASK, "max_tokens": max_tokens, "extra_body": {"temperature": 0},
    }  # fmt: skip
    with anthropic.Anthropic(base_url=URL, api_key="none") as client:
        whole = "".join(block.text for block in client.messages.create(**given).content)
        with client.messages.stream(**given) as stream:
            streamed = "".join(stream.text_stream)
    return whole, streamed


OFFICIAL = {"openai": chat_with_openai, "anthropic": chat_with_anthropic}


def test_a_cluster_starts_answers_and_stops(cluster: Cluster, tmp_path):
    failed = cluster("up", "--replicas", "5")
    assert "there is no room for 5 replicas" in failed.stderr
    failed = cluster("up", "a=a.gguf", "b=b.gguf", "--replicas", "3", "--memory", "1M")
    assert "no room for 3 replicas of 'b'" in failed.stderr
    assert "has room for 1 beside the other models" in failed.stderr
    failed = cluster("up", "--memory", "100T")
    assert (
        "there is no room for a replica: each takes 1 CPU and 110.0 TB of memory" in failed.stderr
    )
    failed = cluster("up", str(resolve_model(None)), "--context", "9999999")
    assert failed.returncode == 1
    assert "a replica cannot start: a context of 9,999,999 tokens is not" in failed.stderr
    assert failed.stderr.count("\n") == 1
    with socket.create_server(("127.0.0.1", PORT)):
        taken = cluster("up", "--port", str(PORT))
    assert taken.returncode == 1
    assert f"cannot serve on 127.0.0.1, port {PORT}: Address already in use" in taken.stderr
    options = ["--replicas", "2", "--port", str(PORT), "--backend", of_embedded_model()]
    done = cluster("up", *options, "--fronts", "2")
    assert done.returncode == 0, done.stderr
    status = json.loads(cluster("status", "--json").stdout)
    assert status["state"] == "RUNNING"
    assert [each["replicas"] for each in status["models"].values()] == [{"RUNNING": 2}]
    text = chat(24)
    assert len(text) > 20
    assert chat(24) == text
    for name, ask in OFFICIAL.items():
        if find_spec(name) is not None:
            assert ask(24) == (text, text)
    with urllib.request.urlopen(f"{URL}/metrics", timeout=60) as reply:
        assert "zinc_model_loaded{replica=" in reply.read().decode()
    assert cluster("down").returncode == 0
    assert "no cluster is running" in cluster("status").stderr


def test_each_model_has_replicas_that_updates_of_others_leave_alone(
    cluster: Cluster, hub: FakeHub, tmp_path
):
    file = tmp_path / "cluster.json"
    small = {"model": str(resolve_model(None)), "cpus": 0.5}
    pulled = {"model": "test/demo:Q4_K_M", "cpus": 1.5, "replicas": 2, "serve": {"pull": True}}

    def up(models: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        served = {"port": PORT, "backend": of_embedded_model(), "context": 256}
        file.write_text(json.dumps({"serve": served, "models": models}))
        return cluster("up", "--config", str(file))

    done = up({"a": {**small, "cpus": 3}, "b": small})
    assert done.returncode == 0, done.stderr
    (text, first), (other, second) = (ask_replica(16, model=name) for name in "ab")
    assert text == other
    assert first != second
    assert listed() == ["a", "b"]
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask_replica(16, model="c")
    assert refused.value.code == 404
    assert "this server has a, b" in refused.value.read().decode()

    # "a" goes and leaves its room to "c", which is pulled where it runs; "b" gets another replica.
    done = up({"b": {**small, "replicas": 2}, "c": pulled})
    assert done.returncode == 0, done.stderr
    status = json.loads(cluster("status", "--json").stdout)["models"]
    states = {name: each["replicas"] for name, each in status.items()}
    assert states == {"b": {"RUNNING": 2}, "c": {"RUNNING": 2}}
    assert listed() == ["b", "c"]
    assert ask_replica(16, model="c")[0] == text
    assert hub.n_file_requests > 0
    assert second in replicas_of("b")

    done = up({"b": {**small, "replicas": 2}, "d": {**small, "model": "missing.gguf"}})
    assert done.returncode == 1
    assert "a replica of 'd' cannot start" in done.stderr
    assert second in replicas_of("b")
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF")
    for path in (damaged, tmp_path / "missing.gguf"):
        done = up({"b": {**small, "model": str(path)}})
        assert done.returncode == 1
        assert "a replica cannot start" in done.stderr
        assert path.name in done.stderr
        assert done.stderr.count("\n") == 1
    assert second in replicas_of("b")
    assert listed() == ["b", "c"]


@pytest.mark.skipif(sys.platform != "linux", reason="front processes are found in /proc")
@pytest.mark.every
def test_fronts_that_crash_come_back_unless_they_are_stopped(
    cluster: Cluster, ray_environment: dict[str, str]
):
    def up(*words: str) -> None:
        given = ["--port", str(PORT), "--backend", of_embedded_model(), "--context", "256"]
        done = cluster("up", *given, *words)
        assert done.returncode == 0, done.stderr

    up("--fronts", "2")
    text = chat(8)
    first, second = fronts(ray_environment)
    os.kill(first, signal.SIGKILL)
    for _ in range(20):  # by the other front
        assert chat(8) == text
    wait_until(lambda: len(fronts(ray_environment)) == 2)
    assert second in fronts(ray_environment)
    assert cluster("status").returncode == 0

    os.kill(second, signal.SIGKILL)
    up("--max-connections", "500")  # the front that restarts has other options
    wait_until(lambda: len(fronts(ray_environment)) == 1)
    assert cluster("status").returncode == 0
    assert chat(8) == text

    with socket.create_connection(("127.0.0.1", PORT)) as unfinished:
        unfinished.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n")
        assert chat(8) == text
        (stopping,) = fronts(ray_environment)
        up("--max-connections", "501")
        assert stopping in fronts(ray_environment)
        os.kill(stopping, signal.SIGKILL)
        time.sleep(RESTART_S)
        assert len(fronts(ray_environment)) == 1

    os.kill(fronts(ray_environment)[0], signal.SIGKILL)
    wait_until(lambda: is_answered(text))
    os.kill(fronts(ray_environment)[0], signal.SIGKILL)
    assert cluster("down").returncode == 0
    time.sleep(RESTART_S)
    assert not fronts(ray_environment)


def is_answered(text: str) -> bool:
    """Return whether the cluster answers; its answer must be `text`."""
    try:
        assert chat(8) == text
    except OSError:
        return False
    return True


def fronts(environment: dict[str, str]) -> list[int]:
    """Return the ids of the processes of fronts on the Ray of `environment`."""
    mark = f"RAY_AUTH_TOKEN={environment['RAY_AUTH_TOKEN']}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            is_front = (process / "cmdline").read_bytes().startswith(b"ray::FrontActor")
            if is_front and mark in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return sorted(found)


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait for a condition, for at most `PATIENCE_S`."""
    until = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.2)


@pytest.mark.every
def test_replicas_follow_the_queue_as_far_as_there_is_room(
    cluster: Cluster, ray_address: str, ray_environment: dict[str, str]
):
    def up(*more: str) -> subprocess.CompletedProcess[str]:
        words = ["cluster", "up", "--max-replicas", "5", "--queue", "1", "--port", str(PORT)]
        words += ["--backend", of_embedded_model(), "--context", "256", "--address", ray_address]
        code = (
            "from zinc.cluster import applications\n"
            "applications._MORE_AFTER_S, applications._FEWER_AFTER_S = 1.0, 1.0\n"
            "from zinc.cli.main import main\n"
            f"raise SystemExit(main({[*words, *more]!r}))\n"
        )
        return subprocess.run(
            [sys.executable, "-c", code],
            env=ray_environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )

    done = up()
    assert done.returncode == 0, done.stderr
    text = chat(24)
    is_over = threading.Event()

    def ask() -> set[str]:
        found = set()
        while not is_over.is_set():
            answer, replica = ask_replica(24)
            assert answer == text
            found.add(replica)
        return found

    with ThreadPoolExecutor(8) as pool:
        clients = [pool.submit(ask) for _ in range(8)]
        wait_until(lambda: n_replicas(cluster) == 5)  # Ray has room for four
        stalled = up("--ttl", "100000")
        is_over.set()
        for client in clients:
            client.result()
    assert stalled.returncode == 1
    assert "the update cannot end" in stalled.stderr
    with ThreadPoolExecutor(1) as pool:
        is_over.clear()
        client = pool.submit(ask)
        wait_until(lambda: n_replicas(cluster) == 1)
        is_over.set()
        assert client.result()


def n_replicas(cluster: Cluster) -> int:
    """Return how many replicas the cluster has, in any state."""
    models = json.loads(cluster("status", "--json").stdout)["models"]
    return sum(n for each in models.values() for n in each["replicas"].values())


def replicas_of(model: str) -> set[str]:
    """Return the names of a model's replicas."""
    with urllib.request.urlopen(f"{URL}/metrics", timeout=60) as reply:
        text = reply.read().decode()
    return set(re.findall(rf'^zinc_model_loaded{{replica="(\w+)",model="{model}"}} 1', text, re.M))


def listed() -> list[str]:
    """Return the models that the cluster lists."""
    with urllib.request.urlopen(f"{URL}/v1/models", timeout=60) as reply:
        return [row["id"] for row in json.load(reply)["data"]]


@pytest.mark.parametrize("where", ["memory", "folder"])
def test_replicas_fetch_what_others_have_run(cluster: Cluster, where: str, tmp_path):
    shared = "memory" if where == "memory" else str(tmp_path / "shared")
    options = [
        "--replicas",
        "2",
        "--port",
        str(PORT),
        "--backend",
        of_embedded_model(),
        "--router",
        "random",
    ]
    done = cluster("up", *options, "--share-prefixes", shared)
    assert done.returncode == 0, done.stderr
    text = "The river and the old stone bridge. " * 30
    answers: dict[str, str] = {}
    until = time.monotonic() + PATIENCE_S
    while len(answers) < 2:
        assert time.monotonic() < until
        answer, replica = ask_replica(16, text)
        answers.setdefault(replica, answer)
        time.sleep(0.5)  # the first replica writes what it has run
    assert len(set(answers.values())) == 1
    with urllib.request.urlopen(f"{URL}/metrics", timeout=60) as reply:
        lines = reply.read().decode().splitlines()
    fetched = [float(x.split()[-1]) for x in lines if x.startswith("zinc_prefix_cache_fetched")]
    assert sum(fetched) >= 64
