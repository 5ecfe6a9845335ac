"""Random schemas, regular expressions and grammars: valid ones, hostile ones, and mutations.

A case is a pair of kind and source, for `Grammars.constraint`. `case(seed, i)` always returns the
same case, so that a crash can be reproduced.
"""

# ruff: noqa: E501
from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

NUMBERS = [
    0, 1, -1, 2, 3, 7, 10, 12, 60, 100, 255, 1000, 86_400, 2**31, -(2**31), 2**32 - 1, 2**32,
    2**53 - 1, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64,
    10**18, 10**19, 10**40, 10**400, 0.1, 0.5, -0.5, 1.5, 0.01, 1e-7, 1e-10, 1e-300, 5e-324, 1e15,
    1e16, 1e22, 1e300, 1.7976931348623157e308, 3.14159, 123456789.123, 0.30000000000000004,
    float("inf"), float("-inf"), float("nan"),
]  # fmt: skip
COUNTS = [0, 1, 2, 3, 5, 10, 100, 999, 1000, 65_536, 10**6, 2**24, 2**31, 2**32, 2**63, 2**64]
TEXTS = [
    "",
    "a",
    "ab",
    "name",
    "x y",
    "größe",
    'a"b',
    "\\",
    "\n",
    "\u2028",
    "\U0001f600",
    "a" * 300,
]
PATTERNS = [
    "^a+$", "a|b", "^[a-z]{2,5}$", r"\d+", r"^\w+@\w+$", "^(a|b)*$", ".", "^.*$", "(^a|b$)", "[^\"]",
    r"\u0061", r"^\p{L}+$", r"[\x00-\x1f]", "^$", "$^", "a{0}", "^a{2,1}$", "(?=a)", r"\bword\b",
    "(a+)+$", "^(([a-z])+.)+[A-Z]([a-z])+$", r"\1(a)", "[", "(", "a**", "[z-a]", r"\cA", "[[:alpha:]]",
    "a{1000}", "(a{100}){100}", "(a{1000}){1000}", "a{99999999999}", "^[^a]*$", r"[\s\S]", "[]", "[^]",
    "(?i)a", "(?<n>a)", r"\p{Script=Greek}", "^" + "(" * 50 + "a" + ")" * 50 + "$", "x" * 1000,
]  # fmt: skip
FORMATS = ["date", "time", "date-time", "email", "uri", "uuid", "ipv4", "ipv6", "hostname", "iri",
           "duration", "json-pointer", "uri-reference", "", "nothing"]  # fmt: skip
KEYWORDS = [
    "type", "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    "multipleOf", "minLength", "maxLength", "pattern", "format", "items", "prefixItems",
    "additionalItems", "contains", "minContains", "maxContains", "minItems", "maxItems",
    "uniqueItems", "properties", "patternProperties", "additionalProperties", "propertyNames",
    "required", "minProperties", "maxProperties", "dependentRequired", "dependentSchemas",
    "dependencies", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "$ref", "$defs",
    "definitions", "$id", "$schema", "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef",
    "unevaluatedItems", "unevaluatedProperties", "x-guidance", "title", "nullable",
]  # fmt: skip
TYPES = ["null", "boolean", "integer", "number", "string", "array", "object"]
LARK = [
    'start: "a" | "b" start',
    'start: item ("," item)*\nitem: /[a-z]+/ | NUMBER\nNUMBER: /[0-9]{1,3}/',
    'start: x\nx[suffix="y"]: /.*/',
    'start: A B?\nA: "x"i+ & /.{3}/\nB: ~/q/ & /[a-z]/',
    'start: x{2,5}\nx: "(" x ")" | "1"\n%ignore / +/',
    'start: v\nv: %json {"type":"object","properties":{"a":{"type":"integer","minimum":-5}}}',
    '%llguidance {"no_forcing": true}\nstart: <[5]> | <[1-7]> "z"',
    "%import common.INT\nstart: INT",
    'start: perm::0x0\nperm::_: "a" perm::set_bit(0) %if bit_clear(0) | ""',
    "start: t\nt[capture, max_tokens=5, temperature=0.5]: /[^\\n]*/",
    'start: x\nx: %regex {"substring_words": "a b c d"}',
]
GBNF = [
    'root ::= "a" | "b" root',
    'root ::= item ("," item)*\nitem ::= [a-z]+ | num\nnum ::= [0-9]{1,3}',
    'root ::= [^"\\\\\\x7F\\x00-\\x1F]* "\\n" (root | "x")?',
    'root ::= ("é" | "\\u00e9" | [一-龯]+){2,}',
    'root ::= root root | "x"',
]


def case(seed: int, i: int) -> tuple[str, Any]:
    """Return case number `i` of the run with this seed."""
    rng = random.Random(f"{seed}/{i}")
    makers: list[Callable[[random.Random], tuple[str, Any]]] = [
        _sensible, _sensible, _sensible, _hostile, _hostile, _deep, _regex, _regex, _lark, _lark,
        _gbnf, _text,
    ]  # fmt: skip
    return rng.choice(makers)(rng)


def _sensible(rng: random.Random) -> tuple[str, Any]:
    return "json_schema", schema(rng)


def schema(rng: random.Random, depth: int = 0) -> Any:
    """Return a schema of valid keywords, some of which may not fit its type."""
    if depth and rng.random() < 0.06:
        return rng.choice([True, False, {}])
    kinds = TYPES[:5] if depth > 2 else TYPES
    found: dict[str, Any] = {}
    if rng.random() < 0.8:
        found["type"] = rng.choice(kinds) if rng.random() < 0.8 else rng.sample(kinds, 2)
    kind = found.get("type", rng.choice(kinds))
    kind = rng.choice(kind) if isinstance(kind, list) else kind
    small = NUMBERS[:34]
    if kind in ("integer", "number"):
        for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
            if rng.random() < 0.3:
                found[key] = rng.choice(small + NUMBERS[35:45]) if rng.random() < 0.5 else (
                    rng.randint(-50, 200) / rng.choice([1, 1, 2, 10])
                )  # fmt: skip
        if rng.random() < 0.15:
            found["multipleOf"] = rng.choice([1, 2, 3, 5, 7, 10, 60, 0.5, 0.01, 0.25, 1.5])
    elif kind == "string":
        if rng.random() < 0.4:
            found["minLength"] = rng.randint(0, 6)
        if rng.random() < 0.4:
            found["maxLength"] = rng.randint(0, 12)
        if rng.random() < 0.3:
            found["pattern"] = rng.choice(PATTERNS[:13])
        if rng.random() < 0.1:
            found["format"] = rng.choice(FORMATS)
    elif kind == "array":
        if rng.random() < 0.7:
            found["items"] = schema(rng, depth + 1)
        if rng.random() < 0.3:
            found["prefixItems"] = [schema(rng, depth + 1) for _ in range(rng.randint(1, 3))]
        if rng.random() < 0.5:
            found["minItems"] = rng.randint(0, 3)
        found["maxItems"] = rng.randint(0, 4)
    elif kind == "object":
        names = rng.sample(TEXTS[1:8], rng.randint(0, 4))
        found["properties"] = {name: schema(rng, depth + 1) for name in names}
        found["required"] = [name for name in names if rng.random() < 0.5]
        if rng.random() < 0.7:
            found["additionalProperties"] = rng.random() < 0.2 or schema(rng, depth + 1)
        if rng.random() < 0.15:
            found["patternProperties"] = {rng.choice(PATTERNS[:8]): schema(rng, depth + 1)}
        if rng.random() < 0.1:
            found["propertyNames"] = {"type": "string", "maxLength": rng.randint(1, 6)}
        if rng.random() < 0.1:
            found[rng.choice(["minProperties", "maxProperties"])] = rng.randint(0, 4)
        if rng.random() < 0.1 and names:
            found["dependentRequired"] = {rng.choice(names): [rng.choice(TEXTS[1:8])]}
    if rng.random() < 0.12:
        found["enum"] = [_value(rng, 2) for _ in range(rng.randint(1, 5))]
    if rng.random() < 0.05:
        found["const"] = _value(rng, 2)
    if depth < 2 and rng.random() < 0.2:
        key = rng.choice(["allOf", "anyOf", "oneOf"])
        found[key] = [schema(rng, depth + 1) for _ in range(rng.randint(1, 3))]
    if depth < 2 and rng.random() < 0.05:
        found["not"] = schema(rng, depth + 1)
    if depth == 0 and rng.random() < 0.15:
        found["$defs"] = {"d": schema(rng, 1)}
        found.setdefault("properties", {})["r"] = {"$ref": rng.choice(["#/$defs/d", "#"])}
    return found


def _value(rng: random.Random, depth: int) -> Any:
    kind = rng.randint(0, 6 if depth else 4)
    if kind < 2:
        return rng.choice(NUMBERS)
    if kind < 4:
        return rng.choice(TEXTS)
    if kind == 4:
        return rng.choice([None, True, False])
    if kind == 5:
        return [_value(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    return {rng.choice(TEXTS): _value(rng, depth - 1) for _ in range(rng.randint(0, 3))}


def _hostile(rng: random.Random) -> tuple[str, Any]:
    """Return a schema with random keywords and values: of the right type, extreme, or wrong."""
    return "json_schema", _keywords(rng, 3)


def _keywords(rng: random.Random, depth: int) -> Any:
    found: dict[str, Any] = {}
    for key in rng.sample(KEYWORDS, rng.randint(1, 5)):
        choice = rng.random()
        if choice < 0.1:
            found[key] = _value(rng, 1)
        elif key == "type":
            found[key] = rng.choice(TYPES)
        elif key in ("pattern",):
            found[key] = rng.choice(PATTERNS)
        elif key == "format":
            found[key] = rng.choice(FORMATS)
        elif key in ("$ref", "$dynamicRef", "$recursiveRef"):
            found[key] = rng.choice(
                ["#", "#/$defs/a", "#/properties/a", "#b", "http://x/y", "a:b:c"]
            )
        elif key in ("$id", "$schema", "$anchor", "$dynamicAnchor"):
            found[key] = rng.choice(
                ["b", "#b", "http://x/y", "urn:x", "http://json-schema.org/draft-07/schema#"]
            )
        elif key.endswith(("Length", "Items", "Contains")) and key[:3] in ("min", "max"):
            found[key] = rng.choice(COUNTS)
        elif key.endswith("imum") or key == "multipleOf":
            found[key] = rng.choice(NUMBERS)
        elif key in ("required",):
            found[key] = rng.sample(TEXTS, 2)
        elif key == "enum":
            found[key] = [_value(rng, 2) for _ in range(rng.choice([0, 1, 3, 300]))]
        elif depth and key in ("allOf", "anyOf", "oneOf", "prefixItems"):
            found[key] = [_keywords(rng, depth - 1) for _ in range(rng.randint(0, 4))]
        elif depth and key in ("properties", "patternProperties", "$defs", "definitions",
                               "dependentSchemas"):  # fmt: skip
            names = ["a", *rng.sample(PATTERNS, 2)]
            found[key] = {name: _keywords(rng, depth - 1) for name in names}
        elif depth:
            found[key] = _keywords(rng, depth - 1)
        else:
            found[key] = rng.choice([True, False, 1, "a", [], {}])
    return found


def _deep(rng: random.Random) -> tuple[str, Any]:
    """Return a schema with very many nested values, references, choices or names."""
    n = rng.choice([10, 50, 110, 130, 500, 2000])
    kind = rng.randint(0, 9)
    if kind == 0:
        key = rng.choice(["items", "not", "additionalProperties", "contains", "propertyNames"])
        return "json_schema", "{" + f'"{key}":{{' * n + "}" * n + "}"
    if kind == 1:
        key = rng.choice(["allOf", "anyOf", "oneOf", "prefixItems"])
        return "json_schema", f'{{"{key}":[' * n + "true" + "]}" * n
    if kind == 2:
        chain = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(n)}
        chain[f"d{n}"] = rng.choice([{"type": "null"}, {"$ref": "#/$defs/d0"}])
        return "json_schema", {"$ref": "#/$defs/d0", "$defs": chain}
    if kind == 3:
        chain = {f"d{i}": {"type": "object", "properties": {"n": {"$ref": f"#/$defs/d{i + 1}"}}}
                 for i in range(n)}  # fmt: skip
        chain[f"d{n}"] = {"type": "null"}
        return "json_schema", {"$ref": "#/$defs/d0", "$defs": chain}
    if kind == 4:
        names = {f"p{i}": {"type": rng.choice(TYPES[:5])} for i in range(n)}
        required = rng.choice([[], list(names)[::2], list(names)])
        return "json_schema", {"type": "object", "properties": names, "required": required}
    if kind == 5:
        values = rng.choice([list(range(n)), [f"v{i}" for i in range(n)], [[i] for i in range(n)]])
        return "json_schema", {"enum": values}
    if kind == 6:
        branch = {"anyOf": [{"$ref": "#/$defs/b"}, {"$ref": "#/$defs/b"}]}
        several = {"allOf": [{"anyOf": [{"minimum": i}, {"maximum": -i}]} for i in range(n % 40)]}
        return "json_schema", {"$defs": {"b": several}, **branch}
    if kind == 7:
        opening, closing = rng.choice(["()", "[]"])
        return "grammar", "start: " + opening * n + '"a"' + closing * n
    if kind == 8:
        rules = "\n".join(f'r{i}: "x" r{i + 1} | r{i + 1}' for i in range(n))
        name = rng.choice(["r", "R"])
        return "grammar", f'start: r0\n{rules}\nr{n}: "a"'.replace("r0", "R0").replace("r", name) \
            if name == "R" else f'start: r0\n{rules}\nr{n}: "a"'  # fmt: skip
    return "regex", "(" * n + "a" + rng.choice([")", ")*", ")?", "){2}", ")+"]) * n


def _regex(rng: random.Random) -> tuple[str, Any]:
    if rng.random() < 0.2:
        return "regex", _mutated(rng, rng.choice(PATTERNS))
    return "regex", _expression(rng, 4)


def _expression(rng: random.Random, depth: int) -> str:
    kind = rng.randint(0, 7 if depth else 3)
    if kind < 4:
        return rng.choice(
            ["a", "b", ".", "[a-z]", "[^a]", r"\d", r"\w", r"\pL", "é", r"\.", "x{2}", ""]
        )
    if kind == 4:
        return "".join(_expression(rng, depth - 1) for _ in range(rng.randint(1, 5)))
    if kind == 5:
        return "(" + "|".join(_expression(rng, depth - 1) for _ in range(rng.randint(1, 5))) + ")"
    quantifier = rng.choice(["*", "+", "?", "{3}", "{1,9}", "{0,100}", "{5,}", "{1000}",
                             f"{{{rng.choice(COUNTS)}}}", f"{{0,{rng.choice(COUNTS)}}}"])  # fmt: skip
    return f"({_expression(rng, depth - 1)}){quantifier}"


def _lark(rng: random.Random) -> tuple[str, Any]:
    source = rng.choice(LARK)
    if rng.random() < 0.2:
        source += f"\nzz: %json {json.dumps(_keywords(rng, 2))}"
        source = source.replace("start: ", "start: zz | ", 1)
    return "grammar", _mutated(rng, source)


def _gbnf(rng: random.Random) -> tuple[str, Any]:
    return "grammar", _mutated(rng, rng.choice(GBNF))


def _text(rng: random.Random) -> tuple[str, Any]:
    alphabet = "()[]{}|*+?\"'/\\:=<>%&~,.-^$ \n0123456789abcstarroot\u00e9\U0001f600"
    text = "".join(rng.choice(alphabet) for _ in range(rng.randint(0, 60)))
    return rng.choice(["json_schema", "regex", "grammar", "grammar"]), text


def _mutated(rng: random.Random, text: str) -> str:
    """Return a text with parts removed, repeated or exchanged, or with extreme numbers."""
    for _ in range(rng.choice([0, 1, 1, 2, 4])):
        at = rng.randint(0, len(text))
        to = min(len(text), at + rng.choice([1, 1, 3, 10]))
        piece = text[at:to]
        change = rng.randint(0, 4)
        if change == 0:
            text = text[:at] + text[to:]
        elif change == 1:
            text = text[:to] + piece * rng.choice([1, 2, 50, 500]) + text[to:]
        elif change == 2:
            text = text[:at] + rng.choice('()[]{}|*+?"/\\:<>%&~-^') + text[to:]
        elif change == 3:
            text = text[:at] + f"{{{rng.choice(COUNTS)}}}" + text[at:]
        else:
            text = text[:at] + str(rng.choice(COUNTS)) + text[to:]
    return text
