"""Byte-pair encoding with the `tokenizers` library, from a GGUF vocabulary and its merges.

Vocabularies are spelled in two ways: byte-level (GPT-2: each byte is a printable character), or
UTF-8 with `▁` for a space (Gemma 4). The library's objects are built directly, since loading them
from JSON is ten times slower for 250,000 tokens.
"""

from __future__ import annotations

import threading

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from zinc.core.errors import ModelError, TextTooLongError
from zinc.core.native import is_panic
from zinc.tokenizer.chunks import (
    BETWEEN_LINES,
    BETWEEN_WORDS,
    CHUNK_CHARACTERS,
    AdjacentPairs,
    Chunker,
)
from zinc.tokenizer.library import LONG_CHARACTERS, ids_of
from zinc.tokenizer.pretokenizers import PreTokenizer
from zinc.tokenizer.vocabulary import Vocabulary

SPACE = "▁"
# Longest text without a place to cut it: a character takes 160 bytes of memory.
_LONGEST_RUN = 1 << 20


class BytePairEncoder:
    """Byte-pair encoder of text without special tokens.

    merges: pairs `left right`, in order of priority. Raises ModelError if one is not a pair.
    """

    def __init__(self, vocabulary: Vocabulary, merges: list[str], pre: PreTokenizer) -> None:
        self._spaces = not pre.byte_level
        self._missing = None if _spells_all_bytes(vocabulary, pre) else len(vocabulary)
        pairs = _pairs(merges, vocabulary.path)
        self._tokenizer = Tokenizer(_model(vocabulary, pairs, pre, self._missing))
        steps: list[pre_tokenizers.PreTokenizer] = [
            pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre.patterns
        ]
        if pre.byte_level:
            steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
        # Pre-tokens are lines when `▁` stands for a space, so tokens may span words.
        neighbours = AdjacentPairs(vocabulary.texts) if self._spaces else None
        safe = BETWEEN_LINES if self._spaces or pre.spaces_in_words else BETWEEN_WORDS
        self._chunker = Chunker(safe, neighbours, _LONGEST_RUN)
        self._one_run = threading.Lock()  # limits memory to one long run at a time
        self.covers_all_text = self._missing is None

    def encode(self, text: str, limit: int | None = None) -> list[int]:
        """Return the ids of a text.

        Raises TextTooLongError soon after the number of ids exceeds `limit`, and RequestError if
        the text has more than a million characters without a place to cut it.
        """
        if self._spaces:
            text = text.replace(" ", SPACE)
        if len(text) <= LONG_CHARACTERS:
            return self._encode(text)
        ids: list[int] = []
        for chunk in self._chunker.chunks(text):
            if len(chunk) <= 2 * CHUNK_CHARACTERS:
                ids += self._encode(chunk)
            else:
                with self._one_run:
                    ids += self._encode(chunk)
            if limit is not None and len(ids) > limit:
                raise TextTooLongError(len(ids), limit)
        return ids

    def _encode(self, text: str) -> list[int]:
        ids = ids_of(self._tokenizer, text)
        if self._missing is not None:
            ids = [id for id in ids if id != self._missing]
        return ids


def _spells_all_bytes(vocabulary: Vocabulary, pre: PreTokenizer) -> bool:
    """Return whether the vocabulary has a token for every byte."""
    if pre.byte_level:
        return all(char in vocabulary.ids for char in pre_tokenizers.ByteLevel.alphabet())
    return all(f"<0x{byte:02X}>" in vocabulary.ids for byte in range(256))


def _pairs(merges: list[str], path: str) -> list[tuple[str, str]]:
    """Return merges as pairs. Raises ModelError, which names the file, if one is not a pair."""
    pairs = []
    for merge in merges:
        left, _, right = merge.partition(" ")
        if not (left and right):
            raise ModelError(
                f"{path} has a damaged tokenizer",
                f"the merge {merge!r} is not two tokens with a space between",
                "download or convert the file again",
            )
        pairs.append((left, right))
    return pairs


def _model(
    vocabulary: Vocabulary,
    pairs: list[tuple[str, str]],
    pre: PreTokenizer,
    missing: int | None,
) -> models.BPE:
    """Return the library's model.

    missing: id for bytes without a token, past the vocabulary; the encoder drops it afterwards.
    Without it the library would merge the tokens before and after such a byte.
    """
    ids, unk_token = vocabulary.ids, None
    if missing is not None:
        unk_token = "\ufdd1"
        ids = ids | {unk_token: missing}

    def build(pairs: list[tuple[str, str]]) -> models.BPE:
        return models.BPE(
            ids,
            pairs,
            unk_token=unk_token,
            ignore_merges=pre.ignore_merges,
            byte_fallback=not pre.byte_level,
        )

    try:
        return build(pairs)
    except BaseException as error:  # the library raises bare Exception, or panics
        if not (isinstance(error, Exception) or is_panic(error)):
            raise
    # Some merge names a missing token. It can never apply, so leave it out.
    try:
        return build([p for p in pairs if p[0] in ids and p[1] in ids and p[0] + p[1] in ids])
    except BaseException as error:
        if not (isinstance(error, Exception) or is_panic(error)):
            raise
        raise ModelError(
            f"{vocabulary.path} has a damaged tokenizer",
            "the tokenizer library fails on its merges",
            "download or convert the file again",
        ) from error
