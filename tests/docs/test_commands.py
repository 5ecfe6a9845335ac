"""Run the console commands of README.md and docs/ with the demo model."""

from __future__ import annotations

import shlex
import shutil
import subprocess

import pytest
from pages import ADDRESS, PAGES, ROOT, commands, environment, script, serving
from present import absent

# Commands that install software, set up another program or run for hours.
NOT_RUN = {"make", "pip", "docker", "export", "claude", "dev/llama-server-tests"}
LONG = {"bench", "verify", "perplexity"}


def program(command):
    """Return the name of the last program of a pipeline."""
    return shlex.split(command.split("|")[-1])[0]


def subcommand(command):
    """Return the word after the program."""
    return shlex.split(command.split("|")[-1])[1]


def marks(command):
    needs = [pytest.mark.every] if subcommand(command) in LONG or "vulkan" in command else []
    if "vulkan" in command and "vulkan" in absent():
        needs.append(pytest.mark.skip(reason="there is no Vulkan device"))
    return needs


ALL = [(page.name, command) for page in PAGES for command in commands(page)]
OURS = [(page, command) for page, command in ALL if program(command) in ("zinc", "python")]
RUN = [
    pytest.param(command, id=f"{page}: {command}", marks=marks(command))
    for page, command in OURS
    if subcommand(command) != "serve"
]
SERVE = list(dict.fromkeys(command for _, command in OURS if subcommand(command) == "serve"))
REQUESTS = [command for _, command in ALL if program(command) == "curl"]


def test_every_command_is_run_or_named_as_not_run():
    assert {program(command) for _, command in ALL} - {"zinc", "python", "curl"} <= NOT_RUN
    assert len(RUN) >= 5
    assert len(SERVE) >= 3


@pytest.mark.parametrize("command", RUN)
def test_command_succeeds(command, tmp_path, provide):
    if subcommand(command) != "pull":
        provide(command)
    done = subprocess.run(
        # Agents are not installed here: their command line is printed.
        [
            "bash",
            "-c",
            f"set -o pipefail; {script(command, tmp_path)}".replace(" launch", " launch --print"),
        ],
        cwd=ROOT,
        env=environment(tmp_path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", SERVE)
def test_server_starts(command, tmp_path, provide):
    pytest.importorskip("uvicorn")
    provide(command)
    with serving(command, tmp_path) as address:
        assert address.startswith("http://127.0.0.1:")


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_requests_are_answered(tmp_path):
    pytest.importorskip("uvicorn")
    assert REQUESTS
    with serving("zinc serve", tmp_path) as address:
        for command in REQUESTS:
            request = command.replace(ADDRESS, address)
            assert request != command
            done = subprocess.run(
                ["bash", "-c", request], capture_output=True, text=True, check=True
            )
            assert '"choices"' in done.stdout
