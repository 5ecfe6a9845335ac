"""A Ray for tests that need one."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub.fake_hub import FakeHub

import zinc
from zinc.engine.load.files import resolve_model

SOURCE = Path(zinc.__file__).parent.parent
START_S = 60.0


@pytest.fixture(scope="session")
def hub() -> Iterator[FakeHub]:
    """A hub that has the embedded model as test/demo:Q4_K_M."""
    server = FakeHub()
    server.add("test/demo", {"demo-Q4_K_M.gguf": resolve_model(None).read_bytes()})
    yield server
    server.close()


@pytest.fixture(scope="session")
def ray_environment(hub: FakeHub, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment variables of Ray and of programs that use it; no model is downloaded yet."""
    models = {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(tmp_path_factory.mktemp("models"))}
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    more = {"PYTHONPATH": str(SOURCE), "RAY_USAGE_STATS_ENABLED": "0"}
    return {**os.environ, **more, **token, **models}


@pytest.fixture(scope="session")
def ray_address(ray_environment: dict[str, str]) -> Iterator[str]:
    """The address of a Ray of four CPUs; tests are skipped where Ray is not installed."""
    pytest.importorskip("ray", reason="Ray is not installed")
    port = 26_400 + os.getpid() % 1000
    process = subprocess.Popen(
        [
            str(Path(sys.executable).with_name("ray")), "start", "--head", "--block",
            "--num-cpus", "4", "--port", str(port), "--object-store-memory", "100000000",
            "--include-dashboard", "false",
        ],
        env=ray_environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    address = f"127.0.0.1:{port}"
    status = [sys.executable, "-m", "zinc", "cluster", "status", "--address", address]
    try:
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            done = subprocess.run(
                status, env=ray_environment, capture_output=True, text=True, check=False
            )
            if "no cluster is running" in done.stderr:
                break
            time.sleep(0.5)
        else:
            pytest.fail(f"Ray did not start within {START_S:g} s: {done.stderr}")
        yield address
    finally:
        process.terminate()
        process.wait(START_S)
