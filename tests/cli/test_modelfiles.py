"""Modelfiles as MODEL of commands and of `LLM`."""

from __future__ import annotations

from pathlib import Path

import pytest

from zinc import LLM
from zinc.cli import serve
from zinc.cli.main import build_parser
from zinc.engine.load.files import EMBEDDED_MODEL

HELLO = [{"role": "user", "content": "Say hello."}]


@pytest.fixture
def modelfile(tmp_path: Path) -> Path:
    path = tmp_path / "Modelfile"
    path.write_text(
        f"FROM {EMBEDDED_MODEL}\nPARAMETER temperature 0\nPARAMETER num_predict 12\n"
        "PARAMETER num_ctx 512\nPARAMETER num_gpu 9\nSYSTEM You are a pirate.\n"
        "MESSAGE user Hi\nMESSAGE assistant Ahoy!\n"
    )
    return path


def expected(backend: str) -> str:
    """Return the answer of the embedded model to what the Modelfile says, spelled out."""
    messages = [
        {"role": "system", "content": "You are a pirate."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Ahoy!"},
        *HELLO,
    ]
    with LLM(backend=backend) as llm:
        return llm.chat(messages, temperature=0, max_tokens=12).text


def test_run_and_the_python_api_follow_a_modelfile(zinc, backend, modelfile):
    answer = expected(backend)
    result = zinc("run", modelfile, "Say hello.", "--backend", backend)
    assert (result.status, result.out) == (0, f"{answer.strip()}\n")
    note = "zinc: Modelfile, line 5: num_gpu has no effect: --gpu-layers decides"
    assert result.err.splitlines().count(note) == 1
    with LLM(modelfile, backend=backend) as llm:
        assert (llm.chat(HELLO).text, llm.context) == (answer, 512)


def test_options_override_a_modelfile(zinc, backend, modelfile):
    options = ("--backend", backend, "--max-tokens", "1", "--stats")
    whole = zinc("run", modelfile, "Say hello.", *options, "--context", "256")
    assert "1 token" in whole.err
    with LLM(modelfile, backend=backend, context=256) as llm:
        assert llm.context == 256


def test_chat_follows_a_modelfile(zinc, backend, modelfile):
    result = zinc("chat", modelfile, "--backend", backend, stdin=b"Say hello.\n/system\n")
    assert expected(backend).strip() in result.out
    assert "You are a pirate." in result.out


def test_a_bad_line_is_one_sentence(zinc, modelfile):
    modelfile.write_text("FROM x\nPARAMTER top_k 1\n")
    result = zinc("run", modelfile, "Hi")
    assert result.status == 1
    assert result.err == (
        "zinc: Modelfile, line 2: PARAMTER is not an instruction. Write PARAMETER.\n"
    )


def test_serve_takes_the_settings_of_a_modelfile(modelfile):
    args = build_parser("serve").parse_args(["serve", f"pirate={modelfile}"])
    (source,) = serve.config(args).models
    assert (source.name, source.path) == ("pirate", EMBEDDED_MODEL)
    assert (source.settings.system, source.settings.context) == ("You are a pirate.", 512)
