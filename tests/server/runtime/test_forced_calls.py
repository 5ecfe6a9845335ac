"""Grammars of forced calls, for each format: they allow what the format's parser reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import jsonschema
import pytest
from serving import TIME, WEATHER, Running, function
from tokenizer.small_vocabularies import byte_level

from zinc import LLM
from zinc.chat.events import Answer
from zinc.chat.formats import FORMATS
from zinc.chat.parser import AnswerParser
from zinc.engine.structured import Grammars
from zinc.server.errors import ApiError
from zinc.server.runtime.tool_calls.grammar import calls_or_json, forced_calls
from zinc.tokenizer import Tokenizer
from zinc.tokenizer.vocabulary import TokenKind

pytest.importorskip("llguidance")

BY_NAME = {format.name: format for format in FORMATS}
MANY = function("many", "Takes many", text="any text", other="more")
MANY["function"]["parameters"]["properties"] |= {
    "count": {"type": "integer"},
    "size": {"type": "string", "enum": ["small", "large"]},
}
MANY["function"]["parameters"]["required"] = ["text"]
BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, SEP, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
Q = '<|"|>'
# A call, and the text between two calls (None: only one call is possible).
CALLS: dict[str, tuple[str, str | None]] = {
    "hermes": (
        '<tool_call>\n{"name": "get_time", "arguments": {"city": "Rome"}}\n</tool_call>', "\n",
    ),
    "llama": ('{"name": "get_time", "parameters": {"city": "Rome"}}', None),
    "qwen-tags": (
        "<tool_call>\n<function=get_time>\n<parameter=city>\nRome\n</parameter>\n"
        "</function>\n</tool_call>", "\n",
    ),
    "seed": (
        "<seed:tool_call>\n<function=get_time>\n<parameter=city>Rome</parameter>\n"
        "</function>\n</seed:tool_call>", "\n",
    ),
    "minimax": (
        '<minimax:tool_call>\n<invoke name="get_time">\n<parameter name="city">Rome</parameter>\n'
        "</invoke>\n</minimax:tool_call>", None,
    ),
    "hy3": (
        "<tool_calls:opensource>\n<tool_call:opensource>get_time<tool_sep:opensource>\n"
        "<arg_key:opensource>city</arg_key:opensource>\n"
        "<arg_value:opensource>Rome</arg_value:opensource>\n"
        "</tool_call:opensource>\n</tool_calls:opensource>", None,
    ),
    "command": (
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_time", '
        '"parameters": {"city": "Rome"}}\n]<|END_ACTION|>', None,
    ),
    "command-r": (
        'Action:\n```json\n[\n    {\n        "tool_name": "get_time",\n'
        '        "parameters": {"city": "Rome"}\n    }\n]```', None,
    ),
    "minicpm": ('<function name="get_time"><param name="city">Rome</param></function>', ""),
    "lfm2": (
        '<|tool_call_start|>[{"name": "get_time", "arguments": {"city": "Rome"}}]'
        "<|tool_call_end|>", None,
    ),
    "granite": ('<|tool_call|>[{"name": "get_time", "arguments": {"city": "Rome"}}]', None),
    "glm": (
        "<tool_call>get_time\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n</tool_call>",
        "\n",
    ),
    "mistral": ('[TOOL_CALLS][{"name": "get_time", "arguments": {"city": "Rome"}}]', None),
    "deepseek": (
        f'{BEGIN}{CALL}function{SEP}get_time\n```json\n{{"city": "Rome"}}\n```{CALL_END}{END}',
        None,
    ),
    "deepseek-v3.1": (f'{BEGIN}{CALL}get_time{SEP}{{"city": "Rome"}}{CALL_END}{END}', None),
    "gemma3": ('{"name": "get_time", "parameters": {"city": "Rome"}}', None),
    "gemma4": (f"<|tool_call>call:get_time{{city:{Q}Rome{Q}}}<tool_call|>", ""),
    "harmony": (
        "<|channel|>commentary to=functions.get_time <|constrain|>json<|message|>"
        '{"city": "Rome"}<|call|>', None,
    ),
}  # fmt: skip
FORCED = sorted(CALLS)


@cache
def with_markers(name: str) -> Tokenizer:
    """Return a vocabulary of bytes in which the markers of a format are control tokens."""
    text = (
        "```",
        "Action:",
        "<function",
        "</function",
        "<parameter",
        "</parameter",
    )  # in all vocabularies
    markers = [m for m in BY_NAME[name].markers if not m.startswith(text)]
    extra = [("<end>", TokenKind.CONTROL), *((m, TokenKind.CONTROL) for m in markers)]
    return Tokenizer.from_metadata(byte_level(*extra, eos_token_id=256))


@pytest.fixture(params=["text", "control tokens"])
def tokenizer_of(request: pytest.FixtureRequest, llm: LLM) -> Callable[[str], Tokenizer]:
    """Return a tokenizer whose markers are text, and one whose markers are control tokens."""
    return with_markers if request.param == "control tokens" else lambda name: llm.tokenizer


@cache
def grammars_of(tokenizer: Tokenizer) -> Grammars:
    """Return the grammars of a vocabulary, which llguidance prepares once."""
    return Grammars(tokenizer, -(-tokenizer.n_vocab // 32) * 32)


def follows(tokenizer: Tokenizer, source: str, text: str) -> bool:
    """Return whether a grammar allows a text, token by token, and can end after it."""
    constraint = grammars_of(tokenizer).constraint("rules", source).start()
    end = tokenizer.eos_id
    assert end is not None
    for token in [*tokenizer.encode(text, add_special=False, parse_special=True), end]:
        words = constraint.mask()
        if constraint.finished:
            return token == end
        if not int(words[token // 32]) >> (token % 32) & 1:
            return False
        constraint.accept(token)
    return True


def calls_in(name: str, text: str, tools: list[Any]) -> list[tuple[str, Any]]:
    """Return names and arguments of the calls that the format's parser reads."""
    parser = AnswerParser(BY_NAME[name], tools)
    answer = Answer.of(parser.push(text) + parser.finish())
    assert answer.content == ""
    return [(call.name, json.loads(call.arguments)) for call in answer.calls]


def test_every_format_with_calls_can_be_forced():
    assert sorted(format.name for format in FORMATS if format.has_calls) == FORCED


@pytest.mark.parametrize("name", FORCED)
def test_a_call_is_allowed_and_nothing_else(tokenizer_of, name):
    tokenizer = tokenizer_of(name)
    source = forced_calls(BY_NAME[name], tokenizer, [WEATHER, TIME], several=False).source
    call, between = CALLS[name]
    if name == "mistral" and tokenizer.id_of("[ARGS]") in tokenizer.special_ids:
        call = '[TOOL_CALLS]get_time[ARGS]{"city": "Rome"}'
    assert follows(tokenizer, source, call)
    assert calls_in(name, call, [WEATHER, TIME]) == [("get_time", {"city": "Rome"})]
    for wrong in ("Hello", call[:-1], call.replace("get_time", "get_none"),
                  call.replace("city", "town"), f"{call}{between or ''}{call}",
                  f"x{call}"):  # fmt: skip
        assert not follows(tokenizer, source, wrong), wrong


SEVERAL = {
    "command-r": "Action:\n```json\n[\n" + ",\n".join(
        f'    {{\n        "tool_name": "{n}",\n        "parameters": {{"city": "Rome"}}\n    }}'
        for n in ("get_time", "get_weather")
    ) + "\n]```",
    "lfm2": '<|tool_call_start|>[{"name": "get_time", "arguments": {"city": "Rome"}}, '
    '{"name": "get_weather", "arguments": {"city": "Rome"}}]<|tool_call_end|>',
    "command": "<|START_ACTION|>[\n    " + ",\n    ".join(
        f'{{"tool_call_id": "{i}", "tool_name": "{n}", "parameters": {{"city": "Rome"}}}}'
        for i, n in enumerate(("get_time", "get_weather"))
    ) + "\n]<|END_ACTION|>",
    "hy3": "<tool_calls:opensource>\n" + "".join(
        f"<tool_call:opensource>{n}<tool_sep:opensource>\n"
        "<arg_key:opensource>city</arg_key:opensource>\n"
        "<arg_value:opensource>Rome</arg_value:opensource>\n</tool_call:opensource>\n"
        for n in ("get_time", "get_weather")
    ) + "</tool_calls:opensource>",
    "granite": '<|tool_call|>[{"name": "get_time", "arguments": {"city": "Rome"}}, '
    '{"name": "get_weather", "arguments": {"city": "Rome"}}]',
    "minimax": "<minimax:tool_call>\n" + "".join(
        f'<invoke name="{n}">\n<parameter name="city">Rome</parameter>\n</invoke>\n'
        for n in ("get_time", "get_weather")
    ) + "</minimax:tool_call>",
    "mistral": '[TOOL_CALLS][{"name": "get_time", "arguments": {"city": "Rome"}}, '
    '{"name": "get_weather", "arguments": {"city": "Rome"}}]',
    "deepseek": BEGIN + "\n".join(
        f'{CALL}function{SEP}{n}\n```json\n{{"city": "Rome"}}\n```{CALL_END}'
        for n in ("get_time", "get_weather")
    ) + END,
    "deepseek-v3.1": BEGIN + "".join(
        f'{CALL}{n}{SEP}{{"city": "Rome"}}{CALL_END}' for n in ("get_time", "get_weather")
    ) + END,
} | {
    name: between.join((call, call.replace("time", "weather")))
    for name, (call, between) in CALLS.items() if between is not None
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(SEVERAL))
def test_several_calls(llm: LLM, name):
    source = forced_calls(BY_NAME[name], llm.tokenizer, [WEATHER, TIME], several=True).source
    assert follows(llm.tokenizer, source, SEVERAL[name])
    assert follows(llm.tokenizer, source, CALLS[name][0])
    found = calls_in(name, SEVERAL[name], [WEATHER, TIME])
    assert found == [("get_time", {"city": "Rome"}), ("get_weather", {"city": "Rome"})]


def test_harmony_calls_after_reasoning(llm: LLM):
    source = forced_calls(BY_NAME["harmony"], llm.tokenizer, [TIME], several=False).source
    assert follows(llm.tokenizer, source, "<|start|>assistant" + CALLS["harmony"][0])


@pytest.mark.parametrize("name", ["qwen-tags", "seed", "minimax", "glm"])
def test_values_in_tags(tokenizer_of, name):
    tokenizer = tokenizer_of(name)
    source = forced_calls(BY_NAME[name], tokenizer, [MANY], several=False).source

    def call(**values: Any) -> str:
        if name == "glm":
            tags = "".join(
                f"<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>\n" for k, v in values.items()
            )
            return f"<tool_call>many\n{tags}</tool_call>"
        if name == "minimax":
            tags = "".join(f'<parameter name="{k}">{v}</parameter>\n' for k, v in values.items())
            many = f'<invoke name="many">\n{tags}</invoke>\n'
            return f"<minimax:tool_call>\n{many}</minimax:tool_call>"
        if name == "seed":
            tags = "".join(f"<parameter={k}>{v}</parameter>\n" for k, v in values.items())
            return f"<seed:tool_call>\n<function=many>\n{tags}</function>\n</seed:tool_call>"
        tags = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in values.items())
        return f"<tool_call>\n<function=many>\n{tags}</function>\n</tool_call>"

    for good in ({"text": "a\n<b> & c < d"}, {"text": "a", "count": 5, "size": "small"}):
        assert follows(tokenizer, source, call(**good))
        assert calls_in(name, call(**good), [MANY]) == [("many", good)]
    for bad in ({"count": 5}, {"text": "a", "count": "five"}, {"text": "a", "size": "medium"}):
        assert not follows(tokenizer, source, call(**bad))


def test_values_that_refer_to_definitions(llm: LLM):
    parameters = {
        "type": "object",
        "properties": {"at": {"$ref": "#/$defs/point"}},
        "required": ["at"],
        "$defs": {"point": {"type": "object", "properties": {"x": {"type": "integer"}},
                            "required": ["x"], "additionalProperties": False}},
    }  # fmt: skip
    tool = {"type": "function", "function": {"name": "go", "parameters": parameters}}
    tags = "<tool_call>\n<function=go>\n<parameter=at>\n{}\n</parameter>\n</function>\n</tool_call>"
    for name, text in (("qwen-tags", tags), ("gemma4", "<|tool_call>call:go{{at:{}}}<tool_call|>")):
        source = forced_calls(BY_NAME[name], llm.tokenizer, [tool], several=False).source
        good, bad = ("{x:3}", "{x:3.5}") if name == "gemma4" else ('{"x": 3}', '{"x": 3.5}')
        assert follows(llm.tokenizer, source, text.format(good))
        assert not follows(llm.tokenizer, source, text.format(bad))


LIST = {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3}
TREE = {"$ref": "#/$defs/tree"}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string"}, [f"{Q}a, {{b}}: 'c'{Q}", Q + Q], ["a", "5", f"{Q}a"]),
        ({"type": "string", "maxLength": 2}, [f"{Q}ab{Q}"], [f"{Q}abc{Q}"]),
        ({"enum": ["a", 5, None, [True]]}, [f"{Q}a{Q}", "5", "null", "[true]"], ["a", "6"]),
        ({"const": ""}, [Q + Q], [f"{Q}a{Q}"]),
        ({"type": "integer", "minimum": 3}, ["3", "40"], ["2", "3.5", "true"]),
        ({"type": ["boolean", "null"]}, ["true", "null"], ["1", "nul"]),
        (LIST, ["[1]", "[1,-2,3]"], ["[]", "[1,2,3,4]", "[1,]", f"[{Q}1{Q}]"]),
        ({"type": "array", "items": {"type": "string"}}, ["[]", f"[{Q}a{Q},{Q}b{Q}]"], ["[a]"]),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, ["1", f"{Q}x{Q}"], ["true"]),
        (
            {"type": "object", "required": ["b"], "additionalProperties": False,
             "properties": {"a": {"type": "integer"}, "b": {"type": "integer"},
                            "c d": {"type": "integer"}}},
            ["{b:1}", "{a:1,b:2}", "{b:1," + f"{Q}c d{Q}:2" + "}"],
            ["{}", "{a:1}", "{b:1,a:2}", "{b:1,}", "{,b:1}"],
        ),
        ({"type": "object"}, ["{}", "{a:1,b:{c:[" + f"{Q}x{Q}" + ",null]}}"], ["{a}", "{1:2}"]),
        (TREE, ["{v:1}", "{v:1,next:{v:2,next:{v:3}}}"], ["{next:{v:1}}", "{v:1,next:2}"]),
        (True, ["1", "{a:[true]}", Q + Q], ["a"]),
        ({"$ref": "elsewhere.json"}, ["1"], ["a"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["text", "control tokens"])
def test_values_in_gemma_notation(llm: LLM, kind, schema, good, bad):
    tokenizer = llm.tokenizer if kind == "text" else with_markers("gemma4")
    tree = {"type": "object", "required": ["v"], "additionalProperties": False,
            "properties": {"v": {"type": "integer"}, "next": TREE}}  # fmt: skip
    parameters = {
        "type": "object", "properties": {"value": schema}, "required": ["value"],
        "$defs": {"tree": tree},
    }  # fmt: skip
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    source = forced_calls(BY_NAME["gemma4"], tokenizer, [tool], several=False).source
    for value in good:
        text = f"<|tool_call>call:f{{value:{value}}}<tool_call|>"
        assert follows(tokenizer, source, text), value
        ((_, arguments),) = calls_in("gemma4", text, [tool])
        assert set(arguments) == {"value"}
    for value in bad:
        assert not follows(tokenizer, source, f"<|tool_call>call:f{{value:{value}}}<tool_call|>")


TEXTS: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({"minLength": 2, "maxLength": 3}, ["ab", "a\nb"], ["a", "abcd"]),
    ({"pattern": "b+"}, ["b", "abba", "x\nb"], ["a", ""]),
    ({"pattern": "^b+"}, ["b", "ba"], ["ab"]),
    ({"pattern": "b+$"}, ["b", "ab"], ["ba"]),
    ({"pattern": "^(ab|c)$"}, ["ab", "c"], ["abc", "cc"]),
    ({"pattern": "(a$|^b)"}, ["a", "xa", "bx"], ["ax", "xb"]),
    ({"pattern": "^a$|^[b^$|(]x$|z"}, ["a", "bx", "$x", "yz!"], ["aa", "bxx", "c"]),
    ({"pattern": r"^\d{2}\/\w[$]\^$"}, ["12/a$^"], ["1/a$^", "12/ä$^"]),
    ({"pattern": "^[a-z]*$", "maxLength": 3}, ["", "abc"], ["ABC", "abcd"]),
    ({"const": "one"}, ["one"], ["two", ""]),
    (
        {"format": "date"},
        ["2024-02-29", "1999-12-31"],
        ["2023-02-29", "2024-13-01", "2024-04-31", "24-1-1"],
    ),
    ({"format": "time"}, ["23:59:59Z", "00:00:00.25+01:30"], ["24:00:00Z", "10:00:00"]),
    ({"format": "date-time"}, ["2024-01-31T10:00:00Z"], ["2024-01-31", "2024-01-31 10:00"]),
    ({"format": "email"}, ["a.b+c@x-y.org"], ["a@", "a b@c.org", "a..b@c.org"]),
    ({"format": "hostname"}, ["a", "x-1.example"], ["-a", "a..b", "a_b"]),
    ({"format": "ipv4"}, ["0.10.255.1"], ["256.1.1.1", "1.1.1", "01.1.1.1"]),
    ({"format": "uuid"}, ["123e4567-E89b-12d3-a456-426614174000"], ["123e4567e89b12d3a456"]),
    ({"format": "uri"}, ["https://a.b/c?d=%20#e", "urn:x:y"], ["a.b/c", "http://a b", "x:%zz"]),
]


# The same schema becomes the same grammar in each format, with other markers.
IN_FORMATS = [
    pytest.param(name, *text, marks=pytest.mark.every if name != "glm" and i % 4 else ())
    for name in ("qwen-tags", "glm", "gemma4")
    for i, text in enumerate(TEXTS)
]


@pytest.mark.parametrize(("name", "schema", "good", "bad"), IN_FORMATS)
def test_unquoted_text_follows_its_schema(tokenizer_of, name, schema, good, bad):
    tokenizer = tokenizer_of(name)
    call, _ = CALLS[name]
    tool = function("get_time", "Tells the time", city="")
    tool["function"]["parameters"]["properties"]["city"] = {"type": "string", **schema}
    source = forced_calls(BY_NAME[name], tokenizer, [tool], several=False).source
    jsonschema.Draft202012Validator.check_schema(schema)
    # The package accepts times without a zone, which the standard does not.
    checker = jsonschema.FormatChecker() if schema.get("format") != "time" else None
    validator = jsonschema.Draft202012Validator(
        {"type": "string", **schema}, format_checker=checker
    )
    for text in good:
        assert follows(tokenizer, source, call.replace("Rome", text)), text
        assert validator.is_valid(text)
    for text in bad:
        assert not follows(tokenizer, source, call.replace("Rome", text)), text


CANNOT = [
    ("format", {"format": "iri"}),
    ("pattern", {"pattern": "^(?=.*[0-9]).*$"}),
    ("not", {"not": {"const": "Paris"}}),
    ("if", {"if": {"const": "a"}, "then": {"maxLength": 3}}),
]


@pytest.mark.parametrize("name", ["hermes", "qwen-tags", "gemma4"])
@pytest.mark.parametrize(("keyword", "schema"), CANNOT)
def test_unenforceable_keywords_are_dropped_unless_the_tool_is_strict(
    llm: LLM, name, keyword, schema
):
    tool = function("get_time", "Tells the time", city="")
    tool["function"]["parameters"]["properties"]["city"] = {"type": "string", **schema}
    found = forced_calls(BY_NAME[name], llm.tokenizer, [tool], several=False)
    assert found.dropped == {"get_time": (keyword,)}
    assert follows(llm.tokenizer, found.source, CALLS[name][0])
    tool["function"]["strict"] = True
    with pytest.raises(ApiError, match=f"cannot be followed: {keyword} ") as error:
        forced_calls(BY_NAME[name], llm.tokenizer, [tool], several=False)
    assert (error.value.status, error.value.param) == (400, "tools")


@pytest.mark.parametrize("name", ["qwen-tags", "glm", "gemma4"])
@pytest.mark.parametrize("pattern", ["a(^b)", "a$b"])
def test_a_pattern_that_nothing_matches_is_refused(llm: LLM, name, pattern):
    tool = function("get_time", "Tells the time", city="")
    tool["function"]["parameters"]["properties"]["city"] = {"type": "string", "pattern": pattern}
    with pytest.raises(ApiError, match="it allows no text"):
        forced_calls(BY_NAME[name], llm.tokenizer, [tool], several=False)


@pytest.mark.parametrize("name", ["qwen-tags", "glm"])
def test_nullable_text_is_unquoted(llm: LLM, name):
    """Python's `str | None` becomes such a schema."""
    tool = function("get_time", "Tells the time", city="")
    optional = {"anyOf": [{"type": "string", "maxLength": 9}, {"type": "null"}]}
    tool["function"]["parameters"]["properties"]["city"] = optional
    found = forced_calls(BY_NAME[name], llm.tokenizer, [tool], several=False)
    assert found.dropped == {}
    call, _ = CALLS[name]
    for text, value in (("Rome", "Rome"), ("12", "12"), ("null", None)):
        assert follows(llm.tokenizer, found.source, call.replace("Rome", text))
        assert calls_in(name, call.replace("Rome", text), [tool]) == [("get_time", {"city": value})]
    assert not follows(llm.tokenizer, found.source, call.replace("Rome", "Constantinople"))


@pytest.mark.parametrize("name", ["hermes", "qwen-tags"])
@pytest.mark.parametrize(
    ("schema", "why"),
    [({"type": "string", "minLength": "x"}, "minLength must be"), ({"type": 5}, "type must be")],
)
def test_a_schema_that_is_not_valid_is_refused(llm: LLM, name, schema, why):
    tool = function("get_time", "Tells the time", city="")
    tool["function"]["parameters"]["properties"]["city"] = schema
    with pytest.raises(ApiError, match=f"tool 'get_time' cannot be followed: {why}"):
        forced_calls(BY_NAME[name], llm.tokenizer, [tool], several=False)


def test_formats_without_calls_refuse(llm: LLM):
    for name in ("plain", "thinking-only"):
        with pytest.raises(ApiError, match="cannot be forced"):
            forced_calls(BY_NAME[name], llm.tokenizer, [WEATHER], several=False)


NUMBER = {"type": "object", "properties": {"n": {"enum": [5, 6]}}, "required": ["n"]}
FINAL = "<|channel|>final<|message|>"


@pytest.mark.parametrize("name", FORCED)
def test_an_answer_is_calls_or_json(tokenizer_of, name):
    tokenizer = tokenizer_of(name)
    tools = [WEATHER, TIME]
    source = calls_or_json(BY_NAME[name], tokenizer, tools, False, NUMBER, "response_format")
    call, _ = CALLS[name]
    if name == "mistral" and tokenizer.id_of("[ARGS]") in tokenizer.special_ids:
        call = '[TOOL_CALLS]get_time[ARGS]{"city": "Rome"}'
    assert follows(tokenizer, source, call)
    head = FINAL if name == "harmony" else ""
    for value in ('{"n": 5}', '{"n":6}'):
        assert follows(tokenizer, source, head + value)
        parser = AnswerParser(BY_NAME[name], tools)
        answer = Answer.of(parser.push(head + value) + parser.finish())
        assert (answer.content, answer.calls) == (value, [])
    for wrong in ("Hello", head + '{"n": 7}', head + "{}", call[:-1], head + f'{{"n": 5}}{call}'):
        assert not follows(tokenizer, source, wrong), wrong


@pytest.mark.parametrize("name", ["llama", "hermes"])
def test_schemas_of_calls_and_answers_keep_their_own_definitions(llm: LLM, name: str):
    tool = function("f", "Does")
    tool["function"]["parameters"] = {
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/kind"}},
        "required": ["x"],
        "additionalProperties": False,
        "$defs": {"kind": {"enum": ["small"]}},
    }
    answer = {
        "type": "object",
        "properties": {"name": {"$ref": "#/$defs/kind"}, "next": {"$ref": "#"}},
        "required": ["name"],
        "additionalProperties": False,
        "$defs": {"kind": {"enum": ["large"]}},
    }
    source = calls_or_json(BY_NAME[name], llm.tokenizer, [tool], False, answer, "response_format")
    begin, end = ("<tool_call>\n", "\n</tool_call>") if name == "hermes" else ("", "")
    member = "arguments" if name == "hermes" else "parameters"

    def call(kind: str) -> str:
        return f'{begin}{{"name": "f", "{member}": {{"x": "{kind}"}}}}{end}'

    assert follows(llm.tokenizer, source, call("small"))
    assert not follows(llm.tokenizer, source, call("large"))
    assert follows(llm.tokenizer, source, '{"name": "large"}')
    assert follows(llm.tokenizer, source, '{"name": "large", "next": {"name": "large"}}')
    assert not follows(llm.tokenizer, source, '{"name": "small"}')


@pytest.mark.parametrize("schema", ["{", "[]", 5, True])
def test_an_invalid_schema_is_refused(llm: LLM, schema: Any):
    with pytest.raises(ApiError, match="response_format") as caught:
        calls_or_json(BY_NAME["hermes"], llm.tokenizer, [WEATHER], False, schema, "response_format")
    assert caught.value.param == "response_format"


def forced_call(server: Running, schema: Any, **fields: Any) -> Any:
    tool = function("choose", "Chooses a city", city="")
    tool["function"]["parameters"]["properties"]["city"] = schema
    tool["function"]["parameters"]["additionalProperties"] = False
    messages = [{"role": "user", "content": "Choose a city."}]
    body = {"messages": messages, "tools": [tool], "tool_choice": "required", "seed": 1, **fields}
    return server.post("/v1/chat/completions", body)


NOT_ROME = {"enum": ["Rome", "Oslo", "Lima", "Bern"], "not": {"enum": ["Rome", "Lima"]}}


@pytest.mark.parametrize(
    "schema",
    [
        NOT_ROME,
        {"type": "string", "pattern": "^(?!Rome)[A-Z][a-z]{2,8}$"},
        {"type": "string", "format": "city", "maxLength": 20},
        {"enum": ["Oslo", "Bern"], "if": {"const": "Oslo"}, "then": {"minLength": 2}},
        {"type": "array", "items": {"enum": [1, 2, 3]}, "maxItems": 2, "uniqueItems": True},
    ],
)
def test_arguments_are_checked_if_the_grammar_cannot_enforce_the_schema(server: Running, schema):
    found = forced_call(server, schema)
    assert found.status == 200, found.json
    (call,) = found.json["choices"][0]["message"]["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    jsonschema.validate(arguments["city"], schema)


def test_checked_calls_are_streamed_when_complete(server: Running):
    found = forced_call(server, NOT_ROME, stream=True)
    chunks = [each for each in found.events if each != "[DONE]"]
    deltas = [each["choices"][0]["delta"] for each in chunks if each["choices"]]
    pieces = [call["function"] for d in deltas for call in d.get("tool_calls", ())]
    assert [piece["name"] for piece in pieces if "name" in piece] == ["choose"]
    arguments = json.loads("".join(piece.get("arguments", "") for piece in pieces))
    assert arguments["city"] in ("Oslo", "Bern")


def test_a_call_that_is_never_valid_is_an_error(server: Running):
    found = forced_call(server, {"enum": ["Rome"], "not": {"const": "Rome", "minLength": 1}})
    assert found.status == 500
    error = found.json["error"]
    assert error["code"] == "invalid_tool_arguments"
    assert "3 attempts" in error["message"]
    assert "['city'] does not follow not" in error["message"]


@pytest.mark.every
def test_checking_a_schema_has_a_time_limit(server: Running):
    found = forced_call(server, {"const": "a" * 40 + "b", "pattern": "^(?=(a+)+$)"})
    assert found.status == 500
    assert "could not be checked within" in found.json["error"]["message"]


def test_a_strict_tool_refuses_unenforceable_keywords(server: Running):
    tool = function("choose", "Chooses", city="")
    tool["function"]["parameters"]["properties"]["city"] = NOT_ROME
    tool["function"]["strict"] = True
    body = {"messages": [{"role": "user", "content": "Choose"}], "tools": [tool]}
    found = server.post("/v1/chat/completions", {**body, "tool_choice": "required"})
    assert (found.status, found.json["error"]["param"]) == (400, "tools")
    assert "not is supported with whole types alone" in found.json["error"]["message"]
