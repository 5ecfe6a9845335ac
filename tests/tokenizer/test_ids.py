"""Token ids equal llama.cpp's, on vocabularies cut down to a set of texts (trim_vocabulary.py)."""

import json
from functools import cache
from pathlib import Path

import pytest

from zinc.tokenizer import Tokenizer
from zinc.tokenizer.pretokenizers import pretokenizer_names

DATA = Path(__file__).parents[1] / "data" / "vocab"
TEXTS = json.loads((DATA / "texts.json").read_text())
FILES = sorted(path.stem for path in DATA.glob("*.json") if path.stem != "texts")


@cache
def load(name):
    return json.loads((DATA / f"{name}.json").read_text())


def cases():
    for name in FILES:
        for names, expected in load(name)["expected"].items():
            for pre in names.split() or [""]:
                yield pytest.param(name, pre, expected, id=f"{name}-{pre}")


@pytest.mark.parametrize(("name", "pre", "expected"), list(cases()))
def test_ids_equal_llama_cpp(name, pre, expected):
    tokenizer = Tokenizer.from_metadata(load(name)["metadata"] | {"tokenizer.ggml.pre": pre}, name)
    assert [tokenizer.encode(text) for text in TEXTS] == expected["plain"]
    parsed = [tokenizer.encode(text, add_special=False, parse_special=True) for text in TEXTS]
    assert parsed == expected["parsed"]
    assert sorted(tokenizer.eog_ids) == expected["eog"]


def test_every_pretokenizer_is_covered():
    covered = {pre for name in FILES for key in load(name)["expected"] for pre in key.split()}
    assert covered == set(pretokenizer_names())


@pytest.mark.parametrize("name", FILES)
def test_decode_inverts_encode(name):
    """Except bytes without a token in Falcon, and spaces after special tokens in Phi 3."""
    tokenizer = Tokenizer.from_metadata(load(name)["metadata"], name)
    for text in TEXTS:
        if name == "falcon" and any(char in text for char in "\x1c\x7f\x0b\x0c"):
            continue
        if name == "phi-3" and "<|user|>" in text:
            continue
        decoded = tokenizer.decode(tokenizer.encode(text))
        assert decoded in (text, text.replace("▁", " "))
