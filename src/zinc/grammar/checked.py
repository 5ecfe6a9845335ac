"""The grammar of each kind of constraint, checked.

Imported at the first constraint: schemas and patterns are many modules, which most programs never
need.
"""

from __future__ import annotations

from zinc.core.errors import RequestError
from zinc.grammar import lark
from zinc.grammar.kinds import Kind, refused
from zinc.grammar.schema.document import load
from zinc.grammar.schema.rules import rules_of


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
        raise lark.SourceError("it has an unpaired surrogate")
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
