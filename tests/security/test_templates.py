"""Hostile chat templates: each is stopped by a limit, and the server goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from effort import EVERY
from hostile_templates import TEMPLATES

from zinc.chat.renderer import DEADLINE_S

pytest.importorskip("resource", reason="memory is limited and measured with it")
FOREVER = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
MEMORY_BYTES = 256 << 20
# The default sample ends in every way that all of them do: too much time, too much memory, an
# error, a template that cannot be compiled.
NAMES = list(TEMPLATES)[:: 1 if EVERY else 3]
SHORT_S = 0.1  # CPU time that stops every template as that of the server does
BUSY_S = 120  # time limit for events that take a moment, on a busy machine


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@cache
def attack(seconds: float) -> dict[str, Any]:
    """Return the outcome of the hostile templates with `seconds` of CPU time each."""
    script = Path(__file__).with_name("attack_templates.py")
    done = subprocess.run(
        [sys.executable, script, str(seconds), *NAMES],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("seconds", [SHORT_S, pytest.param(DEADLINE_S, marks=pytest.mark.every)])
@pytest.mark.parametrize("name", NAMES)
def test_a_hostile_template_is_stopped(name: str, seconds: float) -> None:
    case = attack(seconds)["cases"][name]
    what, colon, why = case["outcome"].partition(": ")
    assert colon, "it was rendered"
    assert what in ("was stopped", "failed on these messages", "cannot be compiled")
    assert "Errno" not in why
    assert case["cpu_s"] < seconds + 10  # with the start of the worker
    assert case["recovered"]


@pytest.mark.parametrize("seconds", [SHORT_S, pytest.param(DEADLINE_S, marks=pytest.mark.every)])
def test_hostile_templates_get_little_memory(seconds: float) -> None:
    assert attack(seconds)["peak_bytes"] < MEMORY_BYTES


def test_a_signal_stops_a_server_whose_template_never_ends(tmp_path: Path) -> None:
    template = tmp_path / "freezes.jinja"
    template.write_text("{% set x = messages %}" + FOREVER)
    command = [sys.executable, "-m", "zinc", "serve", "--port", "0", "--backend", "ref"]
    with subprocess.Popen(
        [*command, "--context", "256", "--chat-template", template],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(),
    ) as server:
        try:
            assert server.stdout is not None
            line = next(line for line in server.stdout if "http://" in line)
            url = "http://" + line.split("http://")[1].split()[0].rstrip(".,")
            wait_for_health(url)
            body = json.dumps({"messages": [{"role": "user", "content": "Hi"}]}).encode()
            with ThreadPoolExecutor(2) as threads:
                for _ in range(2):
                    threads.submit(post, f"{url}/v1/chat/completions", body)
                time.sleep(0.5)
                assert post(f"{url}/tokenize", b'{"content": "Hi"}') == 200
                server.send_signal(signal.SIGTERM)
                assert server.wait(BUSY_S) == 0
            assert "Traceback" not in server.stdout.read()
        finally:
            server.kill()


def wait_for_health(url: str) -> None:
    until = time.monotonic() + BUSY_S
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=BUSY_S):
                return
        except OSError:
            time.sleep(0.05)
    pytest.fail("the server did not get ready")


def post(url: str, body: bytes) -> int:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=BUSY_S) as answer:
        status: int = answer.status
        return status
