"""Kinds of constraint that a request may name, and the grammar of each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from zinc.core.errors import RequestError
from zinc.grammar import lark
from zinc.grammar.schema.document import load
from zinc.grammar.schema.rules import rules_of

Kind: TypeAlias = Literal["json_schema", "json_object", "regex", "grammar", "rules"]
Source: TypeAlias = str | Mapping[str, Any] | bool | None

MAX_SOURCE_CHARACTERS = 1 << 20


def source_text(kind: Kind, source: Source) -> str:
    """Return the source of a constraint as text, so that equal sources have equal text.

    source: a JSON schema as text or data, a regular expression, a grammar, or nothing for
    "json_object". Raises RequestError if it is empty, too long or not JSON.
    """
    if kind == "json_object":
        return '{"type":"object"}'
    if kind == "json_schema" and not isinstance(source, str):
        if not isinstance(source, Mapping | bool):
            raise refused(kind, "a schema is an object, or true or false")
        try:
            source = json.dumps(source, default=_mapping)
        except RecursionError:
            raise refused(kind, "it is nested too deeply") from None
        except (TypeError, ValueError) as error:
            raise refused(kind, str(error)) from None
    if not isinstance(source, str) or not source.strip():
        raise refused(kind, "it must be text that is not empty")
    if len(source) > MAX_SOURCE_CHARACTERS:
        raise refused(
            kind, f"it has {len(source):,} characters, and at most {MAX_SOURCE_CHARACTERS:,} "
            "are accepted",
        )  # fmt: skip
    return source


def _mapping(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"it contains a {type(value).__name__}, which is not JSON")


def checked_grammar(kind: Kind, text: str) -> str:
    """Check a source and return it as a grammar in llguidance's Lark dialect.

    A regular expression is returned unchanged. "grammar" is Lark or GBNF, "rules" is Lark from
    `zinc.grammar.schema`. Raises RequestError if the source is not valid or not supported.
    """
    try:
        return _checked_grammar(kind, text)
    except RequestError as error:
        raise refused(kind, error.why) from None


def _checked_grammar(kind: Kind, text: str) -> str:
    if kind in ("json_object", "json_schema"):
        return lark.grammar_of(rules_of(load(text)))
    if not _is_unicode(text):
        raise lark.SourceError("it has half a surrogate pair")
    if kind == "rules":
        lark.check_references(text)
        return text
    if kind == "regex":
        lark.check_regex(text)
        return text
    if "::=" in text:
        text = lark.from_gbnf(text)
    return lark.from_lark(text)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def refused(kind: Kind, why: str) -> RequestError:
    """Return the error for a source that is not valid or not supported."""
    name = {"json_schema": "JSON schema", "regex": "regular expression"}.get(kind, "grammar")
    return RequestError(f"the {name} cannot be followed", first_line(why))


def first_line(text: str) -> str:
    """Return the first line of an error message of llguidance."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:300] if lines else "llguidance gives no reason"
