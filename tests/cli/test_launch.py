"""`zinc launch` starts agents with the right environment and arguments; agents are scripts here."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from server.serving import MODEL, Running, running

from zinc.cli import launch
from zinc.cli.main import main
from zinc.engine.load.files import EMBEDDED_MODEL

AGENT = """#!{python}
import json, os, sys, urllib.request
names = ("ANTHROPIC_", "OPENAI_", "OPENCODE_", "GOOSE_")
found = {{k: v for k, v in os.environ.items() if k.startswith(names)}}
url = found.get("ANTHROPIC_BASE_URL")
models = json.load(urllib.request.urlopen(url + "/v1/models")) if url else None
json.dump([found, sys.argv[1:], models], open({out!r}, "w"))
sys.exit(3)
"""


@pytest.fixture(scope="module")
def server():
    with running() as found:
        yield found


@pytest.fixture
def agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put scripts with the names of all agents on PATH; return the file that they write."""
    out = tmp_path / "out.json"
    for agent in launch.AGENTS.values():
        script = tmp_path / agent.program
        script.write_text(AGENT.format(python=sys.executable, out=str(out)))
        script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("no_proxy", "*")
    return out


def launched(out: Path, *argv: str) -> tuple[dict[str, str], list[str], Any]:
    """Return variables, arguments and the models that the agent saw."""
    assert main(["launch", *argv]) == 3  # the agent's own status
    variables, arguments, models = json.loads(out.read_text())
    return variables, arguments, models


def test_claude_gets_anthropics_variables(server: Running, agents: Path) -> None:
    variables, arguments, models = launched(agents, "claude", "--url", server.url, "--", "-p", "hi")
    assert variables["ANTHROPIC_BASE_URL"] == server.url
    assert variables["ANTHROPIC_MODEL"] == variables["ANTHROPIC_DEFAULT_HAIKU_MODEL"] == MODEL
    assert arguments == ["-p", "hi"]
    assert models["data"][0]["id"] == MODEL


def test_codex_gets_a_provider_as_settings(server: Running, agents: Path) -> None:
    variables, arguments, _ = launched(agents, "codex", "--url", server.url, "--api-key", "k")
    assert variables["OPENAI_API_KEY"] == "k"
    assert f'model_providers.zinc.base_url="{server.url}/v1"' in arguments
    assert 'model_providers.zinc.wire_api="responses"' in arguments
    assert arguments.count("-c") == len(arguments) // 2


def test_opencode_gets_its_configuration_as_json(server: Running, agents: Path) -> None:
    variables, _, _ = launched(agents, "opencode", "--url", server.url)
    config = json.loads(variables["OPENCODE_CONFIG_CONTENT"])
    assert config["model"] == f"zinc/{MODEL}"
    assert config["provider"]["zinc"]["options"]["baseURL"] == f"{server.url}/v1"


@pytest.mark.parametrize("name", ["aider", "goose", "qwen"])
def test_others_get_the_address_of_openais_api(name: str, server: Running, agents: Path) -> None:
    variables, arguments, _ = launched(agents, name, "--url", server.url)
    assert any(value.startswith(server.url) for value in variables.values())
    assert any(MODEL in value for value in (*variables.values(), *arguments))


def test_a_server_is_started_for_a_model_and_stopped(agents: Path) -> None:
    variables, _, models = launched(agents, "claude", "--model", str(EMBEDDED_MODEL))
    assert models["data"][0]["id"] == EMBEDDED_MODEL.stem
    url = variables["ANTHROPIC_BASE_URL"]
    assert launch._model_names(url, launch.NO_KEY, must_run=False) is None


def test_print_starts_nothing(server: Running, agents: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["launch", "aider", "--url", server.url, "--print"]) == 0
    assert not agents.exists()
    assert f"OPENAI_API_BASE={server.url}/v1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["claude", "--url", "http://127.0.0.1:9"], "there is no zinc server at"),
        (["claude", "--model", "nowhere.gguf"], "cannot open nowhere.gguf"),
    ],
)
def test_a_failure_is_one_line(
    argv: list[str], said: str, agents: Path, capsys: pytest.CaptureFixture
) -> None:
    assert main(["launch", *argv]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("command", [("launch", "codex", "--print"), ("ps",)])
@pytest.mark.parametrize("url", ["nonsense", "http://", "ftp://127.0.0.1", "127.0.0.1:8080"])
def test_an_address_without_scheme_or_host_is_wrong_usage(zinc, command, url) -> None:
    result = zinc(*command, "--url", url)
    assert result.status == 2
    assert f"--url: {url!r} is not an address such as http://127.0.0.1:8080." in result.err


def test_a_model_that_the_server_lacks_is_an_error(
    server: Running, agents: Path, capsys: pytest.CaptureFixture
) -> None:
    assert main(["launch", "claude", "--url", server.url, "--model", "other"]) == 1
    assert "has no model 'other'" in capsys.readouterr().err


def test_an_agent_that_is_not_installed_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["launch", "codex"]) == 1
    assert "npm install -g @openai/codex" in capsys.readouterr().err


def test_an_agent_must_be_named(zinc) -> None:
    result = zinc("launch")
    assert result.status == 2
    assert "name an AGENT: claude, codex" in result.err
