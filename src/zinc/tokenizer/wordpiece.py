"""WordPiece tokenization (BERT), with the `tokenizers` library.

Text is normalised (control characters dropped, and for uncased models lowercase without accents)
and split into words at spaces and around punctuation and Chinese characters. A word is spelled from
left to right by the longest pieces of the vocabulary; one that cannot be spelled, or is longer than
100 characters, is one unknown token.

Short ASCII texts are spelled in Python, which takes less time than a call of the library.

GGUF files spell the first piece of a word `▁piece` and the others `piece`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from zinc.core.errors import ModelError, TextTooLongError
from zinc.tokenizer.chunks import CHUNK_CHARACTERS, Chunker
from zinc.tokenizer.library import ids_of, ids_of_batch
from zinc.tokenizer.vocabulary import TokenKind, Vocabulary

SPACE = "▁"
_LONGEST_WORD = 100  # characters; that of every published BERT
_CHINESE = "[\u3400-\u4dbf\u4e00-\u9fff]"
_BETWEEN_WORDS = rf"(?<=\S)(?=[ \n])|(?<={_CHINESE})(?={_CHINESE})"
# Longest text without a place to cut it.
_LONGEST_RUN = 1 << 20
# Longer texts, or longer batches of them, are left to the library, which lets other threads run.
_FEW_CHARACTERS = 1 << 15
_ASCII_LINES = re.compile(r"[\t\n\r -~]*")
_ASCII_WORD = re.compile(r"[A-Za-z0-9]+|[!-/:-@\[-`{-~]")


class WordPieceEncoder:
    """WordPiece encoder of text without special tokens.

    unk_id: id of a word that the vocabulary cannot spell. lowercase, strip_accents: how text is
    normalised. Raises ModelError if the vocabulary has no unknown token.
    """

    covers_all_text = False  # control characters and accents are dropped

    def __init__(
        self, vocabulary: Vocabulary, unk_id: int | None, *, lowercase: bool, strip_accents: bool
    ) -> None:
        if unk_id is None:
            raise ModelError(
                f"{vocabulary.path} has a damaged tokenizer",
                "a WordPiece vocabulary needs a token for unknown words",
                "convert the file again",
            )
        ids = {_spelling(vocabulary, id): id for id in reversed(range(len(vocabulary)))}
        unknown = _spelling(vocabulary, unk_id)
        self._ids, self._unknown = ids, ids[unknown]
        self._lowercase = lowercase
        self._longest_piece = max(map(len, ids))
        # To the library, a longer word is unknown even if the vocabulary has it.
        self._few_characters = _FEW_CHARACTERS if self._longest_piece <= _LONGEST_WORD else 0
        model = models.WordPiece(
            ids,
            unk_token=unknown,
            max_input_chars_per_word=_LONGEST_WORD,
            continuing_subword_prefix="##",
        )
        self._tokenizer = Tokenizer(model)
        self._tokenizer.normalizer = normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=True,
            strip_accents=strip_accents,
            lowercase=lowercase,
        )
        self._tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        self._chunker = Chunker(_BETWEEN_WORDS, None, _LONGEST_RUN)

    def encode(self, text: str, limit: int | None = None) -> list[int]:
        """Return the ids of a text.

        Raises TextTooLongError soon after the number of ids exceeds `limit`, and RequestError if
        the text has more than a million characters without a place to cut it.
        """
        few = self._encode_ascii(text) if len(text) <= self._few_characters else None
        if few is not None:
            if limit is not None and len(few) > limit:
                raise TextTooLongError(len(few), limit)
            return few
        ids: list[int] = []
        for chunk in self._chunker.chunks(text) if len(text) > CHUNK_CHARACTERS else (text,):
            ids += ids_of(self._tokenizer, chunk)
            if limit is not None and len(ids) > limit:
                raise TextTooLongError(len(ids), limit)
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each of `texts`, which are short enough to be encoded at once."""
        if sum(map(len, texts)) > self._few_characters:
            return ids_of_batch(self._tokenizer, texts)
        found = [self._encode_ascii(text) for text in texts]
        others = [text for text, ids in zip(texts, found, strict=True) if ids is None]
        rest = iter(ids_of_batch(self._tokenizer, others) if others else ())
        return [next(rest) if ids is None else ids for ids in found]

    def _encode_ascii(self, text: str) -> list[int] | None:
        """Return the ids of a text of printable ASCII characters and line ends, None for others."""
        if not text.isascii() or _ASCII_LINES.fullmatch(text) is None:
            return None
        words = _ASCII_WORD.findall(text.lower() if self._lowercase else text)
        whole = [*map(self._ids.get, words)]
        ids = [id for id in whole if id is not None]
        if len(ids) == len(whole):
            return ids
        return [
            piece
            for word, id in zip(words, whole, strict=True)
            for piece in (self._pieces(word) if id is None else (id,))
        ]

    def _pieces(self, word: str) -> list[int]:
        """Return the ids of the longest pieces that spell a word, from left to right."""
        ids: list[int] = []
        start, prefix = 0, ""
        while start < len(word) <= _LONGEST_WORD:
            for end in range(min(len(word), start + self._longest_piece), start, -1):
                id = self._ids.get(prefix + word[start:end])
                if id is not None:
                    break
            else:
                return [self._unknown]
            ids.append(id)
            start, prefix = end, "##"
        return ids or [self._unknown]


def _spelling(vocabulary: Vocabulary, id: int) -> str:
    """Return token `id` as the library spells it: `piece` starts a word, `##piece` continues it.

    Older files keep `[unused7]` and their control tokens as they are, as NORMAL tokens.
    """
    text = vocabulary.texts[id]
    if text.startswith(SPACE):
        return text.removeprefix(SPACE)
    is_marker = len(text) > 2 and text.startswith("[") and text.endswith("]")
    if vocabulary.kinds[id] in (TokenKind.CONTROL, TokenKind.UNKNOWN) or is_marker:
        return text
    return f"##{text}"
