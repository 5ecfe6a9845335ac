"""Run the console commands of README.md and docs/ with the demo model."""

from __future__ import annotations

import io
import re
import shlex
import shutil
import subprocess
import sys

import pytest
from pages import ADDRESS, PAGES, PROGRAMS, ROOT, commands, environment, script, serving
from present import absent

from zinc.cli.main import build_parser, main

# Programs that are not run, with the reason.
NOT_RUN = {
    "make": "builds; CI runs its targets",
    "pip": "installs software; dev/wheels installs the wheels",
    "ray": "starts processes that outlive the command",
    "serve": "is Ray's, and needs a cluster",
    "kubectl": "needs Kubernetes",
    "docker": "needs a daemon, and a network to build",
    "brew": "is Homebrew's, on macOS",
    "export": "sets variables of the user's shell",
    "systemctl": "needs systemd",
    "journalctl": "needs systemd",
    "claude": "is another program",
    "dev/gpu-rigs/make": "downloads Mesa; CI runs it",
    "dev/gpu-rigs/record": "needs a rig; tests/benchmarks/test_gpu_rigs.py runs it",
    "dev/gpu-rigs/run": "needs a rig; tests/benchmarks/test_gpu_rigs.py runs it",
    "dev/llama-server-tests": "downloads models and runs for an hour",
}
SHELL = set("|<&;$*~")  # commands without these run in this process
# Options of `zinc serve` for which a server starts by default. The others start by `--every`.
SERVED = ("--memory-budget", "--lora")
LONG = {"bench", "check", "verify", "perplexity", "tune"}


def program(command):
    """Return the name of the last program of a pipeline."""
    return shlex.split(command.split("|")[-1])[0]


def subcommand(command):
    """Return the word after the program."""
    return shlex.split(command.split("|")[-1])[1]


def marks(command):
    words = shlex.split(command)
    needs = [pytest.mark.every] if subcommand(command) in LONG or "vulkan" in words else []
    if words[1:3] == ["cluster", "simulate"]:
        reason = "needs results of other commands; tests/cluster/test_simulation.py makes them"
        return [pytest.mark.skip(reason=reason)]
    if subcommand(command) == "cluster" and "yaml" not in words:
        return [pytest.mark.skip(reason="needs a Ray that runs; benchmarks/cluster.py runs one")]
    missing = [name for name in ("vulkan", "cuda") if name in words and name in absent()]
    missing += ["a second GPU"] if "vulkan:0,vulkan:1" in words else []
    return needs + [pytest.mark.skip(reason=f"{name} does not work here") for name in missing]


ALL = [(page.name, command) for page in PAGES for command in commands(page)]
OURS = [(page, command) for page, command in ALL if program(command) in ("zinc", "python")]
# A command of several pages runs once.
FIRST_PAGE = {command: page for page, command in reversed(OURS) if subcommand(command) != "serve"}
RUN = [
    pytest.param(command, id=f"{page}: {command}", marks=marks(command))
    for command, page in FIRST_PAGE.items()
]
SERVE = list(dict.fromkeys(command for _, command in OURS if subcommand(command) == "serve"))
SERVERS = [
    pytest.param(command, marks=() if any(x in command for x in SERVED) else pytest.mark.every)
    for command in SERVE
]
REQUESTS = [command for _, command in ALL if program(command) == "curl"]


def test_every_command_is_run_or_named_as_not_run():
    assert {program(command) for _, command in ALL} - {"zinc", "python", "curl"} <= set(NOT_RUN)
    assert len(RUN) >= 5
    assert len(SERVE) >= 3
    for name in ("install.md", "cuda.md", "models.md"):
        assert name in {page for page, _ in OURS}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_in_console_blocks(page):
    """A command in a block of another kind would be run by no test."""
    for language, block in re.findall(r"^```([^\n]*)\n(.*?)^```", page.read_text(), re.M | re.S):
        if language != "console":
            assert not re.search(r"^(\$ )?(zinc|pip|curl) ", block, re.MULTILINE), block


@pytest.mark.parametrize("command", RUN)
def test_command_succeeds(command, tmp_path, provide, monkeypatch, capfd):
    if subcommand(command) != "pull":
        provide(command)
    # Agents are not installed here: their command line is printed.
    text = script(command, tmp_path).replace(" launch", " launch --print")
    if program(command) == "zinc" and not SHELL & set(command):
        for name, value in environment(tmp_path).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
        monkeypatch.chdir(ROOT)
        text = text.removeprefix(PROGRAMS["zinc"]).partition(" > ")[0]  # the output is captured
        assert main(shlex.split(text)) == 0, capfd.readouterr().err
        return
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {text}"],
        cwd=ROOT,
        env=environment(tmp_path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", SERVE)
def test_options_of_servers_exist(command, tmp_path):
    words = shlex.split(script(command, tmp_path).removeprefix(PROGRAMS["zinc"]))
    args, rest = build_parser("serve").parse_known_args(words)
    assert not args.parser.add_rest(args, rest)


@pytest.mark.parametrize("command", SERVERS)
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
