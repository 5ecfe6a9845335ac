"""Answers of a given form: JSON by a schema, a regular expression, a grammar, as token masks.

The parsing is llguidance's (https://github.com/guidance-ai/llguidance), an optional dependency that
is imported when the first request asks for it. Whatever it cannot hold an answer to is refused
before the request runs; nothing is ever let through unmasked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from zinc.core.errors import RequestError, UnsupportedError
from zinc.core.native import panics_refuse
from zinc.engine.sampling.allowed import Words
from zinc.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

Kind: TypeAlias = Literal["json_schema", "json_object", "regex", "grammar"]

# Between the parts of JSON: a space, or a line break and an indentation; never an endless blank,
# which a small model may fall into.
JSON_WHITESPACE = r"( |\n[ \t]{0,24})?"
MAX_SOURCE_CHARACTERS = 1 << 20
SHORT_CHARACTERS = 64


class Grammars:
    """Makes constraints for one model. Thread-safe; `n_vocab` is the length of a row of logits."""

    def __init__(self, tokenizer: Tokenizer, n_vocab: int | None = None) -> None:
        self._tokenizer = tokenizer
        self._n_vocab = n_vocab or tokenizer.n_vocab
        self._vocabulary: LLTokenizer | None = None

    @panics_refuse("the answer cannot be held to this form")
    def constraint(
        self, kind: Kind, source: str | Mapping[str, Any] | bool | None = None
    ) -> GrammarConstraint:
        """A constraint for one sequence.

        source: a JSON schema (as text or data), a regular expression (of the whole answer), or a
        grammar, in llguidance's Lark dialect or as GBNF; nothing for "json_object". Raises
        RequestError when it cannot be understood or followed, UnsupportedError without llguidance.
        """
        llguidance = _library()
        grammar = _grammar(kind, source)
        vocabulary = self._vocabulary_for(llguidance)
        failed, messages = llguidance.LLMatcher.validate_grammar_with_warnings(grammar, vocabulary)
        if failed:
            raise _refused(kind, messages[0] if messages else "")
        matcher = llguidance.LLMatcher(vocabulary, grammar, log_level=0)
        if matcher.is_error():
            raise _refused(kind, matcher.get_error())
        return GrammarConstraint(matcher, self._n_vocab)

    def _vocabulary_for(self, llguidance: Any) -> LLTokenizer:
        if self._vocabulary is None:
            source = llguidance.TokenizerWrapper(_Vocabulary(self._tokenizer, self._n_vocab))
            ends = sorted(self._tokenizer.eog_ids)
            self._vocabulary = llguidance.LLTokenizer(
                source, n_vocab=self._n_vocab, eos_token=ends or None
            )
        return self._vocabulary


def lark_regex(pattern: str) -> str:
    """A pattern of JSON Schema, which is JavaScript's, as it stands between a grammar's slashes."""
    found: str = _library().regex_to_lark(pattern, "dw")
    return found


class GrammarConstraint:
    """A parser in the middle of one answer; see `zinc.engine.constraint.Constraint`."""

    def __init__(self, matcher: LLMatcher, n_vocab: int) -> None:
        self._matcher = matcher
        self._words = np.zeros(-(-n_vocab // 32), np.uint32)
        # The first mask takes tens of milliseconds (later ones, tens of microseconds): not in the
        # middle of a step that others wait for.
        self._is_computed = False
        self.mask()
        self._forced: Sequence[int] = self._matcher.compute_ff_tokens()

    def forced(self) -> Sequence[int]:
        return self._forced

    @panics_refuse("the answer cannot be held to its form")
    def allows(self, token: int) -> bool:
        # The matcher would take other spellings of what is forced, which no mask allows.
        if self._forced:
            return token == self._forced[0]
        return self._matcher.validate_tokens([token]) == 1

    @panics_refuse("the answer cannot be held to its form")
    def mask(self) -> Words:
        if not self._is_computed:
            self._matcher.unsafe_compute_mask_ptr(self._words.ctypes.data, self._words.nbytes)
            self._check("no next token can be told")
            self._is_computed = True
        return self._words

    @panics_refuse("the answer cannot be held to its form")
    def accept(self, token: int) -> None:
        self._matcher.consume_token(token)
        self._check(f"token {token} does not follow the grammar")
        self._is_computed = False
        self._forced = self._forced[1:] or self._matcher.compute_ff_tokens()

    @property
    def finished(self) -> bool:
        return self._matcher.is_stopped()

    def _check(self, what: str) -> None:
        if self._matcher.is_error():
            raise RequestError(what, _first_line(self._matcher.get_error()))


class _Vocabulary:
    """The tokens of a model as llguidance asks for them."""

    def __init__(self, tokenizer: Tokenizer, n_vocab: int) -> None:
        known = range(min(n_vocab, tokenizer.n_vocab))
        self.tokens = [tokenizer.token_bytes(i) for i in known]
        self.tokens += [b""] * (n_vocab - len(self.tokens))
        self.special_token_ids = sorted(tokenizer.special_ids | tokenizer.eog_ids)
        self.bos_token_id = tokenizer.bos_id
        self.eos_token_id = tokenizer.eos_id
        if self.eos_token_id is None:
            self.eos_token_id = min(tokenizer.eog_ids, default=None)
        if self.eos_token_id is None:
            raise UnsupportedError(
                "the model cannot be held to a grammar", "it has no token that ends an answer"
            )
        self._encode = partial(tokenizer.encode, add_special=False)
        # What a schema dictates comes again and again: names of properties, choices.
        self._encode_short = lru_cache(4096)(self._encode)

    def __call__(self, text: str) -> list[int]:
        if not isinstance(text, str):
            raise TypeError("text, not bytes")
        return self._encode_short(text) if len(text) <= SHORT_CHARACTERS else self._encode(text)


def _library() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise UnsupportedError(
            "answers cannot be held to a grammar or schema",
            "the package llguidance is not installed",
            "install it with: pip install 'zinc[structured]'",
        ) from error
    return llguidance


def _grammar(kind: Kind, source: str | Mapping[str, Any] | bool | None) -> str:
    """The source in llguidance's own form."""
    from llguidance import LLMatcher

    if kind == "json_object":
        source = {"type": "object"}
    if kind in ("json_object", "json_schema"):
        try:
            schema = json.loads(source) if isinstance(source, str) else source
            if not isinstance(schema, (Mapping, bool)):
                raise _refused(kind, "a schema is an object, or true or false")
            _check_size(kind, text := json.dumps(schema))
            options: Any = {"whitespace_pattern": JSON_WHITESPACE}
            if schema in (True, {}):  # any JSON value
                text = "{}"
            return LLMatcher.grammar_from_json_schema(text, defaults=options)
        except (ValueError, TypeError, RecursionError) as error:
            raise _refused(kind, str(error)) from error
    if not isinstance(source, str) or not source.strip():
        raise _refused(kind, "it must be text that is not empty")
    _check_size(kind, source)
    if kind == "regex":
        return LLMatcher.grammar_from_regex(source)
    if "::=" not in source:
        return LLMatcher.grammar_from_lark(source)
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return LLMatcher.grammar_from_lark(gbnf_to_lark(source))
    except Exception as error:  # its parser has no error class of its own for every failure
        raise _refused(kind, str(error)) from error


def _check_size(kind: Kind, text: str) -> None:
    if len(text) > MAX_SOURCE_CHARACTERS:
        raise _refused(
            kind, f"it has {len(text):,} characters, and {MAX_SOURCE_CHARACTERS:,} are taken"
        )


def _refused(kind: Kind, why: str) -> RequestError:
    name = {"json_schema": "JSON schema", "regex": "regular expression"}.get(kind, kind)
    return RequestError(f"the {name} cannot be followed", _first_line(why))


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:300] if lines else "llguidance gives no reason"
