"""Long text tokenized in chunks gives the ids of the whole text, and stops at a limit."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from small_vocabularies import byte_level, scored
from test_ids import DATA, FILES, TEXTS

from zinc.core.errors import RequestError, TextTooLongError
from zinc.tokenizer import Tokenizer, bpe, specials, spm
from zinc.tokenizer import chunks as chunking
from zinc.tokenizer import tokenizer as tokenizers
from zinc.tokenizer.pretokenizers import pretokenizer, pretokenizer_names
from zinc.tokenizer.specials import SHIELD, SpecialTokens
from zinc.tokenizer.vocabulary import TokenKind

SOURCE = Path(bpe.__file__).parents[2]
NEVER = 1 << 40


@cache
def metadata(name):
    return json.loads((DATA / f"{name}.json").read_text())["metadata"]


@cache
def tokenizer(name, pre=None):
    found = metadata(name)
    if pre is not None:
        found = found | {"tokenizer.ggml.pre": pre}
    return Tokenizer.from_metadata(found, name)


# One name of each kind; the others are spellings of these.
PRE_TOKENIZERS = list({pretokenizer(name): name for name in pretokenizer_names()}.values())
KINDS = [(name, None) for name in FILES] + [("qwen2", pre) for pre in PRE_TOKENIZERS]

WORDS = (
    *"aZ éßДяÄαΩ한국字漢かカー々ก्ःع٣۴½²Ⅷ0129'’\"_-/.,;:!?()[]{}<>@#$%^&*+=|\\`~¡¿。，、！？；：・…",
    *"\n\r\t\v\f\x1c\x85\u00a0\u2003\u2028\u3000\u200b\u200d\u0301\u3099\ufe0f▁😀🏽",
    *("  ", "   ", "\n\n", "\r\n", " \n", "\n ", " a", "a b", "字。字", "'s", "'S", "'re", "'ſ"),
    *(
        "the",
        "THE",
        "The",
        "don't",
        "123",
        "1234567",
        "한국 사람",
        "か。カ",
        "где я",
        "<s>",
        "<|im_end|>",
    ),
)
MIXED = st.lists(st.sampled_from(WORDS), max_size=40).map("".join)


def encode_in_chunks(tokenizer, text, size):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunking, "CHUNK_CHARACTERS", size)
        patch.setattr(bpe, "LONG_CHARACTERS", 0 if size < NEVER else NEVER)
        patch.setattr(spm, "CHUNK_CHARACTERS", size)
        return tokenizer.encode(text, parse_special=True)


@pytest.mark.alike(14)
@pytest.mark.parametrize(("name", "pre"), KINDS)
def test_chunks_give_the_ids_of_the_whole_text(name, pre):
    found = tokenizer(name, pre)

    @settings(max_examples=examples(200))
    @given(MIXED | st.text(max_size=40))
    def check(text):
        whole = encode_in_chunks(found, text, NEVER)
        for size in (1, 5):
            assert encode_in_chunks(found, text, size) == whole

    check()
    for text in TEXTS:
        assert encode_in_chunks(found, text, 1) == encode_in_chunks(found, text, NEVER)


@pytest.mark.parametrize("name", [name for name in FILES if name != "rwkv"])  # which needs no cuts
def test_text_of_words_lines_or_ideographs_is_cut(name):
    for text in ("the words of a text " * 20, "line\n" * 80, "字典。" * 80):
        encoder = tokenizer(name)._encoder
        if name in ("gemma-4", "llama-spm", "phi-3"):
            text = text.replace(" ", "▁")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(chunking, "CHUNK_CHARACTERS", 10)
            chunks = list(encoder._chunker.chunks(text))
        assert "".join(chunks) == text
        assert max(map(len, chunks)) <= 40


@pytest.mark.alike(4)
@pytest.mark.parametrize("name", FILES)
def test_more_tokens_than_the_limit_raise(name):
    found = tokenizer(name)
    for text in ("the words of a text\n" * 500, "字典。" * 3000, "a", ""):
        whole = found.encode(text, add_special=False)
        assert found.encode(text, add_special=False, limit=len(whole)) == whole
        assert found.encode_prompt(text, limit=len(whole) + 1) == found.encode_prompt(text)
        if whole:
            with pytest.raises(TextTooLongError) as error:
                found.encode(text, add_special=False, limit=len(whole) - 1)
            assert (error.value.n_tokens, error.value.is_exact) == (len(whole), True)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("text", ["the words of a text\n" * 50, "字典。" * 300, "<s>" * 100])
def test_the_bound_by_length_is_never_above_the_count(name, text):
    found = tokenizer(name)
    whole = found.encode(text, add_special=False, parse_special=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizers, "_COUNTED_CHARACTERS", 0)
        patch.setattr(chunking, "CHUNK_CHARACTERS", 10)
        for limit in (0, 1, len(whole) // 2, len(whole) - 1):
            with pytest.raises(TextTooLongError) as error:
                found.encode(text, add_special=False, parse_special=True, limit=limit)
            assert limit < error.value.n_tokens <= len(whole)
        assert found.encode(text, False, True, limit=len(whole)) == whole


def test_a_text_that_cannot_fit_is_not_tokenized(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tokenizers, "_COUNTED_CHARACTERS", 0)
    found = tokenizer("qwen2")
    longest = found.longest_token_characters
    monkeypatch.setattr(found._encoder, "encode", None)
    with pytest.raises(TextTooLongError, match="at least 11 tokens, and there is room for 10"):
        found.encode("x" * (10 * longest + 1), limit=10)
    with pytest.raises(TextTooLongError, match="at least 11 tokens"):
        found.encode_prompt("<|im_end|>" * 11, limit=10)


def test_tokenizing_stops_at_the_limit(monkeypatch: pytest.MonkeyPatch):
    found = tokenizer("qwen2")
    tokenized: list[int] = []
    encode = found._encoder._encode
    monkeypatch.setattr(
        found._encoder, "_encode", lambda text: tokenized.append(len(text)) or encode(text)
    )
    monkeypatch.setattr(found, "longest_token_characters", NEVER)
    with pytest.raises(TextTooLongError):
        found.encode("some words\n" * 100_000, limit=1000)
    assert sum(tokenized) <= 2 * chunking.CHUNK_CHARACTERS


def test_characters_without_a_token_disable_the_bound():
    found = Tokenizer.from_metadata(byte_level() | {"tokenizer.ggml.tokens": ["a", "b"]} | {
        "tokenizer.ggml.token_type": [1, 1]
    })  # fmt: skip
    assert found.encode("c" * 1000 + "a", limit=1) == [0]


def test_a_run_that_cannot_be_cut_is_refused():
    for found in (
        Tokenizer.from_metadata(byte_level(("  ", TokenKind.NORMAL))),
        Tokenizer.from_metadata(scored({"▁▁": -1.0, "▁": -2.0})),
    ):
        with pytest.raises(RequestError, match="a run of spaces"):
            found.encode(" " * 11_000_000)


HOSTILE_RUNS = """
import json, sys
from zinc.core.errors import RequestError
from zinc.tokenizer import Tokenizer

metadata = json.load(open(sys.argv[1]))["metadata"]
for pre in sys.argv[2:]:
    tokenizer = Tokenizer.from_metadata(metadata | {"tokenizer.ggml.pre": pre}, pre)
    for run in (" ", "\\n", " \\n", "\\r", "\\u3000", "a", "A", "Aa", "'", "'s", "1", "1a"):
        for tail in ("", "x"):
            tokenizer.encode(run * (20_000 // len(run)) + tail)
    print(pre, flush=True)
"""


@pytest.mark.every
def test_no_pretokenizer_backtracks_quadratically():
    """Patterns that backtrack quadratically would take minutes here."""
    ran = subprocess.run(
        [sys.executable, "-c", HOSTILE_RUNS, str(DATA / "qwen2.json"), *PRE_TOKENIZERS],
        env={"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert ran.stdout.split() == PRE_TOKENIZERS, ran.stderr[-500:]


SPECIALS = st.lists(st.text("ab<>", min_size=1, max_size=6), max_size=8, unique=True)


@settings(max_examples=examples(1000))
@given(SPECIALS, st.text("ab<>c", max_size=40), st.sampled_from([0, 8, 256]))
def test_many_special_tokens_are_split_like_few(tokens, text, short):
    found = SpecialTokens({token: id for id, token in enumerate(tokens)})
    few, few_shielded = found.split(text), found.shield(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(specials, "_FEW", -1)
        patch.setattr(specials, "_SHORT", short)
        assert found.split(text) == few
        assert found.shield(text) == few_shielded
        n_found = sum(isinstance(piece, int) for piece in few)
        assert found.split(text, n_found) == few
        if n_found:
            with pytest.raises(TextTooLongError):
                found.split(text, n_found - 1)


def test_a_text_with_thousands_of_different_special_tokens_is_fast():
    """Searching each token in each piece would take half a minute."""
    n = 6000
    found = SpecialTokens({f"<unused{id}>": id for id in range(n)})
    text = "".join(f"<unused{id}>x" for id in range(n)) * 10
    assert found.split(text)[::2] == list(range(n)) * 10
    assert found.shield(text).count(SHIELD) == 10 * n
