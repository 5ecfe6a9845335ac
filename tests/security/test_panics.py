"""Panics of Rust libraries and models that fail to load become errors, logged once."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from serving import MODEL, Running, running

from zinc.core.errors import ModelError, RequestError
from zinc.core.native import is_panic
from zinc.engine.load.files import EMBEDDED_MODEL
from zinc.engine.load.options import LoadOptions
from zinc.engine.structured import GrammarConstraint
from zinc.formats.gguf import GGUFFile
from zinc.server.config import ModelSource
from zinc.server.runtime import pool
from zinc.tokenizer import Tokenizer

sys.path.insert(0, str(Path(__file__).parents[1] / "tokenizer"))

from small_vocabularies import byte_level

from zinc.tokenizer.vocabulary import TokenKind


def panic() -> BaseException:
    """Return a panic of the tokenizer library, caused by a merge longer than any token."""
    from tokenizers.models import BPE

    with pytest.raises(BaseException, match="out of range") as found:
        BPE({"a": 0, "b": 1}, [("a", "b")])
    return found.value


def test_panics_are_recognised():
    found = panic()
    assert is_panic(found)
    assert not isinstance(found, Exception)
    for other in (KeyboardInterrupt(), SystemExit(), Exception(), RequestError("a")):
        assert not is_panic(other)


def test_a_merge_without_token_is_left_out():
    tokens = ("ab", TokenKind.NORMAL)
    found = Tokenizer.from_metadata(byte_level(tokens, merges=["a b", "ab c", "é è"]))
    assert [found.text_of(id) for id in found.encode("abc")] == ["ab", "c"]


def test_merges_that_make_the_library_panic_are_a_format_error(monkeypatch):
    from zinc.tokenizer import bpe

    error = panic()
    monkeypatch.setattr(bpe.models, "BPE", lambda *_, **__: (_ for _ in ()).throw(error))
    with pytest.raises(ModelError, match="fails on its merges"):
        Tokenizer.from_metadata(byte_level(merges=["a b"]))


def test_millions_of_spaces_are_a_bad_request(server: Running):
    """The tokenizer library panics on eleven million spaces."""
    for path, fields in (
        ("/tokenize", {"content": " " * 11_000_000}),
        ("/v1/completions", {"prompt": " " * 11_000_000}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": " " * 11_000_000}]}),
    ):
        answer = server.post(path, fields)
        assert answer.status == 400, answer.body
        assert "text" in answer.json["error"]["message"] or answer.json["error"]["n_ctx"]


def test_a_panic_of_the_tokenizer_is_a_bad_request(server: Running, monkeypatch):
    assert server.application.pool is not None
    (model,) = server.application.pool.loaded
    error = panic()

    class Panicking:
        def encode(self, *_: object, **__: object) -> None:
            raise error

    monkeypatch.setattr(model.tokenizer._encoder, "_tokenizer", Panicking())
    answer = server.post("/v1/completions", {"prompt": "a", "max_tokens": 1})
    assert answer.status == 400
    assert "cannot be tokenized" in answer.json["error"]["message"]


def test_a_panic_elsewhere_is_an_internal_error(server: Running, monkeypatch):
    assert server.application.pool is not None
    (model,) = server.application.pool.loaded
    error = panic()
    monkeypatch.setattr(type(model.llm), "dry_breakers", lambda *_: (_ for _ in ()).throw(error))
    answer = server.post("/v1/completions", {"prompt": "a", "max_tokens": 1})
    assert (answer.status, answer.json["error"]["code"]) == (500, "internal_error")


class PanickingMatcher:
    """A parser of the grammar library that panics in one of its methods."""

    def __init__(self, matcher: object, method: str) -> None:
        self._matcher, self._method = matcher, method

    def __getattr__(self, name: str) -> object:
        if name == self._method:
            raise panic()
        return getattr(self._matcher, name)


@pytest.mark.parametrize("method", ["unsafe_compute_mask_ptr", "consume_token"])
def test_a_panic_in_a_grammar_ends_only_its_request(server: Running, monkeypatch, method):
    pytest.importorskip("llguidance")
    begin = GrammarConstraint.__init__

    def begun(self: GrammarConstraint, *args: Any) -> None:
        begin(self, *args)
        self._matcher = PanickingMatcher(self._matcher, method)

    monkeypatch.setattr(GrammarConstraint, "__init__", begun)
    other = {"prompt": "Once upon a time", "max_tokens": 40, "temperature": 0, "ignore_eos": True}
    alone = server.post("/v1/completions", other).json["choices"][0]["text"]
    with ThreadPoolExecutor(1) as thread:
        beside = thread.submit(server.post, "/v1/completions", other)
        answer = server.post(
            "/completion", {"prompt": "a", "max_tokens": 20, "grammar": "root ::= [a-z]+"}
        )
        assert answer.status == 400, answer.body
        assert "the grammar cannot be followed" in answer.json["error"]["message"]
        assert beside.result().json["choices"][0]["text"] == alone


# -- models that cannot be loaded -----------------------------------------------------------------


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Collect the paths of the files that are loaded."""
    found: list[Path] = []
    load = pool.load_llm

    def noted(options: LoadOptions, *args: object) -> object:
        found.append(options.path)
        return load(options, *args)

    monkeypatch.setattr(pool, "load_llm", noted)
    return found


def test_a_damaged_model_is_loaded_once_until_its_file_changes(tmp_path: Path, loads: list[Path]):
    bad = tmp_path / "bad.gguf"
    whole = EMBEDDED_MODEL.read_bytes()
    with GGUFFile.open(EMBEDDED_MODEL) as file:
        assert "tokenizer.ggml.tokens" in file.metadata
    bad.write_bytes(whole.replace(b"tokenizer.ggml.tokens", b"tokenizer.ggml.tokenz", 1))
    models = (ModelSource(MODEL, None), ModelSource("bad", bad))
    fields = {"prompt": "a", "max_tokens": 1, "model": "bad"}
    with running(models=models) as server:
        answers = [server.post("/v1/completions", fields) for _ in range(3)]
        assert [each.status for each in answers] == [500] * 3
        assert len({each.json["error"]["message"] for each in answers}) == 1
        assert "no tokenizer" in answers[0].json["error"]["message"]
        assert loads.count(bad) == 1
        bad.write_bytes(whole)
        assert server.post("/v1/completions", fields).status == 200
        assert loads.count(bad) == 2


def test_a_panic_while_a_model_loads_is_logged_once(
    tmp_path: Path, loads: list[Path], monkeypatch: pytest.MonkeyPatch
):
    other = tmp_path / "other.gguf"
    other.write_bytes(EMBEDDED_MODEL.read_bytes())
    models = (ModelSource(MODEL, None), ModelSource("other", other))
    error, load = panic(), pool.load_llm

    def failing(options: LoadOptions, *args: object) -> object:
        if options.path == other:
            loads.append(options.path)
            raise error
        return load(options, *args)

    monkeypatch.setattr(pool, "load_llm", failing)
    loads.clear()
    fields = {"prompt": "a", "max_tokens": 1, "model": "other"}
    with running(models=models) as server:
        for _ in range(3):
            answer = server.post("/v1/completions", fields)
            assert answer.status == 500
            assert "cannot be loaded" in answer.json["error"]["message"]
        rows = {row["id"]: row["state"] for row in server.get("/v1/models").json["data"]}
        assert rows == {MODEL: "loaded", "other": "failed"}
    assert loads.count(other) == 1
