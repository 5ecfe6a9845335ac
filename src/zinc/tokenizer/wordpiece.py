"""WordPiece tokenization (BERT), with the `tokenizers` library.

Text is normalised (control characters dropped, and for uncased models lowercase without accents)
and split into words at spaces and around punctuation and Chinese characters. A word is spelled from
left to right by the longest pieces of the vocabulary; one that cannot be spelled, or is longer than
100 characters, is one unknown token.

GGUF files spell the first piece of a word `▁piece` and the others `piece`.
"""

from __future__ import annotations

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
        model = models.WordPiece(
            ids,
            unk_token=_spelling(vocabulary, unk_id),
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
        ids: list[int] = []
        for chunk in self._chunker.chunks(text) if len(text) > CHUNK_CHARACTERS else (text,):
            ids += ids_of(self._tokenizer, chunk)
            if limit is not None and len(ids) > limit:
                raise TextTooLongError(len(ids), limit)
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each of `texts`, which are short enough to be encoded at once."""
        return ids_of_batch(self._tokenizer, texts)


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
