"""`zinc launch`: start a coding agent that uses a model of a zinc server.

The server is the one at --url, or one that runs at the default address; otherwise a new one is
started for the agent and stopped when the agent ends. Only environment variables and arguments of
the agent are set: its configuration files stay as they are.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, Request, build_opener

from zinc.cli import argtypes, parsed
from zinc.cli.argtypes import UsageError
from zinc.cli.parser import nearest
from zinc.cli.serve import client_name
from zinc.core.dataclass import dataclass
from zinc.core.errors import DeviceError, RequestError, ZincError

DEFAULT_URL = "http://127.0.0.1:8080"
NO_KEY = "none"  # agents insist on a key; a server without keys ignores it
_TIMEOUT_S = 5.0
_LOAD_S = 600.0


@dataclass(frozen=True, slots=True)
class Server:
    """A server as the agent uses it: its address without a path, a model, and a key."""

    url: str
    model: str
    key: str


@dataclass(frozen=True, slots=True)
class Launch:
    """How an agent is started: environment variables and arguments."""

    variables: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Agent:
    """A coding agent: its program, how to install it, and how to start it with a server."""

    program: str
    install: str
    launch: Callable[[Server], Launch]


def _claude(server: Server) -> Launch:
    models = ("ANTHROPIC_MODEL", *(f"ANTHROPIC_DEFAULT_{x}_MODEL" for x in _CLAUDE_SIZES))
    return Launch(
        {
            "ANTHROPIC_BASE_URL": server.url,
            "ANTHROPIC_AUTH_TOKEN": server.key,
            **dict.fromkeys(models, server.model),
        }
    )


_CLAUDE_SIZES = ("OPUS", "SONNET", "HAIKU")


def _codex(server: Server) -> Launch:
    settings = {
        "model": server.model,
        "model_provider": "zinc",
        "model_providers.zinc.name": "zinc",
        "model_providers.zinc.base_url": f"{server.url}/v1",
        "model_providers.zinc.wire_api": "responses",
        "model_providers.zinc.env_key": "OPENAI_API_KEY",
    }
    # Values are TOML; a JSON string is a TOML string.
    pairs = (("-c", f"{name}={json.dumps(value)}") for name, value in settings.items())
    return Launch({"OPENAI_API_KEY": server.key}, tuple(each for pair in pairs for each in pair))


def _opencode(server: Server) -> Launch:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "zinc",
        "options": {"baseURL": f"{server.url}/v1", "apiKey": server.key},
        "models": {server.model: {"name": server.model}},
    }
    config = {"provider": {"zinc": provider}, "model": f"zinc/{server.model}"}
    return Launch({"OPENCODE_CONFIG_CONTENT": json.dumps(config)})


def _aider(server: Server) -> Launch:
    return Launch(
        {"OPENAI_API_BASE": f"{server.url}/v1", "OPENAI_API_KEY": server.key},
        ("--model", f"openai/{server.model}"),
    )


def _goose(server: Server) -> Launch:
    return Launch(
        {
            "GOOSE_PROVIDER": "openai",
            "GOOSE_MODEL": server.model,
            "OPENAI_HOST": server.url,
            "OPENAI_API_KEY": server.key,
        }
    )


def _qwen(server: Server) -> Launch:
    return Launch(
        {
            "OPENAI_BASE_URL": f"{server.url}/v1",
            "OPENAI_API_KEY": server.key,
            "OPENAI_MODEL": server.model,
        }
    )


AGENTS: Mapping[str, Agent] = {
    "claude": Agent("claude", "npm install -g @anthropic-ai/claude-code", _claude),
    "codex": Agent("codex", "npm install -g @openai/codex", _codex),
    "opencode": Agent("opencode", "npm install -g opencode-ai", _opencode),
    "aider": Agent("aider", "pip install aider-chat", _aider),
    "goose": Agent("goose", "see https://block.github.io/goose", _goose),
    "qwen": Agent("qwen", "npm install -g @qwen-code/qwen-code", _qwen),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("agent", metavar="AGENT", nargs="?", help=f"one of {', '.join(AGENTS)}")
    parser.add_argument(
        "arguments", nargs="*", metavar="ARGUMENT", help="arguments of the agent, after --"
    )
    parser.add_argument(
        "-m",
        "--model",
        metavar="MODEL",
        help="a model of the running server, or the model to start a server with (default: the "
        "first model of the running server)",
    )
    parser.add_argument(
        "--url",
        type=argtypes.address,
        help=f"address of a running server (default: {DEFAULT_URL}, if one runs there)",
    )
    parser.add_argument("--api-key", metavar="KEY", help="API key of the server")
    parser.add_argument(
        "--context", type=argtypes.count, metavar="N", help="context, if a server is started"
    )
    parser.add_argument(
        "--print", action="store_true", help="print the command line instead of starting anything"
    )


def run(args: argparse.Namespace) -> int:
    if args.agent is None:
        raise UsageError(f"name an AGENT: {', '.join(AGENTS)}")
    if args.agent not in AGENTS:
        near = nearest(args.agent, AGENTS)
        hint = f"; did you mean {near}?" if near else f"; known are {', '.join(AGENTS)}"
        raise UsageError(f"there is no agent {args.agent!r}{hint}")
    agent = AGENTS[args.agent]
    program = shutil.which(agent.program)
    if program is None and not args.print:
        raise DeviceError(
            f"{args.agent} cannot be started",
            "it is not installed, or not on PATH",
            f"install it ({agent.install}), or use --print",
        )
    with _server(args) as server:
        launch = agent.launch(server)
        command = [program or agent.program, *launch.arguments, *args.arguments]
        if args.print:
            assignments = [f"{name}={shlex.quote(v)}" for name, v in launch.variables.items()]
            print(" ".join([*assignments, shlex.join([agent.program, *command[1:]])]))
            return 0
        return subprocess.run(
            command, env={**os.environ, **launch.variables}, check=False
        ).returncode


@contextmanager
def _server(args: argparse.Namespace) -> Iterator[Server]:
    """Yield the running server, or a new one that is stopped at the end. Raises ZincError."""
    key = args.api_key or NO_KEY
    url = args.url or DEFAULT_URL
    names = _model_names(url, key, must_run=args.url is not None)
    if names is not None and (args.url is not None or args.model in (None, *names)):
        yield Server(url, _chosen(args.model, names), key)
    elif args.print:
        yield Server(url, "default" if args.model is None else client_name(args.model), key)
    elif args.model is None:
        raise RequestError(
            "there is no server to use",
            f"none is running at {DEFAULT_URL}",
            "name a model to serve with --model, or a server with --url",
        )
    else:
        parsed.model_path(args)  # offers to download a missing model, which the server cannot
        with _started(args) as started:
            found = _model_names(started, key, must_run=True)
            assert found is not None
            yield Server(started, found[0], key)


def _chosen(model: str | None, names: list[str]) -> str:
    if model is None:
        return names[0]
    if model not in names:
        known = ", ".join(names[:10])
        raise RequestError(
            f"the server has no model {model!r}",
            f"its models are {known}",
            "name one of them with --model",
        )
    return model


def _model_names(url: str, key: str, must_run: bool) -> list[str] | None:
    """Return the names of a server's models; None if no server runs there. Raises DeviceError."""
    request = Request(f"{url}/v1/models", headers={"Authorization": f"Bearer {key}"})
    try:
        # Proxies of the environment do not apply: the server is on this machine or its network.
        with build_opener(ProxyHandler({})).open(request, timeout=_TIMEOUT_S) as response:
            rows: list[dict[str, Any]] = json.load(response)["data"]
            return [str(row["id"]) for row in rows]
    except HTTPError as error:
        if not must_run and error.code not in (401, 403):
            return None
        hint = "set --api-key" if error.code in (401, 403) else "check --url"
        raise DeviceError(f"the server at {url} answers {error.code}", "", hint) from None
    except (URLError, OSError, ValueError, KeyError, TypeError) as error:
        if not must_run:
            return None
        reason = error.reason if isinstance(error, URLError) else error
        raise DeviceError(
            f"there is no zinc server at {url}", str(reason), "start it with zinc serve"
        ) from None


@contextmanager
def _started(args: argparse.Namespace) -> Iterator[str]:
    """Start a server on a free port and yield its address. Raises ZincError if that fails."""
    command = [sys.executable, "-m", "zinc", "serve", args.model, "--port", "0"]
    if args.context is not None:
        command += ["--context", str(args.context)]
    with tempfile.TemporaryFile("w+") as log, tempfile.NamedTemporaryFile("w") as key:
        if args.api_key:  # in a file, since other users can read command lines
            key.write(f"{args.api_key}\n")
            key.flush()
            command += ["--api-key-file", key.name]
        print(f"zinc: starting a server for {args.model}", file=sys.stderr)
        # A session of its own, so that Ctrl-C in the agent does not stop the server.
        process = subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            yield _address(process, log)
        finally:
            process.terminate()
            process.wait()


def _address(process: subprocess.Popen[bytes], log: IO[str]) -> str:
    """Wait until the server in `process` prints its address, and return it. Raises ZincError."""
    until = time.monotonic() + _LOAD_S
    while time.monotonic() < until:
        log.seek(0)
        text = log.read()
        for word in text.split():
            if word.startswith("http://") and process.poll() is None:
                return word.rstrip("/.,")
        if process.poll() is not None:
            last = text.strip().splitlines()[-1:] or ["it wrote no message"]
            raise ZincError("the server did not start", last[0].removeprefix("zinc: "))
        time.sleep(0.05)
    raise ZincError(
        "the server did not start",
        f"it was not ready after {_LOAD_S:.0f} s",
        "start it with `zinc serve`, and name its address with --url",
    )
