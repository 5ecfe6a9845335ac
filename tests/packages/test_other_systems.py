"""zinc on systems that lack calls and modules of Linux.

A child process removes them before it imports zinc. Windows has none of them, macOS some. Code that
asks `sys.platform` instead is not covered.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from zinc.core import host_memory

SOURCE = str(Path(__file__).parents[2] / "src")
WITHOUT = """
import os, select, signal, sys
for name in ("grp", "pwd", "readline", "resource", "termios", "tty"):
    sys.modules[name] = None
for name in ("O_CLOEXEC", "O_NONBLOCK", "fork", "pread", "preadv", "register_at_fork",
             "sched_getaffinity"):
    delattr(os, name)
del signal.SIGHUP
def no_select(*args): raise OSError("an operation was attempted on something that is not a socket")
select.select = no_select
"""
IMPORT_ALL = """
import pkgutil, zinc
RAY_USERS = "app", "control", "front_actors", "handles", "model_check", "router"
NEED_RAY = {f"zinc.cluster.{x}" for x in RAY_USERS}
for module in pkgutil.walk_packages(zinc.__path__, "zinc."):
    if not module.name.endswith("__main__") and module.name not in NEED_RAY:
        __import__(module.name)
"""
ASK = """
from zinc.cli.main import main
sys.exit(main(["run", "--temperature", "0", "-n", "8", "Tell me about a fox."]))
"""


def run(code):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, "PYTHONPATH": SOURCE},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_module_is_imported():
    pytest.importorskip("starlette")
    done = run(WITHOUT + IMPORT_ALL)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_answer_is_the_same():
    answers = [run(start + ASK) for start in ("import sys\n", WITHOUT)]
    assert [done.returncode for done in answers] == [0, 0]
    assert answers[0].stdout == answers[1].stdout
    assert len(answers[0].stdout) > 8


def test_available_memory_without_proc(monkeypatch):
    """A system without /proc/meminfo counts as having all its memory available."""
    monkeypatch.setattr(host_memory, "Path", lambda name: Path("/nonexistent" + name))
    assert host_memory.available_memory_bytes() == host_memory.total_memory_bytes() > 1 << 20
