"""Evaluation of a schema to the JSON values that it allows.

`Evaluator` combines the keywords of each subschema (keywords.py) with the schemas that it refers
to, and caches the result.
"""

from __future__ import annotations

from collections.abc import Iterator

from zinc.grammar.schema.document import DRAFT_2020, Document, Located, SchemaError
from zinc.grammar.schema.keywords import KeywordPolicy, Keywords
from zinc.grammar.schema.sets import ValueSets
from zinc.grammar.schema.values import (
    ANY,
    NONE,
    TYPES,
    Alternative,
    Conjunction,
    Object,
    ObjectPart,
    Values,
    literals,
    union,
)

MAX_SUBSCHEMAS = 8_000
MAX_NESTED = 80  # subschemas applied to the same value, one within the other


class Evaluator:
    """Evaluator of the values that the subschemas of a document allow.

    policy: decides about unsupported keywords. Methods raise SchemaError.
    """

    def __init__(self, document: Document, policy: KeywordPolicy) -> None:
        self.document = document
        self.policy = policy
        self.sets = ValueSets(self.values)
        self._known: dict[Located, Values] = {}
        self._conjunctions: dict[Conjunction, Values] = {}
        self._active: list[Located] = []  # subschemas that are being read, the innermost last

    def values(self, conjunction: Conjunction) -> Values:
        """Return the values that all subschemas of a conjunction allow."""
        found = self._conjunctions.get(conjunction)
        if found is None:
            found = ANY
            for located in conjunction:
                found = self._intersected(found, self._evaluate(located))
            self._conjunctions[conjunction] = found
        return found

    def _intersected(self, a: Values, b: Values) -> Values:
        path = self._active[-1].path if self._active else "#"
        return self.sets.intersected(a, b, path)

    def _evaluate(self, located: Located) -> Values:
        """Return the values that a subschema allows, from the cache if it was read before."""
        if located.schema is True:
            return ANY
        if located.schema is False:
            return NONE
        if located in self._known:
            return self._known[located]
        if located in self._active:
            raise SchemaError("$ref refers to itself", located.path, "$ref")
        if len(self._active) >= MAX_NESTED:
            raise SchemaError("its references are nested too deeply", located.path)
        if len(self._known) >= MAX_SUBSCHEMAS:
            raise SchemaError(f"it has more than {MAX_SUBSCHEMAS:,} subschemas")
        self._active.append(located)
        try:
            found = self._read(located)
        finally:
            self._active.pop()
        self._known[located] = found
        return found

    def _read(self, located: Located) -> Values:
        """Return the intersection of the values that each keyword allows."""
        schema, draft = located.schema, self.document.draft
        keywords = Keywords(self.document, located, self.policy)
        if draft <= 7 and "$ref" in schema:
            return self._referred(located, keywords, "$ref")
        parts = [keywords.types()]
        if numbers := keywords.numbers():
            parts.append({**ANY, "number": (numbers,)})
        if text := keywords.text():
            parts.append({**ANY, "string": (text,)})
        if array := keywords.array():
            parts.append({**ANY, "array": (array,)})
        if object := keywords.object():
            parts.append({**ANY, "object": (object,)})
        parts += self._dependencies(located, keywords)
        for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
            if keyword in schema and (keyword != "$dynamicRef" or draft >= DRAFT_2020):
                parts.append(self._referred(located, keywords, keyword))
        for i in range(len(keywords.schemas("allOf"))):
            parts.append(self._evaluate(self.document.child(located, "allOf", i)))
        if keywords.schemas("anyOf"):
            parts.append(union(*self._options(located, "anyOf")))
        if keywords.schemas("oneOf"):
            parts.append(self._one_of(located, keywords))
        if "not" in schema:
            parts.append(self._not(located, keywords))
        if "if" in schema:
            parts.append(self._if(located, keywords))
        if "const" in schema and draft >= 6:
            parts.append(literals([schema["const"]]))
        if "enum" in schema:
            choices = schema["enum"]
            if not isinstance(choices, list):
                keywords.invalid("enum", "must be a list")
            parts.append(literals(choices))
        found = ANY
        # Listed values come last: they are filtered by everything else.
        for part in parts:
            found = self._intersected(found, part)
        return found

    def _dependencies(self, located: Located, keywords: Keywords) -> Iterator[Values]:
        """Yield the values that each dependency allows: its key is absent, or it holds."""
        # Newer drafts keep `dependencies` for compatibility.
        names = ["dependencies"]
        if self.document.draft >= 2019:
            names = ["dependentRequired", "dependentSchemas", *names]
        found = [(name, *member) for name in names for member in keywords.mapping(name).items()]
        never = self.document.at(False, "", located.path)
        for keyword, key, value in found:
            absent = {**ANY, "object": (Object((ObjectPart({key: never}),)),)}
            needed = (key, *value) if isinstance(value, list) else (key,)
            present: Values = {
                "object": (
                    Object((ObjectPart(required=tuple(keywords.strings(keyword, list(needed)))),)),
                )
            }
            if not isinstance(value, list):
                if keyword == "dependentRequired":
                    keywords.invalid(keyword, "must have lists of strings")
                child = self.document.child(located, keyword, key)
                present = self._intersected(present, self._evaluate(child))
            yield union(absent, present)

    def _referred(self, located: Located, keywords: Keywords, keyword: str) -> Values:
        """Return the values that the target of a reference allows."""
        reference = located.schema[keyword]
        if not isinstance(reference, str):
            keywords.invalid(keyword, "must be a string")
        if keyword == "$dynamicRef":
            target = self.document.resolve_dynamic(located, reference)
        elif keyword == "$recursiveRef":
            target = self.document.resolve_recursive(located)
        else:
            target = self.document.resolve(located, reference)
        return self._evaluate(target)

    def _options(self, located: Located, keyword: str) -> list[Values]:
        """Return the values of each schema in a list such as `anyOf`."""
        n = len(located.schema[keyword])
        return [self._evaluate(self.document.child(located, keyword, i)) for i in range(n)]

    def _one_of(self, located: Located, keywords: Keywords) -> Values:
        """Return the union of `oneOf`, whose alternatives must be disjoint."""
        own = keywords.types()
        options = [self._intersected(own, each) for each in self._options(located, "oneOf")]
        for i, one in enumerate(options):
            for j in range(i):
                both = self._intersected(options[j], one)
                overlap = [
                    kind
                    for kind, alternatives in both.items()
                    if not all(self.sets.is_nothing(each, 3) for each in alternatives)
                ]
                if overlap:
                    keywords.cannot(
                        "oneOf",
                        f"has alternatives {j} and {i} that may both allow the same {overlap[0]}",
                    )
                    return union(*options)
        return union(*options)

    def _not(self, located: Located, keywords: Keywords) -> Values:
        """Return the types that `not` leaves; only whole types are supported."""
        inside = self._evaluate(self.document.child(located, "not"))
        found: dict[str, tuple[Alternative, ...]] = {}
        for kind in TYPES:
            if not inside.get(kind):
                found[kind] = ANY[kind]
            elif inside[kind] != ANY[kind]:
                keywords.cannot("not", "is supported with whole types alone")
                return ANY
        return found

    def _if(self, located: Located, keywords: Keywords) -> Values:
        """Return the values of `then` or `else`, if `if` allows every value or none."""
        schema = located.schema
        if self.document.draft < 7 or not {"then", "else"} & schema.keys():
            return ANY
        condition = self._evaluate(self.document.child(located, "if"))
        chosen = "then" if condition == ANY else "else" if not condition else None
        if chosen is None:
            keywords.cannot("if")
            return ANY
        return self._evaluate(self.document.child(located, chosen)) if chosen in schema else ANY
