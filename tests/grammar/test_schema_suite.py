"""JSON-Schema-Test-Suite, draft 2020-12: every schema is followed exactly or refused.

For an accepted schema, the constraint allows each valid instance in some order of its members, and
no invalid instance in any order. Instances are written with exact numbers in plain decimals,
compact and with a space after `,` and `:`. zinc asserts known formats, which 2020-12 permits but
does not require. So tests that treat a format as an annotation are left out, and in the optional
format tests, some valid values may be refused (NARROW) but no invalid one may be allowed.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tokenizer.small_vocabularies import byte_level

from zinc.core.errors import RequestError
from zinc.engine.structured import Grammars
from zinc.grammar.schema.document import checked, load
from zinc.grammar.schema.values import numeral
from zinc.tokenizer import Tokenizer
from zinc.tokenizer.vocabulary import TokenKind

pytest.importorskip("llguidance")

SUITE = load(
    (Path(__file__).parent.parent / "data/json_schema_suite/draft2020-12.json").read_text()
)
NARROW = {"date-time", "email", "hostname", "time"}
QUICK = {"additionalProperties", "const", "enum", "maximum", "multipleOf", "oneOf", "pattern",
         "patternProperties", "type", "optional/bignum", "optional/format/date"}  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """A tokenizer whose tokens are the 256 bytes."""
    return Tokenizer.from_metadata(byte_level(("<end>", TokenKind.CONTROL), eos_token_id=256))


def written(value: Any, comma: str, colon: str) -> str:
    match value:
        case bool() | None | str():
            return json.dumps(value, ensure_ascii=False)
        case int() | Decimal():
            return numeral(value)
        case dict():
            members = (f"{json.dumps(k, ensure_ascii=False)}{colon}{written(v, comma, colon)}"
                       for k, v in value.items())  # fmt: skip
            return "{" + comma.join(members) + "}"
    return "[" + comma.join(written(each, comma, colon) for each in value) + "]"


def orders(value: Any) -> Iterator[Any]:
    """Yield the value with its members in every order."""
    if isinstance(value, dict):
        for keys in itertools.permutations(value):
            for values in itertools.product(*(list(orders(value[key])) for key in keys)):
                yield dict(zip(keys, values, strict=True))
    elif isinstance(value, list):
        yield from map(list, itertools.product(*(list(orders(each)) for each in value)))
    else:
        yield value


def takes(grammar: Any, tokenizer: Tokenizer, text: str) -> bool:
    """Return whether a constraint allows a text token by token, and its end."""
    constraint = grammar.start()
    for token in [*tokenizer.encode(text, add_special=False), 256]:
        if constraint.finished:
            return token == 256
        if not constraint.allows(token):
            return False
        constraint.accept(token)
    return True


def judged(tokenizer: Tokenizer, name: str, counts: Counter[str]) -> list[str]:
    """Return the failures of one file of the suite."""
    wrong: list[str] = []
    grammars = Grammars(tokenizer)
    for case in SUITE[f"{name}.json"]:
        try:
            grammar = grammars.constraint("json_schema", written(case["schema"], ",", ":"))
        except RequestError:
            counts["refused"] += 1
            continue
        counts["followed"] += 1
        for test in case["tests"]:
            if "only an annotation" in test["description"]:
                continue
            counts["instances"] += 1
            data = checked(test["data"])
            for comma, colon in ((",", ":"), (", ", ": ")):
                found = (takes(grammar, tokenizer, written(each, comma, colon))
                         for each in orders(data))  # fmt: skip
                if any(found) != test["valid"]:
                    if test["valid"] and name.rpartition("/")[2] in NARROW and "format" in name:
                        counts["narrower"] += 1
                        break
                    wrong.append(f"{case['description']}: {test['description']}")
    return wrong


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.every)
        for name in (path.removesuffix(".json") for path in SUITE)
    ],
)
def test_schemas_are_followed_exactly_or_refused(tokenizer, name):
    assert judged(tokenizer, name, Counter()) == []


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (
            {"anyOf": [{"const": [True]}, {"const": [1]}, {"enum": [{"a": False}, {"a": 0}]}]},
            ["[1]", "[true]", '{"a":0}', '{"a":false}'],
            ["[2]", "[false]", '{"a":1}'],
        ),
        # A key cannot be spelled in two ways, and so not be given twice.
        (
            {"properties": {"a": {"type": "null"}}, "type": "object"},
            ['{"a":null}', '{"b":1}', '{"a":null,"b":"\\u0061"}'],
            ['{"\\u0061":1}', '{"a":null,"a":null}', '{"b":1,"a":null}'],
        ),
        # A surrogate pair is one character, and half of one is none.
        (
            {"type": "string", "minLength": 2},
            ['"\U0001f600\U0001f600"', '"\\ud83d\\ude00\\ud83d\\ude00"', '"\\n\\u00e9"'],
            ['"\U0001f600"', '"\\ud83d\\ude00"', '"\\ud83d\\ud83d"'],
        ),
        ({"type": "array"}, ["[]", "[1, 2]", "[1,\n  2\n]"], ["[1,  2]", "[ ]", "[1,]"]),
        # Draft 7 has a list of schemas in `items`, and nothing beside $ref.
        (
            {"$schema": "http://json-schema.org/draft-07/schema#", "type": "array",
             "items": [{"type": "null"}], "additionalItems": False},
            ["[]", "[null]"],
            ["[1]", "[null,null]"],
        ),
        (
            {"$schema": "http://json-schema.org/draft-07/schema", "definitions": {"n": True},
             "allOf": [{"$ref": "#/definitions/n", "type": "null"}]},
            ["1", "null"],
            ["x"],
        ),
    ],
)  # fmt: skip
def test_schemas_that_the_suite_lacks(tokenizer, schema, good, bad):
    grammar = Grammars(tokenizer).constraint("json_schema", schema)
    assert [text for text in good if not takes(grammar, tokenizer, text)] == []
    assert [text for text in bad if takes(grammar, tokenizer, text)] == []


@pytest.mark.every
def test_most_schemas_are_followed(tokenizer):
    counts: Counter[str] = Counter()
    for path in SUITE:
        judged(tokenizer, path.removesuffix(".json"), counts)
    assert counts["followed"] >= 306
    assert counts["refused"] <= 132
    assert counts["instances"] > 1300
    assert counts["narrower"] <= 14
