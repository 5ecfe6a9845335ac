"""Tokenizers built from the metadata of a GGUF file.

Special tokens are found first (`specials`), the text between them goes through the model's encoder
(`bpe`, `spm`, `unigram`, `wordpiece` or `world`), and BOS and EOS are added as the file says. Ids
equal llama.cpp's, with two exceptions: the frame tokens of Harmony (gpt-oss) are parsed only
together with other control tokens, so that a user's text cannot forge a message, and plain text
never gives control tokens of RWKV World.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from zinc.core.errors import RequestError, TextTooLongError, UnsupportedError
from zinc.tokenizer.bpe import BytePairEncoder
from zinc.tokenizer.bytes import BYTE_OF
from zinc.tokenizer.fields import Fields
from zinc.tokenizer.library import LONG_CHARACTERS
from zinc.tokenizer.pretokenizers import PreTokenizer, pretokenizer
from zinc.tokenizer.specials import SHIELD, SpecialTokens
from zinc.tokenizer.spm import SPACE, ScoreEncoder
from zinc.tokenizer.unigram import UnigramEncoder
from zinc.tokenizer.vocabulary import (
    PREFIX,
    Roles,
    TokenKind,
    Vocabulary,
    assign_roles,
    read_vocabulary,
)
from zinc.tokenizer.wordpiece import WordPieceEncoder
from zinc.tokenizer.world import WORLD, WORLD_TEMPLATE, LongestMatchEncoder, read_world

_CHAT_TEMPLATE = "tokenizer.chat_template"
# Texts up to this length are tokenized completely, so that errors can state the exact count.
_COUNTED_CHARACTERS = 100_000
# Most texts in one call of a batch encoder. Its results take many times the memory of the ids.
_TEXTS_TOGETHER = 256


class Encoder(Protocol):
    """Encoder of text without special tokens.

    covers_all_text: every character of a text becomes part of a token; none is dropped.
    """

    covers_all_text: bool

    def encode(self, text: str, limit: int | None = None) -> list[int]: ...


@runtime_checkable
class BatchEncoder(Encoder, Protocol):
    """Encoder that encodes several texts of up to LONG_CHARACTERS faster than one by one."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]: ...


class Tokenizer:
    """The tokenizer of one model. Immutable, so threads can share it.

    add_bos, add_eos: `encode` adds these tokens. add_space_prefix: text starts with a space
    (SentencePiece). sep_id: token before the second of two texts, or None. eog_ids: tokens that end
    an answer. special_ids: control tokens. fill: tokens for filling in the middle, or None.
    chat_template: Jinja source of the default chat template, or None.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        roles: Roles,
        encoder: Encoder,
        *,
        byte_level: bool,
        add_bos: bool,
        add_eos: bool,
        add_space_prefix: bool,
        chat_templates: Mapping[str, str],
        add_sep: bool = False,
        strip_after_special: bool = False,
    ) -> None:
        self._vocabulary = vocabulary
        self._encoder = encoder
        self._byte_level = byte_level
        self._pieces: dict[int, bytes] = {}
        self.path = vocabulary.path
        self.n_vocab = len(vocabulary)
        self.longest_token_characters = max(map(len, vocabulary.texts))
        self.bos_id, self.eos_id, self.eot_id = roles.bos, roles.eos, roles.eot
        self.unk_id, self.pad_id = roles.unk, roles.pad
        self.eog_ids = roles.eog
        self.fill = roles.fill
        self.add_bos = add_bos and roles.bos is not None
        self.add_eos = add_eos and roles.eos is not None
        self.sep_id = roles.sep if add_sep else None
        self.add_space_prefix = add_space_prefix
        self.chat_templates = dict(chat_templates)
        self.chat_template = self.chat_templates.get("default")

        control = vocabulary.of_kind(TokenKind.CONTROL, TokenKind.UNKNOWN)
        self.special_ids = frozenset(control)
        self._hidden = self.special_ids - roles.shown
        user_defined = vocabulary.of_kind(TokenKind.USER_DEFINED)
        texts = vocabulary.texts
        strip_after = _strip_after(vocabulary, roles) if strip_after_special else ()
        self._control = SpecialTokens({texts[id]: id for id in control})
        self._matched_always = SpecialTokens({texts[id]: id for id in user_defined}, strip_after)
        self._matched_all = SpecialTokens(
            {texts[id]: id for id in sorted(control + user_defined)}, strip_after
        )

    # -- construction ---------------------------------------------------------------------------

    @classmethod
    def from_gguf(cls, path: str | os.PathLike[str]) -> Tokenizer:
        """Read the tokenizer of a GGUF file. Raises FormatError, ModelError, UnsupportedError."""
        from zinc.formats.gguf import GGUFFile

        with GGUFFile.open(path) as file:
            return cls.from_metadata(file.metadata, os.fspath(path))

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], path: str = "the model") -> Tokenizer:
        """Build from GGUF metadata; `path` is for messages.

        Raises ModelError when keys are missing or damaged, UnsupportedError for a kind of
        tokenizer or a pre-tokenizer that zinc does not know.
        """
        fields = Fields(metadata, path)
        model = fields.text(PREFIX + "model")
        if model == "llama":
            return _from_scores(fields)
        if model == "bert":
            return _from_pieces(fields)
        if model == "t5":
            return _from_probabilities(fields)
        if model == "rwkv":
            return _from_world(fields)
        if model in ("gpt2", "gemma4"):
            name = "gemma4" if model == "gemma4" else fields.text(PREFIX + "pre")
            return _from_merges(fields, pretokenizer(name or "", path))
        if model in (None, "none", "no_vocab"):
            raise UnsupportedError(
                f"{path} carries no tokenizer",
                "tokenizer.ggml.model is missing or none",
                "use a file with a tokenizer, or pass token ids",
            )
        raise UnsupportedError(
            f"{path} has a tokenizer of the kind {model!r}",
            "zinc knows byte-pair (gpt2, gemma4), SentencePiece (llama, t5), WordPiece (bert) and "
            "RWKV World (rwkv) vocabularies",
            "use another model, or a newer zinc",
        )

    # -- encoding -------------------------------------------------------------------------------

    def encode(
        self,
        text: str,
        add_special: bool = True,
        parse_special: bool = False,
        *,
        limit: int | None = None,
    ) -> list[int]:
        """Return the token ids of `text`.

        add_special: add BOS and EOS if the model uses them. parse_special: recognise the text of
        control tokens; leave it off for text from users. Lone surrogates, which UTF-8 cannot
        encode, become U+FFFD.

        Raises TextTooLongError for more than `limit` tokens; for a text of more than 100,000
        characters as soon as that is certain. Raises RequestError for a run of a million characters
        (100,000 with SentencePiece) without a place to cut the text, such as a run of spaces.
        """
        specials = self._matched_all if parse_special else self._matched_always
        early = limit if len(text) > _COUNTED_CHARACTERS else None
        ids = self._encode_pieces(specials.split(_well_formed(text), early), early)
        if add_special:
            self._add_special(ids)
        if limit is not None:
            _check_count(ids, limit)
        return ids

    def encode_all(
        self, texts: Sequence[str], parse_special: bool = False, *, limit: int | None = None
    ) -> list[list[int]]:
        """Return the token ids of each of `texts`, with BOS and EOS, as `encode` does.

        Short texts without control tokens are encoded together if the encoder supports this.
        parse_special, limit, errors: as in `encode`.
        """
        found: list[list[int]] = []
        for first in range(0, len(texts), _TEXTS_TOGETHER):
            found += self._encode_some(texts[first : first + _TEXTS_TOGETHER], parse_special, limit)
        return found

    def shield(self, text: str) -> str:
        """Mark `text` so that `encode_prompt` never finds a control token in it."""
        return self._control.shield(text)

    def encode_prompt(self, prompt: str, *, limit: int | None = None) -> list[int]:
        """Return the ids of a rendered chat prompt.

        Control tokens are recognised, except in shielded text. If the model uses BOS, it comes
        first exactly once, whether or not the template wrote it. EOS is never added, since the
        answer follows. limit: as in `encode`.
        """
        early = limit if len(prompt) > _COUNTED_CHARACTERS else None
        pieces = self._matched_all.split(_well_formed(prompt), early)
        plain = (piece if isinstance(piece, int) else piece.replace(SHIELD, "") for piece in pieces)
        ids = self._encode_pieces([piece for piece in plain if piece != ""], early)
        if self.add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        if limit is not None:
            _check_count(ids, limit)
        return ids

    def encode_pair(self, query: str, document: str, *, limit: int | None = None) -> list[int]:
        """Return the ids of a query and a document, as rerankers read them.

        They fill the template `rerank` of the file if there is one. Otherwise the form is `BOS
        query EOS SEP document EOS`, without the tokens that the model does not add. limit: as in
        `encode`.
        """
        if (template := self.chat_templates.get("rerank")) is not None:
            texts = {"{query}": self.shield(query), "{document}": self.shield(document)}
            parts = re.split(r"(\{query\}|\{document\})", template)
            return self.encode_prompt("".join(texts.get(p, p) for p in parts), limit=limit)
        ids = self.encode(query, limit=limit)
        if self.sep_id is not None:
            ids.append(self.sep_id)
        ids += self.encode(document, add_special=False, limit=limit)
        if self.add_eos and self.eos_id is not None:
            ids.append(self.eos_id)
        if limit is not None:
            _check_count(ids, limit)
        return ids

    def _encode_some(
        self, texts: Sequence[str], parse_special: bool, limit: int | None
    ) -> list[list[int]]:
        """Return the token ids of up to _TEXTS_TOGETHER texts, as `encode_all` does."""
        encoder = self._encoder
        specials = self._matched_all if parse_special else self._matched_always
        plain = [_well_formed(text) for text in texts]
        is_short = len(plain) > 1 and all(0 < len(text) < LONG_CHARACTERS for text in plain)
        joined = "\n".join(plain) if is_short else ""
        # One search in all texts is faster than one in each.
        is_plain = is_short and specials.split(joined) == [joined]
        if not is_plain or not isinstance(encoder, BatchEncoder):
            return [self.encode(text, True, parse_special, limit=limit) for text in texts]
        prefix = " " if self.add_space_prefix else ""
        found = encoder.encode_batch([prefix + text for text in plain])
        for ids in found:
            self._add_special(ids)
            if limit is not None:
                _check_count(ids, limit)
        return found

    def _add_special(self, ids: list[int]) -> None:
        """Add BOS and EOS to the ids of a text, if the model uses them."""
        if self.add_bos and self.bos_id is not None:
            ids.insert(0, self.bos_id)
        if self.add_eos and self.eos_id is not None:
            ids.append(self.eos_id)

    def _encode_pieces(self, pieces: Sequence[str | int], limit: int | None) -> list[int]:
        """Return the ids of plain text and special tokens, as `SpecialTokens.split` gives them."""
        if limit is not None:
            self._check_length(pieces, limit)
        ids: list[int] = []
        after_special = True
        for piece in pieces:
            if isinstance(piece, int):
                ids.append(piece)
                after_special = True
                continue
            prefix = " " if self.add_space_prefix and after_special else ""
            if limit is None:
                ids += self._encoder.encode(prefix + piece)
            else:
                try:
                    ids += self._encoder.encode(prefix + piece, limit - len(ids))
                except TextTooLongError as error:
                    raise TextTooLongError(len(ids) + error.n_tokens, limit) from None
            after_special = False
        return ids

    def _check_length(self, pieces: Sequence[str | int], limit: int) -> None:
        """Raise TextTooLongError if even the longest tokens would give more than `limit`."""
        if not self._encoder.covers_all_text:
            return
        n_characters = sum(len(piece) for piece in pieces if isinstance(piece, str))
        n_special = sum(isinstance(piece, int) for piece in pieces)
        n_tokens = n_special - (-n_characters // self.longest_token_characters)
        if n_tokens > limit:
            raise TextTooLongError(n_tokens, limit)

    # -- decoding -------------------------------------------------------------------------------

    def token_bytes(self, id: int) -> bytes:
        """Return the bytes of a token, which may be only part of a character.

        Control tokens give their text, unused tokens nothing. Raises RequestError for an id outside
        the vocabulary.
        """
        piece = self._pieces.get(id)
        if piece is None:
            if not 0 <= id < self.n_vocab:
                raise RequestError(
                    f"token id {id} does not exist", f"the vocabulary has {self.n_vocab} tokens"
                )
            piece = self._pieces[id] = self._piece(id)
        return piece

    def _piece(self, id: int) -> bytes:
        text = self._vocabulary.texts[id]
        match self._vocabulary.kinds[id]:
            case TokenKind.NORMAL if self._byte_level:
                spelled = [BYTE_OF.get(char) for char in text]
                if None in spelled:  # a token added to the vocabulary in plain text
                    return text.encode(errors="replace")
                return bytes(byte for byte in spelled if byte is not None)
            case TokenKind.NORMAL:
                return text.replace(SPACE, " ").encode(errors="replace")
            case TokenKind.BYTE:
                try:
                    return bytes([int(text[3:5], 16)])
                except ValueError:
                    return text.encode(errors="replace")
            case TokenKind.UNUSED | TokenKind.UNDEFINED:
                return b""
            case _:
                return text.encode(errors="replace")

    def is_hidden(self, id: int) -> bool:
        """Return whether a token is left out of an answer's text, as most control tokens are."""
        return id in self._hidden

    def decode_bytes(self, ids: Iterable[int], skip_special: bool = True) -> bytes:
        """Return the bytes of some tokens; the last character may be incomplete."""
        hidden = self._hidden if skip_special else frozenset()
        return b"".join(self.token_bytes(id) for id in ids if id not in hidden)

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """Return the text of some tokens, the inverse of `encode`.

        The space that `encode` put before the text is removed. Invalid UTF-8 becomes U+FFFD.
        """
        text = self.decode_bytes(ids, skip_special).decode("utf-8", errors="replace")
        return text.removeprefix(" ") if self.add_space_prefix else text

    # -- vocabulary -----------------------------------------------------------------------------

    def id_of(self, token_text: str) -> int | None:
        """Return the id of the token that the file spells `token_text`, or None."""
        return self._vocabulary.ids.get(token_text)

    def text_of(self, id: int) -> str:
        """Return a token as the file spells it. Raises RequestError for an unknown id."""
        self.token_bytes(id)
        return self._vocabulary.texts[id]

    def __repr__(self) -> str:
        return f"Tokenizer({self.path!r}, n_vocab={self.n_vocab})"


def _check_count(ids: Sequence[int], limit: int) -> None:
    if len(ids) > limit:
        raise TextTooLongError(len(ids), limit, is_exact=True)


def _from_scores(fields: Fields) -> Tokenizer:
    vocabulary = read_vocabulary(fields)
    roles = assign_roles(vocabulary, fields, {"bos": 1, "eos": 2, "unk": 0})
    # Phi 3 was trained without whitespace after special tokens. Only the name identifies it.
    name = (fields.text("general.name") or "").lower()
    return Tokenizer(
        vocabulary,
        roles,
        ScoreEncoder(vocabulary, roles.unk),
        byte_level=False,
        add_bos=_flag(fields, "add_bos_token", True),
        add_eos=_flag(fields, "add_eos_token", False),
        add_space_prefix=_flag(fields, "add_space_prefix", True),
        chat_templates=_chat_templates(fields),
        strip_after_special="phi-3" in name or "phi3" in name,
    )


def _from_pieces(fields: Fields) -> Tokenizer:
    """Return the tokenizer of an encoder: BOS and EOS are the tokens [CLS] and [SEP]."""
    vocabulary = read_vocabulary(fields)
    texts = {"bos": "[CLS]", "eos": "[SEP]", "unk": "[UNK]"}  # files state some of the ids only
    found = {role: vocabulary.ids[text] for role, text in texts.items() if text in vocabulary.ids}
    roles = assign_roles(vocabulary, fields, found)
    lowercase = _flag(fields, "normalizer.lowercase", True)
    return Tokenizer(
        vocabulary,
        roles,
        WordPieceEncoder(
            vocabulary,
            roles.unk,
            lowercase=lowercase,
            strip_accents=_flag(fields, "normalizer.strip_accents", lowercase),
        ),
        byte_level=False,
        add_bos=_flag(fields, "add_bos_token", True),
        add_eos=_flag(fields, "add_eos_token", True),
        add_space_prefix=True,
        chat_templates=_chat_templates(fields),
    )


def _from_probabilities(fields: Fields) -> Tokenizer:
    vocabulary = read_vocabulary(fields)
    roles = assign_roles(vocabulary, fields, {"eos": 1, "unk": 2})
    return Tokenizer(
        vocabulary,
        roles,
        UnigramEncoder(
            vocabulary,
            roles.unk,
            fields.octets(PREFIX + "precompiled_charsmap"),
            merge_spaces=_flag(fields, "remove_extra_whitespaces", False),
        ),
        byte_level=False,
        add_bos=_flag(fields, "add_bos_token", False),
        add_eos=_flag(fields, "add_eos_token", True),
        add_sep=_flag(fields, "add_sep_token", False),
        add_space_prefix=_flag(fields, "add_space_prefix", True),
        chat_templates=_chat_templates(fields),
    )


def _from_merges(fields: Fields, pre: PreTokenizer) -> Tokenizer:
    vocabulary = read_vocabulary(fields)
    roles = assign_roles(vocabulary, fields, {})
    merges = fields.strings(PREFIX + "merges") or []
    add_bos = _flag(fields, "add_bos_token", pre.add_bos)
    return Tokenizer(
        vocabulary,
        roles,
        BytePairEncoder(vocabulary, merges, pre),
        byte_level=pre.byte_level,
        add_bos=add_bos or pre.always_bos,
        add_eos=_flag(fields, "add_eos_token", False),
        add_sep=_flag(fields, "add_sep_token", False),
        add_space_prefix=False,
        chat_templates=_chat_templates(fields),
    )


def _from_world(fields: Fields) -> Tokenizer:
    vocabulary = read_world(fields)
    roles = assign_roles(vocabulary, fields, {})
    templates = _chat_templates(fields)
    if templates.get("default") == WORLD:
        templates["default"] = WORLD_TEMPLATE
    return Tokenizer(
        vocabulary,
        roles,
        LongestMatchEncoder(vocabulary),
        byte_level=True,
        add_bos=_flag(fields, "add_bos_token", False),
        add_eos=_flag(fields, "add_eos_token", False),
        add_space_prefix=False,
        chat_templates=templates,
    )


def _flag(fields: Fields, key: str, default: bool) -> bool:
    value = fields.flag(PREFIX + key)
    return default if value is None else value


def _chat_templates(fields: Fields) -> dict[str, str]:
    """Return chat templates by name: `default`, and others in the file (`tool_use`, `rag`)."""
    names = fields.strings("tokenizer.chat_templates") or []
    keys = {"default": _CHAT_TEMPLATE} | {name: f"{_CHAT_TEMPLATE}.{name}" for name in names}
    found = {name: fields.text(key) for name, key in keys.items()}
    return {name: source for name, source in found.items() if source}


def _strip_after(vocabulary: Vocabulary, roles: Roles) -> frozenset[int]:
    """Return the tokens of Phi 3 after which whitespace is removed."""
    special = vocabulary.of_kind(TokenKind.CONTROL, TokenKind.USER_DEFINED, TokenKind.UNKNOWN)
    kept = {vocabulary.ids.get(text) for text in ("<unk>", "<s>", "<|endoftext|>")}
    return frozenset(special) - kept


def _well_formed(text: str) -> str:
    """Return a text with U+FFFD in place of lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
