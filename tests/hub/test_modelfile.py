"""Modelfiles: their syntax, and where they are accepted."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zinc.core.errors import FormatError, UnsupportedError, ZincError
from zinc.engine.load.files import EMBEDDED_MODEL, resolve_model
from zinc.hub.errors import MissingModelError
from zinc.hub.modelfile import Modelfile, Parameter, is_modelfile, parse, text_of
from zinc.hub.names import is_model_name

WHOLE = '''\
# A pirate.
FROM qwen3:8b

PARAMETER temperature 0.6
parameter stop "<|im_end|>"
PARAMETER stop "a "
SYSTEM """You are a pirate.

Say "Ahoy" # often
"""
TEMPLATE """{{ .Prompt }}"""
MESSAGE user Hello there
MESSAGE assistant "Ahoy
matey!"
LICENSE MIT
'''


def test_the_instructions_are_read():
    found = parse(WHOLE, "Modelfile")
    assert found.base == "qwen3:8b"
    assert [(each.name, each.value) for each in found.parameters] == [
        ("temperature", "0.6"),
        ("stop", "<|im_end|>"),
        ("stop", "a "),
    ]
    assert found.parameters[1].where == "Modelfile, line 5"
    assert found.system == 'You are a pirate.\n\nSay "Ahoy" # often\n'
    assert (found.template, found.template_where) == ("{{ .Prompt }}", "Modelfile, line 11")
    assert found.messages == [("user", "Hello there"), ("assistant", "Ahoy\nmatey!")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("FROM a\nPARAMETR top_k 4", "line 2: PARAMETR is not an instruction. Write PARAMETER"),
        ("FROM a\n\nSYSTEM \"\"\"x\ny", 'line 3: the text has no end: no later line ends in """'),
        ('FROM a\nSYSTEM "x', 'line 2: the text has no end: no later line ends in "'),
        ("FROM a\nFROM b", "line 2: there is a second FROM"),
        ("FROM", "line 1: FROM has no value"),
        ("FROM a\nPARAMETER seed", "line 2: PARAMETER seed has no value"),
        ("FROM a\nMESSAGE robot hello", "line 2: robot is not a role"),
        ("FROM a\nADAPTER", "line 2: ADAPTER has no value"),
        ("SYSTEM x", "Modelfile names no model: it has no FROM"),
    ],
)  # fmt: skip
def test_an_error_names_the_line(text: str, said: str):
    with pytest.raises((FormatError, UnsupportedError)) as caught:
        parse(text, "Modelfile")
    assert said in str(caught.value)


@given(st.text())
def test_any_text_is_read_or_refused(text: str):
    with suppress(ZincError):
        assert parse(text, "Modelfile").base


@pytest.mark.parametrize("value", ["plain", " blanks ", '"', 'a "b"', "two\nlines", "", '"""'])
def test_what_is_written_is_read_back(value: str):
    parameters = [Parameter("stop", ("a", "b"), ""), Parameter("top_k", 4, "")]
    written = Modelfile("demo", parameters, value, [("user", f"{value}!")])
    found = parse(text_of(written), "Modelfile")
    assert (found.base, found.system, found.messages) == ("demo", value, [("user", f"{value}!")])
    assert list(found.values()) == [("stop", "a"), ("stop", "b"), ("top_k", "4")]


@pytest.mark.parametrize(
    ("name", "content", "is_one"),
    [
        ("Modelfile", b"SYSTEM x", True),
        ("Modelfile.pirate", b"# x\nFROM a", True),
        ("pirate.modelfile", b"", True),
        ("pirate", b"# x\n\nfrom demo.gguf\n", True),
        ("notes.txt", b"Write to me from home", False),
        ("Modelfile", b"GGUF\x03\x00", False),
        ("empty", b"", False),
    ],
)
def test_a_modelfile_is_known_by_its_name_or_its_start(
    tmp_path: Path, name: str, content: bytes, is_one: bool
):
    path = tmp_path / name
    path.write_bytes(content)
    assert is_modelfile(path) is is_one


def test_names_of_modelfiles_are_models_and_no_prompts():
    assert all(map(is_model_name, ("Modelfile", "pirate.Modelfile", "Modelfile.pirate")))
    assert not is_model_name("modelfiles")


def test_from_is_a_path_beside_the_modelfile_or_a_name(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("HF_HOME", "HF_HUB_CACHE", "OLLAMA_MODELS"):
        monkeypatch.setenv(name, str(tmp_path / "empty"))
    path = tmp_path / "Modelfile"
    (tmp_path / "model.gguf").symlink_to(EMBEDDED_MODEL)
    path.write_text("FROM ./model.gguf")
    assert resolve_model(path) == tmp_path / "model.gguf"
    for written, name in (("qwen3:8b", "qwen3:8b"), ("nonesuch:1b", "ollama:nonesuch:1b")):
        path.write_text(f"FROM {written}")
        with pytest.raises(MissingModelError) as caught:
            resolve_model(path)
        assert caught.value.name == name
    path.write_text("FROM ./Modelfile")
    with pytest.raises(FormatError, match="is FROM another Modelfile"):
        resolve_model(path)
