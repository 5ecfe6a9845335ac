"""The vocabulary of a model: token texts, their kinds, and ids with a role such as end of turn.

It is read from `tokenizer.ggml.*` of a GGUF file. Many files do not name all roles, so missing ones
are found by the token texts that chat models use; without its end-of-turn token a model would never
stop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from enum import IntEnum

import numpy as np

from zinc.core.dataclass import dataclass
from zinc.core.errors import ModelError
from zinc.tokenizer.fields import Fields

PREFIX = "tokenizer.ggml."


class TokenKind(IntEnum):
    """`tokenizer.ggml.token_type`; values as in the GGUF specification."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_END_OF_TURN = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|end_of_text|>", "<EOT>", "_<EOT>",
    "[EOT]", "<｜end▁of▁sentence｜>", "<end_of_utterance>", "<|endoftext|>",
)  # fmt: skip
_END_OF_MESSAGE = ("<|eom_id|>",)
_END_OF_GENERATION = (
    *_END_OF_TURN, *_END_OF_MESSAGE, "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "</s>",
    "[EOS]", "<eos>", "<turn|>", "<|tool_response>", "[e~[",
)  # fmt: skip
# Fill-in-the-middle tokens of code models. Those for padding, repository and file end an answer.
_FIM = {
    ("fim_pre_token_id", "prefix_token_id"): (
        "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>",
        "<|code_prefix|>", "<|prefix|>",
    ),
    ("fim_suf_token_id", "suffix_token_id"): (
        "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>",
        "<|code_suffix|>", "<|suffix|>",
    ),
    ("fim_mid_token_id", "middle_token_id"): (
        "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>",
        "<|code_middle|>", "<|middle|>",
    ),
}  # fmt: skip
_FIM_ENDS = {
    ("fim_pad_token_id",): ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    ("fim_rep_token_id",): (
        "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>",
    ),
    ("fim_sep_token_id",): ("<|file_sep|>",),
}  # fmt: skip
# Frame tokens of Harmony (gpt-oss) stay in the text of an answer, since its parser needs them.
_HARMONY_FRAME = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")
# If a vocabulary has texts of both sets, `<|end|>` ends a message and not the answer.
_ENDS_MESSAGE_ONLY = (
    ({"<|return|>"}, {"<|call|>", "<|calls|>"}),
    ({"<|flush|>"}, {"<|call|>", "<|calls|>"}),
)


@dataclass(frozen=True)
class FillMarks:
    """Fill-in-the-middle token ids: they mark the text before, after and in the gap.

    repository, file: tokens before the name of a repository and of a file, if the model has them.
    """

    prefix: int
    suffix: int
    middle: int
    repository: int | None = None
    file: int | None = None


@dataclass(frozen=True)
class Roles:
    """Token ids with a role; None if the model has none.

    eog: tokens that end an answer. shown: control tokens that stay in the text of an answer.
    """

    bos: int | None
    eos: int | None
    eot: int | None
    unk: int | None
    pad: int | None
    sep: int | None
    eog: frozenset[int]
    shown: frozenset[int]
    fill: FillMarks | None


@dataclass(frozen=True)
class Vocabulary:
    """Tokens with their kinds and scores.

    texts: token texts as spelled in the file, by id. ids: the inverse. kinds: TokenKind values, by
    id. scores: merge priorities by id, None if the file has none.
    """

    path: str
    texts: list[str]
    ids: dict[str, int]
    kinds: np.ndarray[tuple[int], np.dtype[np.uint8]]
    scores: np.ndarray[tuple[int], np.dtype[np.float32]] | None = field(repr=False)

    def __len__(self) -> int:
        return len(self.texts)

    def of_kind(self, *kinds: TokenKind) -> list[int]:
        """Return the ids of some kinds, ascending."""
        return np.flatnonzero(np.isin(self.kinds, kinds)).tolist()

    def first(self, texts: Sequence[str]) -> int | None:
        """Return the id of the first of `texts` that is a token, or None."""
        return next((self.ids[text] for text in texts if text in self.ids), None)


def read_vocabulary(fields: Fields) -> Vocabulary:
    """Read the tokens of a file. Raises ModelError for missing, mistyped or short arrays."""
    texts = fields.strings(PREFIX + "tokens")
    if not texts:
        raise ModelError(
            f"{fields.path} carries no tokenizer",
            "the metadata key tokenizer.ggml.tokens is missing or empty",
            "use a file that was converted with its tokenizer",
        )
    if "" in texts:
        texts = [text or f"[EMPTY_{id}]" for id, text in enumerate(texts)]
    kinds = fields.numbers(PREFIX + "token_type", len(texts))
    if kinds is None:
        kinds = np.full(len(texts), TokenKind.NORMAL)
    known = (kinds >= 0) & (kinds <= max(TokenKind))
    scores = fields.numbers(PREFIX + "scores", len(texts))
    return Vocabulary(
        path=fields.path,
        texts=texts,
        ids={text: id for id, text in enumerate(texts)},
        kinds=np.where(known, kinds, TokenKind.UNDEFINED).astype(np.uint8),
        scores=None if scores is None else scores.astype(np.float32),
    )


def assign_roles(vocabulary: Vocabulary, fields: Fields, defaults: dict[str, int]) -> Roles:
    """Return the ids with a role, and mark these tokens as control tokens in `vocabulary.kinds`.

    defaults: ids of `bos`, `eos` and `unk` that the kind of tokenizer implies if the file names
    none. Ids outside the vocabulary count as missing.
    """
    finder = _RoleFinder(vocabulary, fields, defaults)
    eos = finder.with_default("eos", "eos_token_id")
    eot = finder.by_text(("eot_token_id",), _END_OF_TURN)
    eom = finder.by_text(("eom_token_id",), _END_OF_MESSAGE)
    prefix, suffix, middle = (finder.by_text(keys, texts) for keys, texts in _FIM.items())
    pad, repository, file = (finder.by_text(keys, texts) for keys, texts in _FIM_ENDS.items())
    fill = None
    if prefix is not None and suffix is not None and middle is not None:
        fill = FillMarks(prefix, suffix, middle, repository, file)
    well_known = {vocabulary.ids[text] for text in _END_OF_GENERATION if text in vocabulary.ids}
    frame = {vocabulary.ids[text] for text in _HARMONY_FRAME if text in vocabulary.ids}
    vocabulary.kinds[sorted(finder.control | well_known | frame)] = TokenKind.CONTROL
    ends = well_known.union(id for id in (pad, repository, file, eos, eot, eom) if id is not None)
    eog = _ends_of_answer(vocabulary, ends, frame)
    return Roles(
        bos=finder.with_default("bos", "bos_token_id"),
        eos=eos,
        eot=eot,
        unk=finder.with_default("unk", "unknown_token_id"),
        pad=finder.stated("padding_token_id"),
        # Files have the first spelling.
        sep=finder.stated("seperator_token_id", "separator_token_id"),
        eog=frozenset(eog),
        shown=frozenset(frame),
        fill=fill,
    )


class _RoleFinder:
    """Search for the tokens with a role. control: ids of those that were found by their text."""

    def __init__(self, vocabulary: Vocabulary, fields: Fields, defaults: dict[str, int]) -> None:
        self._vocabulary, self._fields, self._defaults = vocabulary, fields, defaults
        self.control: set[int] = set()

    def stated(self, *keys: str) -> int | None:
        """Return the id under the first of `keys` that has a valid one, or None."""
        for key in keys:
            id = self._fields.integer(PREFIX + key)
            if id is not None and 0 <= id < len(self._vocabulary):
                return id
        return None

    def with_default(self, name: str, key: str) -> int | None:
        """Return the id under `key`, or the default of the role `name`, or None."""
        id = self.stated(key)
        if id is None:
            id = self._defaults.get(name)
        return id if id is not None and id < len(self._vocabulary) else None

    def by_text(self, keys: tuple[str, ...], texts: Sequence[str]) -> int | None:
        """Return the id under one of `keys`, or that of the first of `texts`, or None."""
        id = self.stated(*keys)
        if id is None and (id := self._vocabulary.first(texts)) is not None:
            self.control.add(id)
        return id


def _ends_of_answer(vocabulary: Vocabulary, ends: set[int], frame: set[int]) -> set[int]:
    """Return those of `ends` that end an answer in this vocabulary.

    A token that ends a message only is added to `frame`, and one that is plain text is marked so in
    `vocabulary.kinds`.
    """
    eog = set(ends)
    texts = {vocabulary.texts[id] for id in eog}
    end = vocabulary.ids.get("<|end|>")
    if end in eog and any(a & texts and b & texts for a, b in _ENDS_MESSAGE_ONLY):
        eog.discard(end)
        frame.add(end)
    # In Gemma 4 and PLaMo, `</s>` is an HTML tag.
    tag = vocabulary.ids.get("</s>")
    if tag in eog and texts & {"<|tool_response>", "<|plamo:eos|>"}:
        eog.discard(tag)
        vocabulary.kinds[tag] = TokenKind.NORMAL
    return eog
