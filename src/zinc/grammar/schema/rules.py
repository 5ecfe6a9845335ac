"""Rules of llguidance's Lark dialect for the JSON values of a schema.

    value_0: "{" value_0_1           members in the order of the schema,
    value_0_1: KEY ":" value_1 ...   then keys that it does not name

Rules that derive no finite text are removed, and a schema without any valid value is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from zinc.core.dataclass import dataclass
from zinc.grammar.schema.document import Document, Json, SchemaError
from zinc.grammar.schema.evaluate import Evaluator
from zinc.grammar.schema.keywords import KeywordPolicy
from zinc.grammar.schema.spacing import FLEXIBLE, Spacing
from zinc.grammar.schema.symbols import RuleSet, quoted
from zinc.grammar.schema.values import (
    ANY,
    Conjunction,
    Literals,
    Text,
    conjunction,
    text_terminal,
)
from zinc.grammar.schema.writer import Writer


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules of a schema; `start` is the name of the first."""

    start: str
    lines: tuple[str, ...]


class SchemaRules:
    """Builder of the rules of a schema or of its parts. Raises SchemaError, as its methods do.

    lenient: leave out keywords that are not supported, and list them in `dropped`. A part of the
    schema is named by its keys: `("properties", "city")`.
    """

    def __init__(self, schema: Json, *, spacing: Spacing = FLEXIBLE, lenient: bool = False) -> None:
        self._document = Document(schema)
        self._evaluator = Evaluator(self._document, KeywordPolicy(lenient))
        self._spacing = spacing

    @property
    def dropped(self) -> dict[str, None]:
        """The keywords that the rules written so far leave out."""
        return self._evaluator.policy.dropped

    def drop(self, keyword: str, why: str) -> None:
        """Leave out a keyword, or refuse it."""
        self._evaluator.policy.cannot(keyword, why)

    def sharing(self, schema: Json) -> SchemaRules:
        """Return the rules of another schema, which list dropped keywords together with these."""
        other = SchemaRules(schema, spacing=self._spacing)
        other._evaluator.policy = self._evaluator.policy
        return other

    def kinds(self, *at: str | int) -> frozenset[str]:
        """Return the JSON types that a value of a part may have."""
        return frozenset(self._evaluator.values(self._part(at)))

    def is_any(self, *at: str | int) -> bool:
        """Return whether a part allows every value."""
        return not self._part(at) or self._evaluator.values(self._part(at)) == ANY

    def json(self, prefix: str, *at: str | int, kinds: Collection[str] | None = None) -> Rules:
        """Return the rules of values as JSON.

        prefix: begins the names of all rules; lower case. kinds: the types that the value may have.
        """
        part = self._part(at)
        if self._document.root.schema is False:
            raise SchemaError("false allows no value")
        rules = RuleSet(prefix)
        name = Writer(self._evaluator, rules, self._spacing).start(part, kinds)
        return Rules(name, tuple(rules.lines(name)))

    def text(self, *at: str | int) -> str:
        """Return a terminal of the strings of a part as they stand, without quotes."""
        found: list[str] = []
        for each in self._evaluator.values(self._part(at)).get("string", ()):
            match each:
                case Literals(values):
                    found += [quoted(value) if value else "/()/" for value in values]
                case Text(0, None, ()):
                    found.append("/(?s:.*)/")
                case Text():
                    found.append(f"({text_terminal(each)})")
        expression = found[0] if len(found) == 1 else f"({' | '.join(found)})"
        if not found or (
            " & " in expression and self._evaluator.sets.is_empty_terminal(expression)
        ):
            raise SchemaError("it allows no text")
        return expression

    def _part(self, at: Sequence[str | int]) -> Conjunction:
        located = self._document.root
        if at:
            located = self._document.child(located, *at)
        return conjunction([located])


def rules_of(schema: Json, *, prefix: str = "value") -> Rules:
    """Return the rules of a JSON schema. Raises SchemaError."""
    return SchemaRules(schema).json(prefix)
