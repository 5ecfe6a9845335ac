"""Unigram tokenization (SentencePiece; XLM-RoBERTa), with the `tokenizers` library.

Text is normalised by the file's table of replacements, runs of spaces become one, and `▁` stands
for a space. Of all ways to spell the text with tokens, the one with the highest sum of scores is
taken (Kudo 2018, arXiv:1804.10959). Characters that no token covers become unknown tokens, one for
each run of them.
"""

from __future__ import annotations

from tokenizers import Tokenizer, models

from zinc.core.errors import ModelError, TextTooLongError
from zinc.core.native import is_panic
from zinc.tokenizer.charsmap import CharacterMap
from zinc.tokenizer.chunks import CHUNK_CHARACTERS, AdjacentPairs, Chunker
from zinc.tokenizer.library import ids_of
from zinc.tokenizer.vocabulary import TokenKind, Vocabulary

SPACE = "▁"
_BETWEEN_WORDS = r"(?<=\S)(?= )"
# Longest text without a place to cut it.
_LONGEST_RUN = 1 << 17


class UnigramEncoder:
    """Unigram encoder of text without special tokens.

    unk_id: id of characters that the vocabulary lacks. charsmap: SentencePiece's table of
    replacements, b"" for none. merge_spaces: runs of spaces count as one, and those at the end of a
    text as none. Raises ModelError if the vocabulary has no scores or no unknown token, or the
    table is damaged.
    """

    covers_all_text = False  # spaces are merged, and unknown characters too

    def __init__(
        self, vocabulary: Vocabulary, unk_id: int | None, charsmap: bytes, *, merge_spaces: bool
    ) -> None:
        if vocabulary.scores is None or unk_id is None:
            raise _damaged(vocabulary, "a Unigram vocabulary needs scores and an unknown token")
        self._merge_spaces = merge_spaces
        self._map = CharacterMap(charsmap, vocabulary.path)
        try:
            self._tokenizer = Tokenizer(models.Unigram(_pieces(vocabulary), unk_id, False))
        except BaseException as error:  # the library raises bare Exception, or panics
            if not (isinstance(error, Exception) or is_panic(error)):
                raise
            raise _damaged(vocabulary, "the tokenizer library cannot read it") from error
        self._chunker = Chunker(_BETWEEN_WORDS, AdjacentPairs(vocabulary.texts), _LONGEST_RUN)

    def encode(self, text: str, limit: int | None = None) -> list[int]:
        """Return the ids of a text.

        Raises TextTooLongError soon after the number of ids exceeds `limit`, and RequestError if
        the text has more than 100,000 characters without a place to cut it.
        """
        ids: list[int] = []
        for chunk in self._chunker.chunks(text) if len(text) > CHUNK_CHARACTERS else (text,):
            ids += self._encode(chunk)
            if limit is not None and len(ids) > limit:
                raise TextTooLongError(len(ids), limit)
        return ids

    def _encode(self, text: str) -> list[int]:
        text = self._map.apply(text)
        if self._merge_spaces:
            first = " " * text.startswith(" ")
            text = first + " ".join(word for word in text.split(" ") if word)
        if not text.strip(" "):
            return []
        return ids_of(self._tokenizer, text.replace(" ", SPACE))


def _damaged(vocabulary: Vocabulary, why: str) -> ModelError:
    return ModelError(f"{vocabulary.path} has a damaged tokenizer", why, "convert the file again")


def _pieces(vocabulary: Vocabulary) -> list[tuple[str, float]]:
    """Return the texts and scores of all tokens.

    Only normal tokens are matched. The others get texts that occur nowhere and the lowest score of
    a normal token: a lower one would also lower the score of unknown characters, which the library
    sets to 10 below the lowest.
    """
    assert vocabulary.scores is not None
    normal = vocabulary.kinds == TokenKind.NORMAL
    lowest = float(vocabulary.scores[normal].min()) if normal.any() else 0.0
    return [
        (text, score) if is_normal else (f"\ufdd0{id}\ufdd1", lowest)
        for id, (text, score, is_normal) in enumerate(
            zip(vocabulary.texts, vocabulary.scores.tolist(), normal, strict=True)
        )
    ]
