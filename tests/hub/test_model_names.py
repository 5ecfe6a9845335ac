"""The forms of a model name, and the errors for other text."""

from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zinc.core.errors import FormatError
from zinc.hub.catalogue import CATALOGUE
from zinc.hub.errors import MissingModelError, ModelNameError
from zinc.hub.names import FileName, HubName, OllamaName, is_model_name, parse
from zinc.hub.resolve import resolve

REPO = "unsloth/Qwen3-8B-GGUF"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (REPO, HubName(REPO)),
        (f"{REPO}:Q4_K_M", HubName(REPO, "Q4_K_M")),
        (f"{REPO}:ud-q4_k_xl", HubName(REPO, "ud-q4_k_xl")),
        (f"{REPO}:sub/a-Q8_0.gguf", HubName(REPO, file="sub/a-Q8_0.gguf")),
        (f"hf.co/{REPO}:Q8_0", HubName(REPO, "Q8_0")),
        (f"https://huggingface.co/{REPO}", HubName(REPO)),
        (f"https://hf.co/{REPO}/tree/main", HubName(REPO)),
        (f"https://huggingface.co/{REPO}/blob/main/a.gguf", HubName(REPO, file="a.gguf")),
        (
            f"https://huggingface.co/{REPO}/resolve/v2/x/a.gguf?download=true",
            HubName(REPO, file="x/a.gguf", revision="v2"),
        ),
        (f"https://hub.example:8443/{REPO}", HubName(REPO, endpoint="https://hub.example:8443")),
        ("qwen3:8b", HubName(REPO)),
        ("Qwen3", HubName(REPO)),
        ("qwen3:8b-q8_0", HubName(REPO, "Q8_0")),
        ("qwen3:4b-instruct-q4_k_m", HubName("unsloth/Qwen3-4B-Instruct-2507-GGUF", "Q4_K_M")),
        ("ollama:qwen3", OllamaName("library/qwen3")),
        ("ollama:qwen3:8b", OllamaName("library/qwen3", "8b")),
        ("ollama:me/mine:v1", OllamaName("me/mine", "v1")),
        ("ollama:reg.example/me/mine", OllamaName("me/mine", registry="https://reg.example")),
        ("ollama:http://127.0.0.1:5000/library/x:y",
         OllamaName("library/x", "y", "http://127.0.0.1:5000")),
    ],
)  # fmt: skip
def test_forms_of_a_name(text, expected):
    assert parse(text) == expected


@pytest.mark.parametrize("name", [HubName(REPO, "Q4_K_M"), OllamaName("a/b", "c")])
def test_a_name_is_written_as_it_is_read(name):
    assert parse(str(name)) == name


@pytest.mark.parametrize(
    "text", ["model.gguf", "./model", "~/m/a.gguf", "/a/b", "a/b/c", "a/b.gguf"]
)
def test_text_that_is_written_as_a_path_is_one(text):
    assert isinstance(parse(text), FileName)


def test_a_file_that_exists_wins(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("qwen3", "org"):
        (tmp_path / name).touch()
        assert isinstance(parse(name), FileName)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").touch()
    assert isinstance(parse("a/b"), FileName)


@pytest.mark.parametrize(
    "text",
    [
        "", " qwen3", "a\nb", "ftp://x/y", "https://huggingface.co/", "https://x/onlyone",
        "https://user:pw@host/org/repo", "ollama:", "ollama:a/b/c/d", "a/b:", "a/b:x y",
        "a/b:../c.gguf", f"https://huggingface.co/{REPO}/resolve/main/a.safetensors", "what is it?",
        f"https://huggingface.co/{REPO}/tree/..",
    ],
)  # fmt: skip
def test_text_that_is_no_name(text):
    with pytest.raises(ModelNameError):
        parse(text)


@given(st.text(max_size=40))
def test_any_text_is_a_name_or_a_sentence(text):
    with contextlib.suppress(ModelNameError):
        assert isinstance(parse(text), FileName | HubName | OllamaName)


def test_a_short_name_that_is_unknown_gets_suggestions():
    with pytest.raises(ModelNameError, match=r"Similar names are qwen3:8b, qwen3:"):
        parse("qwen3:9b")
    with pytest.raises(ModelNameError, match=r"Similar names are gemma3:4b"):
        parse("gema3:4b")
    with pytest.raises(ModelNameError, match="zinc list --catalogue"):
        parse("zzzzzz")


def test_every_entry_of_the_catalogue_is_a_repository_and_finds_itself():
    for entry in CATALOGUE:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+-GGUF", entry.repo)
        assert parse(entry.name) == HubName(entry.repo)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("model.gguf", True), ("MODEL.GGUF", True), ("./model", True), ("org/repo", True),
        ("~/model", True), ("/", True), ("qwen3:8b", True), ("qwen3", True), ("ollama:x", True),
        ("qwen3:9b", True), ("Nemo:1.5B-q8_0", True), ("at:12", False), ("12:30m", False),
        ("hello", False), ("and / or", False), ("is it a/b or c/d?", False), ("3:4", False),
        ("line\na/b", False), ("what is a .gguf", False), ("a/b ", False), ("", False),
    ],
)  # fmt: skip
def test_which_first_words_of_run_are_models(word, expected):
    assert is_model_name(word) is expected


def test_a_missing_model_says_how_to_get_it(home):
    with pytest.raises(MissingModelError, match=r"Run `zinc pull qwen3:8b`\."):
        resolve("qwen3:8b")
    with pytest.raises(FormatError, match="there is no such file"):
        resolve("missing.gguf")
    with pytest.raises(FormatError, match="it is a folder"):
        resolve("/tmp")
