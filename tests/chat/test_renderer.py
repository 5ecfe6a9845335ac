"""The worker processes that render templates: their limits, their end, and sharing."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from zinc import LLM
from zinc.chat.renderer import Renderer, RenderError
from zinc.chat.worker import TIMES_ITSELF
from zinc.core.errors import ZincError

FOREVER = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
PROC = Path("/proc/self/status").exists()
needs_proc = pytest.mark.skipif(not PROC, reason="there is no /proc")


@pytest.fixture(scope="module")
def renderer():
    with Renderer() as found:
        yield found


def worker_of(renderer: Renderer) -> int:
    """Return the process id of the only idle worker."""
    (worker,) = renderer._idle
    return worker._process.pid


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(condition, seconds=60.0):
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    assert condition()


def test_a_worker_is_reused(renderer):
    assert renderer.render("{{ x }}", {"x": 1}) == "1"
    pid = worker_of(renderer)
    with pytest.raises(RenderError, match="'y' is undefined"):
        renderer.render("{{ y.z }}", {})
    with pytest.raises(RenderError, match="not valid Jinja"):
        renderer.check("{% if %}")
    assert renderer.render("{{ x }}", {"x": 2}) == "2"
    assert worker_of(renderer) == pid


def test_large_prompts(renderer):
    text = "\U0001f98a" * 3_000_000
    assert renderer.render("{{ x | trim ~ '!' }}", {"x": text}) == text + "!"


def test_templates_that_exceed_a_limit_end_their_worker():
    with Renderer(seconds=0.2) as renderer:
        for source, why in ((FOREVER, "more than 0.2 s"), ("{{ 'x' * 10 ** 10 }}", "memory")):
            with pytest.raises(RenderError, match=f"was stopped.*{why}") as failure:
                renderer.render(source, {})
            assert failure.value.stopped
        assert renderer.render("ok", {}) == "ok"


@pytest.mark.skipif(not TIMES_ITSELF, reason="there is no timer of CPU time")
def test_time_that_a_worker_waits_does_not_count():
    with Renderer(seconds=0.2) as renderer:
        renderer.render("x", {})
        pid = worker_of(renderer)
        os.kill(pid, signal.SIGSTOP)  # as on a machine with other things to do
        timer = threading.Timer(0.4, os.kill, (pid, signal.SIGCONT))
        timer.start()
        assert renderer.render("ok", {}) == "ok"
        assert worker_of(renderer) == pid
        timer.join()


@needs_proc
def test_a_worker_that_died_is_replaced(renderer):
    renderer.render("x", {})
    pid = worker_of(renderer)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not is_running(pid))
    assert renderer.render("x", {}) == "x"
    assert worker_of(renderer) != pid


@needs_proc
def test_a_worker_that_is_killed_while_it_renders():
    with Renderer(seconds=60) as renderer:
        renderer.render("x", {})
        timer = threading.Timer(0.2, os.kill, (worker_of(renderer), signal.SIGKILL))
        timer.start()
        with pytest.raises(RenderError, match="its process ended with SIGKILL"):
            renderer.render(FOREVER, {})
        assert renderer.render("x", {}) == "x"


def test_signals_of_the_terminal_do_not_reach_workers(renderer):
    renderer.render("x", {})
    pid = worker_of(renderer)
    assert os.getpgid(pid) != os.getpgid(0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(pid, number)
    assert renderer.render("x", {}) == "x"
    assert worker_of(renderer) == pid


@needs_proc
def test_restrictions_of_a_worker(renderer, monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "123")
    with Renderer() as other:
        other.render("x", {})
        pid = worker_of(other)
        assert b"SECRET_KEY" not in Path(f"/proc/{pid}/environ").read_bytes()
        limits = Path(f"/proc/{pid}/limits").read_text()
        for name in ("open files", "processes", "core file size", "file size"):
            line = next(line for line in limits.splitlines() if line.startswith(f"Max {name} "))
            assert line.removeprefix(f"Max {name}").split()[0] == "0"
        assert len(list(Path(f"/proc/{pid}/fd").iterdir())) == 3


def test_filters_that_import_modules_late(renderer):
    source = "{{ 'a&amp;b' | striptags }}{{ 'a b' | wordwrap(1) }}{{ x | pprint }}"
    assert renderer.render(source, {"x": (1, 2)}) == "a&ba\nb(1, 2)"


def test_threads_share_workers():
    with Renderer(seconds=60, max_workers=3) as renderer:
        renderer.start()
        found = []

        def work(i):
            found.extend(renderer.render("{{ x }}", {"x": i}) == str(i) for _ in range(20))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [True] * 160
        assert 1 <= len(renderer._idle) <= 3


def test_other_templates_render_while_one_never_ends():
    with Renderer(seconds=60) as renderer:
        renderer.render("x", {})
        frozen = worker_of(renderer)
        outcome = []

        def freeze():
            with pytest.raises(RenderError) as failure:
                renderer.render(FOREVER, {})
            outcome.append(failure.value.why)

        thread = threading.Thread(target=freeze)
        thread.start()
        wait_for(lambda: not renderer._idle)
        assert renderer.render("good", {}) == "good"
        os.kill(frozen, signal.SIGKILL)
        thread.join()
        assert outcome == ["its process ended with SIGKILL"]


def test_an_interrupted_rendering_leaves_no_reply_behind():
    with Renderer(seconds=60) as renderer:
        renderer.render("x", {})
        main = threading.main_thread().ident
        timer = threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGUSR1))

        def interrupt(*_):
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGUSR1, interrupt)
        try:
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                renderer.render(FOREVER, {})
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert renderer.render("good", {}) == "good"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_a_forked_process_has_its_own_workers(renderer):
    renderer.render("x", {})
    pid = worker_of(renderer)
    if (child := os.fork()) == 0:
        status = 1
        try:
            is_other = renderer.render("{{ 1 }}", {}) == "1" and worker_of(renderer) != pid
            renderer.close()
            status = 0 if is_other else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert renderer.render("{{ 2 }}", {}) == "2"
    assert worker_of(renderer) == pid


PARENT = """
import sys, threading
from zinc.chat.renderer import SHARED
SHARED.render("x", {})
assert "jinja2" not in sys.modules  # it is for workers alone, and its import takes time
print(SHARED._idle[0]._process.pid, flush=True)
if sys.argv[1] == "busy":
    threading.Thread(target=SHARED.render, args=(sys.argv[2], {}), daemon=True).start()
if sys.argv[1] != "exit":
    threading.Event().wait()
"""


@needs_proc
@pytest.mark.parametrize("state", ["exit", "idle", pytest.param("busy", marks=pytest.mark.every)])
def test_workers_end_with_their_parent(state):
    """They end with its exit, and soon after it is killed: busy ones by their CPU time limit."""
    command = [sys.executable, "-W", "error", "-c", PARENT, state, FOREVER]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as parent:
        pid = int(parent.stdout.readline())
        if state == "exit":
            assert parent.wait(60) == 0
        else:
            time.sleep(0.2)
            parent.kill()
        wait_for(lambda: not is_running(pid))
        assert parent.stderr.read() == b""


def test_a_python_that_cannot_start(monkeypatch, tmp_path):
    with Renderer() as renderer:
        for executable in (str(tmp_path / "none"), "/bin/false"):
            monkeypatch.setattr(sys, "executable", executable)
            renderer.start()
            with pytest.raises(ZincError, match="cannot be started"):
                renderer.render("x", {})


def test_a_worker_starts_while_a_model_loads(monkeypatch):
    with Renderer() as renderer:
        monkeypatch.setattr("zinc.chat.renderer.SHARED", renderer)
        with LLM(backend="null", context=64):
            pid = worker_of(renderer)
            assert renderer.render("x", {}) == "x"
            assert worker_of(renderer) == pid
