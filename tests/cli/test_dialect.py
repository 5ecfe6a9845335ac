"""Options of llama.cpp, Ollama and vLLM: renamed, left out with a note, or refused."""

from __future__ import annotations

import pytest

from zinc.cli import dialect
from zinc.cli.argtypes import UsageError
from zinc.cli.dialect import translate
from zinc.cli.main import build_parser, main
from zinc.core import host_memory
from zinc.engine.load.files import EMBEDDED_MODEL

MODEL = str(EMBEDDED_MODEL)
KNOWN = {
    "--alias",
    "--context",
    "--draft",
    "--kv-dtype",
    "--max-tokens",
    "-n",
    "-m",
    "--model",
    "--system",
    "--seed",
    "--stats",
    "--stop",
}


@pytest.mark.parametrize(
    ("given", "own"),
    [
        (["--ctx-size", "512"], ["--context", "512"]),
        (["--ctx-size=512"], ["--context", "512"]),
        (["--max-model-len", "512"], ["--context", "512"]),
        (["--served-model-name", "qwen"], ["--alias", "qwen"]),
        (["-p", "a prompt", "-n", "5"], ["-n", "5", "a prompt"]),
        (["-ctk", "f16", "-ctv", "f16"], ["--kv-dtype", "f16"]),
        (["-hf", "org/repo:Q4_K_M"], ["--model", "org/repo:Q4_K_M"]),
        (["-r", "User:", "-r", "Q:"], ["--stop", "User:", "--stop", "Q:"]),
        (["-md", "small.gguf"], ["--draft", "small.gguf"]),
        (["--verbose", "Hi"], ["--stats", "Hi"]),
        (["-sys", "Be brief."], ["--system", "Be brief."]),
        (["--", "--ctx-size", "5"], ["--", "--ctx-size", "5"]),
        (["-p", "x", "--", "y"], ["x", "--", "y"]),
        (["--grace", "5"], ["--grace", "5"]),  # no option of this command
    ],
)
def test_an_option_gets_zincs_name(given: list[str], own: list[str]) -> None:
    found = translate(given, KNOWN)
    assert found.words == own
    assert not found.notes


@pytest.mark.parametrize(
    "given",
    [
        ["-fa"],
        ["-fa", "on"],
        ["-b", "512"],
        ["--no-mmap"],
        ["-ub=64"],
        ["--jinja"],
        ["--draft-max", "8"],
        ["--metrics"],
        ["--embeddings"],
        ["--tool-call-parser", "hermes"],
    ],
)
def test_an_option_without_effect_is_left_out_with_a_note(given: list[str]) -> None:
    found = translate([*given, "Hi"], KNOWN)
    assert found.words == ["Hi"]
    assert len(found.notes) == 1
    assert "has no effect" in found.notes[0]


def test_an_option_of_the_command_is_never_translated() -> None:
    assert translate(["-s", "5"], {"-s", "--seed"}).words == ["-s", "5"]


@pytest.mark.parametrize("given", [["-ctk", "f16", "-ctv", "q8_0"], ["-b"], ["--ctx-size"]])
def test_a_contradiction_and_a_missing_value_are_errors(given: list[str]) -> None:
    with pytest.raises(UsageError):
        translate(given, KNOWN)


def test_every_own_name_is_an_option_of_some_command() -> None:
    commands = next(a for a in build_parser()._actions if a.choices).choices
    options = {name for sub in commands.values() for name in sub._option_string_actions}
    own = {each.own for each in dialect.OPTIONS.values() if each.own}
    assert own <= options


def test_a_command_line_of_llama_cli_answers(capsys: pytest.CaptureFixture) -> None:
    line = ["-m", MODEL, "-p", "Hello", "-n", "4", "--ctx-size", "256", "-ngl", "99", "-fa", "on"]
    assert main(["run", *line, "--temp", "0", "-s", "1", "--no-mmap", "-b", "512"]) == 0
    found = capsys.readouterr()
    assert found.out.strip()
    assert "zinc: -fa has no effect: flash attention is always used" in found.err
    assert main(["run", MODEL, "Hello", "-n", "4", "-c", "256", "--temperature", "0"]) == 0
    assert capsys.readouterr().out == found.out


def test_a_model_is_an_argument_or_an_option(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_memory, "available_memory_bytes", lambda: 8 << 30)  # it varies
    assert main(["inspect", MODEL]) == 0
    shown = capsys.readouterr().out
    assert main(["inspect", "-m", MODEL]) == 0
    assert capsys.readouterr().out == shown
    assert main(["inspect", MODEL, "-m", MODEL]) == 2
    assert "give one" in capsys.readouterr().err


def test_a_context_of_0_is_the_default() -> None:
    parser = build_parser("serve")
    assert parser.parse_args(["serve", "-c", "0"]).context is None
    assert parser.parse_args(["serve", "-c", "512"]).context == 512


def test_minus_one_is_no_limit(capsys: pytest.CaptureFixture) -> None:
    assert main(["run", "Hi", "-n", "-1", "-c", "64", "--temperature", "0"]) == 0
    assert capsys.readouterr().out.strip()
