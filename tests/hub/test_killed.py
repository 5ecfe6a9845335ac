"""A pull that is killed at random points resumes and ends with the right bytes."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
import time
from pathlib import Path

import effort
from hub.conftest import content

from zinc.hub.errors import MissingModelError
from zinc.hub.resolve import resolve

MODEL = "org/killed-GGUF:Q8_0"
N_BYTES = 3_000_000
N_KILLS = 50 if effort.EVERY else 3
PROGRAM = """
import sys
from zinc.hub.pull import PullOptions, pull
pull(sys.argv[1], options=PullOptions(chunk_bytes=64 << 10, pause_s=0.01))
"""


def test_a_pull_that_is_killed_ends_with_the_right_hash(hub, home, tmp_path):
    rng = random.Random(0)
    data = content(9, N_BYTES)
    hub.add("org/killed-GGUF", {"m-Q8_0.gguf": data})
    hub.faults.bytes_per_s = 2_000_000
    n_killed = 0
    while n_killed < N_KILLS:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, MODEL], env=environment(hub.url, home), stderr=-1
        )
        # Wait for its first request for bytes, then for a random part of a chunk's time.
        before = hub.n_file_requests
        while hub.n_file_requests == before and process.poll() is None:
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.08))
        process.kill()
        process.communicate()
        if process.returncode == 0:  # it was done: begin anew
            check(home, data)
            delete(home.hugging_face)
            continue
        n_killed += 1
        try:
            assert resolve(MODEL, home).read_bytes() == data  # killed after the last byte
        except MissingModelError:
            assert not list(home.hugging_face.rglob("*.gguf"))
    hub.faults.bytes_per_s = None
    subprocess.run(
        [sys.executable, "-c", PROGRAM, MODEL], env=environment(hub.url, home), check=True
    )
    check(home, data)


def check(home, data: bytes) -> None:
    found = hashlib.sha256(resolve(MODEL, home).read_bytes()).hexdigest()
    assert found == hashlib.sha256(data).hexdigest()
    assert not list(home.hugging_face.rglob("*.zinc-*"))


def delete(folder: Path) -> None:
    for path in folder.rglob("*"):
        if not path.is_dir():
            path.unlink()


def environment(url: str, home) -> dict[str, str]:
    source = Path(sys.modules["zinc"].__file__).parents[1]
    return {
        "HF_ENDPOINT": url,
        "HF_HUB_CACHE": str(home.hugging_face),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HOME": str(home.hugging_face.parents[2]),
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(source),
    }
