"""Structured output: token masks for a JSON schema, a regular expression or a grammar.

    Grammars (one per model) -> Grammar (compiled, reusable) -> GrammarConstraint (one per answer)

llguidance (https://github.com/guidance-ai/llguidance) parses the answer; it is an optional
dependency and imported at the first request for structured output. A schema or grammar that cannot
be followed exactly is refused before the request runs, and every token is masked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast, get_args

import numpy as np

from zinc.core.errors import RequestError, UnsupportedError, with_article
from zinc.core.native import is_panic
from zinc.core.rounding import ceil_div
from zinc.engine.constraint import Constraint
from zinc.engine.sampling.allowed import Words
from zinc.grammar.kinds import Kind, Source, first_line, refused, source_text
from zinc.grammar.library import llguidance
from zinc.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

T = TypeVar("T")

SHORT_CHARACTERS = 64
N_COMPILED = 16  # compiled grammars kept for a model
MAX_COMPILED_CHARACTERS = 1 << 16

# Limits of a grammar. Fuel is about 50,000 a millisecond while compiling, and 14,000 a millisecond
# for a mask. A lexer state takes 1 to 2 kB.
_LIMITS = {
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_items_in_row": 12_000,  # optional members of an object take a few each
    "max_lexer_states": 100_000,
    "max_grammar_size": 500_000,
    "verbose_errors": False,
}


class Grammars:
    """Compiler of grammars for one model. Thread-safe.

    n_vocab: length of a row of logits, by default the size of the tokenizer's vocabulary.
    """

    def __init__(self, tokenizer: Tokenizer, n_vocab: int | None = None) -> None:
        self._tokenizer = tokenizer
        self._n_vocab = n_vocab or tokenizer.n_vocab
        self._vocabulary: LLTokenizer | None = None
        # Many requests have the same schema or grammar.
        self._kept = lru_cache(N_COMPILED)(self._compile)

    def constraint(self, kind: Kind, source: Source = None) -> Grammar:
        """Return a compiled grammar, which any number of answers may follow.

        source: a JSON schema (text or data), a regular expression for the whole answer, or a
        grammar (llguidance's Lark dialect or GBNF); None for "json_object". "rules" is Lark that
        `zinc.grammar.schema` wrote. Raises RequestError if the source is not valid or not
        supported, and UnsupportedError if llguidance is not installed.
        """
        if kind not in get_args(Kind):
            given = repr(kind) if isinstance(kind, str) else with_article(kind)
            raise RequestError(
                f"{given} is not a kind of constraint",
                "the kinds are json_schema, json_object, regex and grammar",
                'pass the kind first, as in constraint("json_schema", schema)',
            )
        llguidance()
        text = source_text(kind, source)
        return (self._kept if len(text) <= MAX_COMPILED_CHARACTERS else self._compile)(kind, text)

    def _compile(self, kind: Kind, text: str) -> Grammar:
        from zinc.grammar.checked import checked_grammar

        library = llguidance()
        source = checked_grammar(kind, text)
        vocabulary = self._vocabulary_for(library)

        def matcher() -> LLMatcher:
            make = library.LLMatcher
            prepare = make.grammar_from_regex if kind == "regex" else make.grammar_from_lark
            limits = library.LLParserLimits(**_LIMITS)
            found: LLMatcher = make(vocabulary, prepare(source), log_level=0, limits=limits)
            return found

        try:
            compiled = _guarded(matcher)
            if compiled.is_error():
                raise refused(kind, compiled.get_error())
            return Grammar(compiled, self._n_vocab)
        except RequestError as error:
            raise refused(kind, error.why) from None

    def _vocabulary_for(self, library: Any) -> LLTokenizer:
        if self._vocabulary is None:
            source = library.TokenizerWrapper(_Vocabulary(self._tokenizer, self._n_vocab))
            ends = sorted(self._tokenizer.eog_ids)
            self._vocabulary = library.LLTokenizer(
                source, n_vocab=self._n_vocab, eos_token=ends or None
            )
        return self._vocabulary


class Grammar:
    """A compiled grammar without state; `start` creates a parser for each answer."""

    def __init__(self, matcher: LLMatcher, n_vocab: int) -> None:
        # The first mask takes tens of milliseconds, later ones tens of microseconds. Computed here,
        # it does not delay a step of other requests.
        self._first = GrammarConstraint(matcher, np.zeros(ceil_div(n_vocab, 32), np.uint32))
        self._first.mask()
        self._forced = self._first.forced()

    def start(self) -> GrammarConstraint:
        """Return a constraint for one answer."""
        return self._first.copy(self._forced)


ConstraintLike: TypeAlias = Grammar | Constraint | Mapping[str, Any] | str | bool | type[Any] | None


def start_constraints(
    constraint: ConstraintLike, grammars: Callable[[], Grammars], n: int = 1
) -> list[Constraint | None]:
    """Return a constraint for each of `n` answers.

    constraint: a `Grammar`, a JSON schema (data or text), a class with `model_json_schema` (a
    Pydantic model), or a constraint for one answer. Raises RequestError for other values.
    """
    if constraint is None:
        return [None] * n
    if isinstance(constraint, type):
        schema_of = getattr(constraint, "model_json_schema", None)
        if schema_of is None:
            raise RequestError(
                f"the class {constraint.__name__} is not a constraint",
                "it has no method model_json_schema",
                "pass a Pydantic model, or a JSON schema",
            )
        constraint = schema_of()
    if isinstance(constraint, Mapping | str | bool):
        constraint = grammars().constraint("json_schema", constraint)
    if isinstance(constraint, Grammar):
        return [constraint.start() for _ in range(n)]
    if not all(hasattr(constraint, name) for name in ("mask", "accept", "forced", "allows")):
        raise RequestError(
            f"constraint is {with_article(constraint)}",
            "it takes a JSON schema, a Pydantic model or what LLM.constraint returns",
        )
    if n > 1:
        raise RequestError(
            f"one constraint cannot be used for {n} answers",
            "it follows the tokens of a single answer",
            "pass what LLM.constraint returns, or a JSON schema",
        )
    return [cast(Constraint, constraint)]


class GrammarConstraint:
    """A parser of one answer; implements `zinc.engine.constraint.Constraint`."""

    def __init__(
        self, matcher: LLMatcher, words: Words, forced: Sequence[int] | None = None
    ) -> None:
        self._matcher = matcher
        self._words = words
        self._is_computed = forced is not None
        self._forced = forced if forced is not None else _guarded(matcher.compute_ff_tokens)

    def copy(self, forced: Sequence[int]) -> GrammarConstraint:
        """Return a copy in the same state; `forced` are the next tokens, already computed."""
        return GrammarConstraint(_guarded(self._matcher.deep_copy), self._words.copy(), forced)

    def forced(self) -> Sequence[int]:
        return self._forced

    def allows(self, token: int) -> bool:
        # The matcher would accept other tokenizations of forced text, which no mask allows.
        if self._forced:
            return token == self._forced[0]
        return _guarded(lambda: self._matcher.validate_tokens([token])) == 1

    def mask(self) -> Words:
        if not self._is_computed:
            place = self._words.ctypes.data, self._words.nbytes
            _guarded(lambda: self._matcher.unsafe_compute_mask_ptr(*place))
            self._check("the grammar cannot say which tokens may follow")
            self._is_computed = True
        return self._words

    def accept(self, token: int) -> None:
        _guarded(lambda: self._matcher.consume_token(token))
        self._check(f"token {token} does not follow the grammar")
        self._is_computed = False
        self._forced = self._forced[1:] or _guarded(self._matcher.compute_ff_tokens)

    @property
    def finished(self) -> bool:
        return self._matcher.is_stopped()

    def _check(self, what: str) -> None:
        if self._matcher.is_error():
            raise RequestError(what, first_line(self._matcher.get_error()))


class _Vocabulary:
    """A model's tokens, in the interface that llguidance expects of a tokenizer."""

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
                "answers of this model cannot follow a grammar",
                "it has no token that ends an answer",
                "use a model that was trained for conversations",
            )
        self._encode = partial(tokenizer.encode, add_special=False)
        # A schema forces the same text again and again: names of properties, choices.
        self._encode_short = lru_cache(4096)(self._encode)

    def __call__(self, text: str) -> list[int]:
        if not isinstance(text, str):
            raise TypeError("text, not bytes")
        return self._encode_short(text) if len(text) <= SHORT_CHARACTERS else self._encode(text)


def _guarded(call: Callable[[], T]) -> T:
    """Return the result of a call into llguidance; a panic becomes a RequestError."""
    try:
        return call()
    except Exception as error:
        raise RequestError("the grammar cannot be followed", first_line(str(error))) from error
    except BaseException as error:
        if not is_panic(error):
            raise
        raise RequestError(
            "the grammar cannot be followed", f"llguidance failed: {first_line(str(error))}"
        ) from None
