"""The vocabulary of a model: token texts, their kinds, and the ids with a role.

Read from `tokenizer.ggml.*` of a GGUF file. Roles that the file does not name are found by the
well-known texts of chat models, because many files in circulation were converted without them: an
end-of-turn token that is missed means a model that never stops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

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
# Code models mark the parts of a completion. Padding, the next repository and the next file end it.
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
# Harmony's frame (gpt-oss) is part of the answer: a parser downstream needs to see it.
_HARMONY_FRAME = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")
# Both sets of texts mean that `<|end|>` closes a message and not the answer.
_ENDS_MESSAGE_ONLY = (
    ({"<|return|>"}, {"<|call|>", "<|calls|>"}),
    ({"<|flush|>"}, {"<|call|>", "<|calls|>"}),
)


@dataclass(frozen=True)
class FillMarks:
    """Ids that mark the parts of a text whose middle a code model writes.

    `repository` and `file` go before names of what stands around it, where a model knows them.
    """

    prefix: int
    suffix: int
    middle: int
    repository: int | None = None
    file: int | None = None


@dataclass(frozen=True)
class Roles:
    """Ids with a role; None where the model has none.

    `eog` ends an answer. `shown` are control tokens that belong to the answer's text.
    """

    bos: int | None
    eos: int | None
    eot: int | None
    unk: int | None
    pad: int | None
    eog: frozenset[int]
    shown: frozenset[int]
    fill: FillMarks | None


@dataclass(frozen=True)
class Vocabulary:
    """Tokens with their kinds and scores.

    `texts[id]` is the token as the file spells it, `ids` the inverse, `kinds[id]` a TokenKind as
    uint8, `scores[id]` the merge priority (None when the file has none).
    """

    path: str
    texts: list[str]
    ids: dict[str, int]
    kinds: np.ndarray[tuple[int], np.dtype[np.uint8]]
    scores: np.ndarray[tuple[int], np.dtype[np.float32]] | None = field(repr=False)

    def __len__(self) -> int:
        return len(self.texts)

    def of_kind(self, *kinds: TokenKind) -> list[int]:
        """Ids of these kinds, ascending."""
        return np.flatnonzero(np.isin(self.kinds, kinds)).tolist()

    def first(self, texts: Sequence[str]) -> int | None:
        """The id of the first of these texts that is a token."""
        return next((self.ids[text] for text in texts if text in self.ids), None)


def read_vocabulary(fields: Fields) -> Vocabulary:
    """The tokens of a file. Raises ModelError when arrays are missing, mistyped or too short."""
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
    """Find the ids with a role, and mark those tokens as control tokens in `vocabulary.kinds`.

    `defaults` are the ids that the kind of tokenizer implies (`bos`, `eos`, `unk`) where the file
    is silent; an id outside the vocabulary counts as absent.
    """
    n = len(vocabulary)

    def stated(*keys: str) -> int | None:
        for key in keys:
            id = fields.integer(PREFIX + key)
            if id is not None and 0 <= id < n:
                return id
        return None

    def role(name: str, key: str) -> int | None:
        id = stated(key)
        if id is None:
            id = defaults.get(name)
        return id if id is not None and id < n else None

    def found(keys: tuple[str, ...], texts: Sequence[str]) -> int | None:
        id = stated(*keys)
        if id is None and (id := vocabulary.first(texts)) is not None:
            control.add(id)
        return id

    control: set[int] = set()
    eos = role("eos", "eos_token_id")
    eot = found(("eot_token_id",), _END_OF_TURN)
    eom = found(("eom_token_id",), _END_OF_MESSAGE)
    prefix, suffix, middle = (found(keys, texts) for keys, texts in _FIM.items())
    pad, repository, file = (found(keys, texts) for keys, texts in _FIM_ENDS.items())
    ends = {pad, repository, file}
    fill = None
    if prefix is not None and suffix is not None and middle is not None:
        fill = FillMarks(prefix, suffix, middle, repository, file)
    well_known = {vocabulary.ids[text] for text in _END_OF_GENERATION if text in vocabulary.ids}
    frame = {vocabulary.ids[text] for text in _HARMONY_FRAME if text in vocabulary.ids}
    control |= well_known | frame
    vocabulary.kinds[sorted(control)] = TokenKind.CONTROL

    eog = {id for id in ends | well_known | {eos, eot, eom} if id is not None}
    texts_of_eog = {vocabulary.texts[id] for id in eog}
    end = vocabulary.ids.get("<|end|>")
    if end in eog and any(a & texts_of_eog and b & texts_of_eog for a, b in _ENDS_MESSAGE_ONLY):
        eog.discard(end)
        frame.add(end)
    # Gemma 4 and PLaMo have `</s>` as an HTML tag.
    tag = vocabulary.ids.get("</s>")
    if tag in eog and texts_of_eog & {"<|tool_response>", "<|plamo:eos|>"}:
        eog.discard(tag)
        vocabulary.kinds[tag] = TokenKind.NORMAL
    return Roles(
        bos=role("bos", "bos_token_id"),
        eos=eos,
        eot=eot,
        unk=role("unk", "unknown_token_id"),
        pad=stated("padding_token_id"),
        eog=frozenset(eog),
        shown=frozenset(frame),
        fill=fill,
    )
