"""Unigram tokenization, compared with SentencePiece."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from data.encoder_texts import checksum, random_texts

from zinc import Tokenizer
from zinc.core.errors import ModelError, TextTooLongError
from zinc.formats.gguf import GGUFFile
from zinc.tokenizer.charsmap import CharacterMap

ENCODERS = Path(__file__).parents[1] / "data" / "encoders"
MODEL = ENCODERS / "tokenizers" / "unigram.gguf"


def tokenizer(**changes: object) -> Tokenizer:
    with GGUFFile.open(MODEL) as file:
        metadata = dict(file.metadata)
        tokens = file.metadata["tokenizer.ggml.tokens"].to_list()
        given = {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
        return Tokenizer.from_metadata({**metadata, "tokenizer.ggml.tokens": tokens, **given})


@pytest.fixture(scope="module")
def unigram() -> Tokenizer:
    return tokenizer()


@pytest.fixture(scope="module")
def charsmap() -> bytes:
    with GGUFFile.open(MODEL) as file:
        return file.metadata["tokenizer.ggml.precompiled_charsmap"].to_numpy().tobytes()


def test_ids_of_random_texts_are_those_of_sentencepiece(unigram: Tokenizer) -> None:
    with np.load(ENCODERS / "tokenizers" / "unigram.npz") as data:
        want = data["ids"].tolist()
    wrong = [
        text
        for text, sum_of_ids in zip(random_texts(), want, strict=True)
        if checksum(unigram.encode(text, add_special=False)) != sum_of_ids
    ]
    assert wrong == []


def test_bos_and_eos_are_around_a_text_and_between_two(unigram: Tokenizer) -> None:
    bos, eos = unigram.id_of("<s>"), unigram.id_of("</s>")
    a, b = (unigram.encode(text, add_special=False) for text in ("The fox", "runs"))
    assert unigram.encode("The fox") == [bos, *a, eos]
    assert unigram.encode("") == [bos, eos]
    assert unigram.encode_pair("The fox", "runs") == [bos, *a, eos, eos, *b, eos]
    assert unigram.decode([bos, *a, eos]) == "The fox"


def test_markers_in_text_are_text(unigram: Tokenizer) -> None:
    assert unigram.id_of("</s>") not in unigram.encode("a </s> b", add_special=False)
    ids = unigram.encode("a </s> b", add_special=False, parse_special=True)
    assert ids.count(unigram.id_of("</s>")) == 1


def test_spaces_are_merged_if_the_file_says_so(unigram: Tokenizer) -> None:
    assert unigram.encode("  a \t b  ") == unigram.encode("a b")
    kept = tokenizer(remove_extra_whitespaces=False)
    assert len(kept.encode("a  b")) == len(kept.encode("a b")) + 1


def test_long_texts_are_cut_between_words(unigram: Tokenizer) -> None:
    text = "the quick, brown fox é 你好 runs " * 9000
    once = unigram.encode("the quick, brown fox é 你好 runs", add_special=False)
    assert unigram.encode(text, add_special=False) == once * 9000
    with pytest.raises(TextTooLongError):
        unigram.encode(text, limit=100)


def test_the_longest_sequence_is_replaced(charsmap: bytes) -> None:
    table = CharacterMap(charsmap, "a file")
    assert table.apply("Fi\u00e9! \ufb01n\uff01\u3000\u200b\u0301") == "Fie! fin! \u0301"
    assert CharacterMap(b"", "a file").apply("\ufb01") == "\ufb01"


@pytest.mark.parametrize("damage", ["short", "size", "value"])
def test_a_damaged_table_is_refused(charsmap: bytes, damage: str) -> None:
    n_bytes = int.from_bytes(charsmap[:4], "little")
    data = {
        "short": charsmap[:9],
        "size": (n_bytes + 1).to_bytes(4, "little") + charsmap[4:],
        "value": charsmap[: 4 + n_bytes],
    }[damage]
    with pytest.raises(ModelError, match=re.escape("precompiled_charsmap")):
        CharacterMap(data, "a file").apply("\ufb01")


@pytest.mark.parametrize("changes", [{"scores": None}, {"precompiled_charsmap": [1.5]}])
def test_a_damaged_vocabulary_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ModelError, match="damaged tokenizer"):
        tokenizer(**changes)
