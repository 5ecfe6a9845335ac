"""Parsers with arbitrary text: no exception, no lost text, and bounded work."""

import json
import re

import pytest
from answers import BY_NAME, TOOLS, answer, parse
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from zinc.chat.events import CallArguments, CallEnd, CallStart, Content, Reasoning
from zinc.chat.parser import AnswerParser

SYNTAX = [
    *"{}[]()<>:;,'\"\\=`.-+0e \n\t",
    *(
        '"name"',
        '"arguments"',
        '"parameters"',
        '"type"',
        "null",
        "true",
        "None",
        "call:",
        "\\u00e9",
    ),
    *(
        "call:",
        "now",
        "add",
        "get_weather",
        "city",
        "days",
        "a=",
        "b",
        "print(",
        ".call(",
        "```json\n",
    ),
    *("assistant", "analysis", "commentary", "final", " to=functions.now", "thought\n"),
    *('{"name": "now", "arguments": {}}', '{"name": "add", "parameters": {"a": ', "\ud83d", "é🌧"),
]
WORD = re.compile(r"w\d{4}")


@st.composite
def broken_answers(draw):
    """Generate pieces of a format in random order, with numbered words between them."""
    format = draw(st.sampled_from(sorted(BY_NAME)))
    markers = BY_NAME[format].markers
    parts = draw(st.lists(st.sampled_from([*markers, *markers, *SYNTAX, "word", "word"])))
    return format, [f"w{i:04}" if part == "word" else part for i, part in enumerate(parts)]


def shown(events):
    """Return all visible text of an answer."""
    texts = []
    for event in events:
        match event:
            case Content(text) | Reasoning(text) | CallEnd(source=text):
                texts.append(text)
    return "".join(texts)


def is_subsequence(text, whole):
    rest = iter(whole)
    return all(char in rest for char in text)


@given(broken_answers(), st.booleans(), st.data())
@settings(max_examples=examples(1500), deadline=None)
def test_nothing_is_lost_or_invented(broken, with_tools, data):
    format, parts = broken
    markers = BY_NAME[format].markers
    controls = set(data.draw(st.sets(st.sampled_from(markers)))) if markers else set()
    opened = data.draw(st.sampled_from(["", BY_NAME[format].opened("<think>")]))
    events = parse(format, parts, TOOLS if with_tools else None, opened, controls)
    text = shown(events)
    whole = "".join(parts)
    assert WORD.findall(text) == WORD.findall(whole)
    assert is_subsequence(text, whole)


@given(broken_answers())
@settings(max_examples=examples(500), deadline=None)
def test_calls_are_well_formed(broken):
    format, parts = broken
    index, is_open = -1, False
    for event in parse(format, parts):
        match event:
            case CallStart():
                index += 1
                assert not is_open
                assert event.index == index
                assert event.name
                is_open, text = True, ""
            case CallArguments():
                assert is_open
                assert event.index == index
                text += event.text
            case CallEnd():
                assert is_open
                assert event.index == index
                assert event.source
                is_open = False
                if event.complete:
                    assert isinstance(json.loads(text), dict)
            case Content() | Reasoning():
                assert not is_open
                assert event.text
    assert not is_open


@given(broken_answers(), st.data())
@settings(max_examples=examples(500), deadline=None)
def test_any_split_of_anything(broken, data):
    format, parts = broken
    text = "".join(parts)
    at = data.draw(st.integers(0, len(text)))
    assert parse(format, [text[:at], text[at:]]) == parse(format, [text])


@given(st.sampled_from(sorted(BY_NAME)), st.text())
@settings(max_examples=examples(300), deadline=None)
def test_any_text(format, text):
    result = answer(format, [text], tools=None)
    assert result.content == text  # random text contains no whole marker
    assert not result.reasoning


LONG = examples(48_000)


UNITS = (
    *("[", "{", '{"a":', "(", "<think>", "```tool_code\n"),
    *("\n", "print(", '{"arguments": ', "<", "\\"),
)


@pytest.mark.alike(14)
@pytest.mark.parametrize(
    ("format", "unit"),
    [
        pytest.param(format, unit, marks=pytest.mark.every if (i + j) % 2 else ())
        for i, format in enumerate(sorted(BY_NAME))
        for j, unit in enumerate(UNITS)
    ],
)
def test_long_and_deep(format, unit):
    for before in ("", *BY_NAME[format].calls, *BY_NAME[format].channels):
        text = before + unit * (LONG // len(unit))
        assert is_subsequence(shown(parse(format, [text])), text)


def test_deep_arguments():
    for format, before in (
        ("hermes", '<tool_call>{"name": "now", "arguments": {"a": '),
        ("gemma4", "<|tool_call>call:now{a:"),
        ("gemma3", "[get_weather(tags="),
    ):
        (call,) = answer(format, [before + "[" * 50_000]).calls
        assert not call.complete
    for n, complete in ((500, True), (600, False)):
        nested = '{"a": ' + "[" * n + "]" * n + "}"
        (call,) = answer("hermes", [f'<tool_call>{{"name": "now", "arguments": {nested}']).calls
        assert call.complete == complete
    values = tags = "[" * 5000
    text = f"<tool_call><function=now><parameter=a>{values}</parameter></function></tool_call>"
    (call,) = answer("qwen-tags", [text]).calls
    assert json.loads(call.arguments) == {"a": tags}


@pytest.mark.parametrize(
    ("format", "unit"),
    [
        ("hermes", '<tool_call>{"arguments": {"a": "'),
        ("hermes", '<tool_call>{"name": "now", "k": ['),
        ("qwen-tags", "<function=now "),
        ("glm", "<tool_call>now <arg_key"),
        ("harmony", "<|start|>assistant "),
        ("deepseek", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>"),
        ("mistral", "[TOOL_CALLS]now "),
        ("gemma3", "```tool_code print("),
    ],
)
def test_work_grows_with_the_length_only(format, unit):
    """Failed attempts are read again; the number of steps per character must be bounded."""
    parser = AnswerParser(BY_NAME[format], TOOLS)
    reader, n_steps = parser._reader, 0
    rewind = reader.rewind

    def counted(position=0):
        nonlocal n_steps
        n_steps += reader.position - position
        rewind(position)

    reader.rewind = counted
    text = unit * (40_000 // len(unit))
    parser.push(text)
    parser.finish()
    assert n_steps < 50 * len(text)
