"""SentencePiece merging, compared with a direct implementation of its definition."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from small_vocabularies import scored

from zinc.tokenizer import Tokenizer

ALPHABET = "ab▁é"
PIECES = st.dictionaries(
    st.text(ALPHABET, min_size=1, max_size=5), st.integers(-4, 0).map(float), max_size=25
)


def merge_slowly(text, ids, scores):
    """Merge the pair with the highest score, leftmost first, until no pair is a token."""
    symbols = list(text)
    while True:
        candidates = [
            (-scores[ids[left + right]], position)
            for position, (left, right) in enumerate(pairwise(symbols))
            if left + right in ids
        ]
        if not candidates:
            break
        _, position = min(candidates)
        symbols[position : position + 2] = ["".join(symbols[position : position + 2])]
    result = []
    for symbol in symbols:
        if symbol in ids:
            result.append(ids[symbol])
        else:
            result += [3 + byte for byte in symbol.encode()]
    return result


@given(PIECES, st.text("ab é", max_size=30), st.booleans())
def test_merges_follow_the_scores(pieces, text, prefix):
    metadata = scored({"▁": -9.0} | pieces, add_space_prefix=prefix)
    tokenizer = Tokenizer.from_metadata(metadata)
    tokens = metadata["tokenizer.ggml.tokens"]
    ids = {token: id for id, token in enumerate(tokens)}
    whole = (" " if prefix and text else "") + text
    expected = merge_slowly(whole.replace(" ", "▁"), ids, metadata["tokenizer.ggml.scores"])
    assert tokenizer.encode(text, add_special=False) == expected
    assert tokenizer.encode(text, add_special=False) == expected  # now from memory
    assert tokenizer.decode(expected) == text


def test_long_text_without_spaces():
    tokenizer = Tokenizer.from_metadata(scored({"▁": -9.0, "a": -3.0, "aa": -2.0, "aaaa": -1.0}))
    ids = tokenizer.encode("a" * 20_000, add_special=False)
    assert len(ids) == 5001  # with the space prefix
    assert tokenizer.decode(ids) == "a" * 20_000
