"""WordPiece tokenization, compared with transformers' BertTokenizer."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest
from data.encoder_texts import TEXTS, checksum, random_texts
from tokenizers.implementations import BertWordPieceTokenizer

from zinc import Tokenizer
from zinc.core.errors import ModelError, TextTooLongError
from zinc.formats.gguf import GGUFFile

ENCODERS = Path(__file__).parents[1] / "data" / "encoders"
MODEL = ENCODERS / "bert.gguf"
N_MARKERS = 5  # [PAD], [UNK], [CLS], [SEP] and [MASK]


def tokenizer(drop: str = "", **changes: object) -> Tokenizer:
    with GGUFFile.open(MODEL) as file:
        metadata = {key: value for key, value in file.metadata.items() if key != drop}
        tokens = file.metadata["tokenizer.ggml.tokens"].to_list()
    given = {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return Tokenizer.from_metadata({**metadata, "tokenizer.ggml.tokens": tokens, **given})


@pytest.fixture(scope="module")
def uncased() -> Tokenizer:
    return tokenizer()


@pytest.mark.parametrize("kind", ["uncased", "cased"])
def test_ids_of_random_texts_are_those_of_transformers(kind: str) -> None:
    with np.load(ENCODERS / "tokenizers" / "wordpiece.npz") as data:
        want = data[kind].tolist()
    made = tokenizer(**{"normalizer.lowercase": kind == "uncased"})
    wrong = [
        text
        for text, sum_of_ids in zip(random_texts(), want, strict=True)
        if checksum(made.encode(text)) != sum_of_ids
    ]
    assert wrong == []


@pytest.mark.parametrize("lowercase", [True, False])
def test_ids_of_ascii_texts_are_those_of_the_library(lowercase: bool) -> None:
    made = tokenizer(**{"normalizer.lowercase": lowercase})
    with GGUFFile.open(MODEL) as file:
        tokens = file.metadata["tokenizer.ggml.tokens"].to_list()
    pieces = [token[1:] if token.startswith("▁") else f"##{token}" for token in tokens[N_MARKERS:]]
    pieces = [*tokens[:N_MARKERS], *pieces]
    library = BertWordPieceTokenizer(
        {piece: id for id, piece in enumerate(pieces)}, lowercase=lowercase, strip_accents=lowercase
    )
    random = Random(3)
    words = [piece.removeprefix("##") for piece in pieces[N_MARKERS:]]
    for _ in range(2000):
        parts = [
            random.choice(words) * random.randrange(1, 4)
            if random.random() < 0.7
            else "".join(map(chr, random.choices(range(128), k=random.randrange(1, 110))))
            for _ in range(random.randrange(1, 12))
        ]
        text = "".join(part + random.choice(("", " ", "  ", "\n", "\t", ". ")) for part in parts)
        want = library.encode(text, add_special_tokens=False).ids
        assert made.encode(text, add_special=False) == want, text
        assert made.encode_all([text, "fox"])[0][1:-1] == want


def test_a_word_longer_than_the_longest_is_unknown_even_if_the_vocabulary_has_it() -> None:
    with GGUFFile.open(MODEL) as file:
        tokens = file.metadata["tokenizer.ggml.tokens"].to_list()
    long = "x" * 101
    made = tokenizer(tokens=[*tokens[:-1], f"▁{long}"])
    assert made.encode(f"fox {long}", add_special=False) == [
        *made.encode("fox", add_special=False),
        made.unk_id,
    ]


def test_ids_of_texts_are_those_of_transformers(uncased: Tokenizer) -> None:
    with np.load(ENCODERS / "bert.npz") as data:
        want = np.split(data["tokens"], np.cumsum(data["lengths"])[:-1])
    assert [uncased.encode(text) for text in TEXTS] == [each.tolist() for each in want]


def test_a_text_is_between_cls_and_sep(uncased: Tokenizer) -> None:
    cls, sep = uncased.id_of("[CLS]"), uncased.id_of("[SEP]")
    assert uncased.encode("") == [cls, sep]
    ids = uncased.encode("The fox")
    assert (ids[0], ids[-1]) == (cls, sep)
    assert uncased.encode("The fox", add_special=False) == ids[1:-1]
    assert uncased.decode(ids) == "the fox"


def test_markers_in_text_are_words_unless_parsed(uncased: Tokenizer) -> None:
    sep = uncased.id_of("[SEP]")
    assert sep not in uncased.encode("a [SEP] b", add_special=False)
    assert sep in uncased.encode("a [SEP] b", add_special=False, parse_special=True)


def test_texts_get_the_same_ids_together_as_one_by_one(uncased: Tokenizer) -> None:
    marked, long, broken = "a [SEP] b", "the quick fox " * 1000, "a\ud800b"
    for texts in (list(random_texts()), [*TEXTS, broken], [], ["fox"], ["fox", ""], ["fox", long]):
        assert uncased.encode_all(texts) == [uncased.encode(text) for text in texts]
    for parse in (False, True):
        assert uncased.encode_all(["fox", marked], parse) == [
            uncased.encode(text, parse_special=parse) for text in ("fox", marked)
        ]
    with pytest.raises(TextTooLongError, match="room for 4"):
        uncased.encode_all(["fox", "the quick fox"], limit=4)
    many = [f"fox {i}" for i in range(600)]  # in several calls of the library
    assert uncased.encode_all(many) == [uncased.encode(text) for text in many]


def test_long_texts_are_cut_between_words(uncased: Tokenizer) -> None:
    text = "the quick, brown\nfox 你好世界 runs " * 9000
    once = uncased.encode(text[: len(text) // 9000], add_special=False)
    assert uncased.encode(text, add_special=False) == once * 9000
    chinese = "你好" * 100_000
    assert len(uncased.encode(chinese, add_special=False)) == 200_000
    with pytest.raises(TextTooLongError):
        uncased.encode(text, limit=100)


def test_older_files_spell_markers_plainly_and_state_no_kinds() -> None:
    with GGUFFile.open(MODEL) as file:
        tokens = file.metadata["tokenizer.ggml.tokens"].to_list()
    made = tokenizer(drop="tokenizer.ggml.token_type")
    assert made.encode("The [MASK] fox") == tokenizer().encode("The [MASK] fox")
    assert tokens[4] == "[MASK]"


def test_a_vocabulary_without_an_unknown_token_is_refused() -> None:
    with GGUFFile.open(MODEL) as file:
        tokens = file.metadata["tokenizer.ggml.tokens"].to_list()
    tokens[1] = "▁unused"
    with pytest.raises(ModelError, match="unknown words"):
        tokenizer(drop="tokenizer.ggml.unknown_token_id", tokens=tokens)
