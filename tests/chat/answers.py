"""Hand-written answers in every chat format, and functions that feed them to a parser."""

import re
from dataclasses import dataclass, field
from itertools import count

from zinc.chat.events import Answer, merged
from zinc.chat.formats import FORMATS
from zinc.chat.parser import AnswerParser

BY_NAME = {format.name: format for format in FORMATS}

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "metric": {"type": "boolean"},
                    "tags": {"type": "array", "items": {"type": "string"}},
                    "options": {"type": "object"},
                },
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "add",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
            },
        },
    },
    {"type": "function", "function": {"name": "now"}},
]


@dataclass
class Case:
    """The text of an answer, and its expected parts. calls: pairs of name and arguments."""

    format: str
    text: str
    content: str = ""
    reasoning: str = ""
    calls: list = field(default_factory=list)
    opened: str = ""


def pieces(text, controls):
    """Return the text split at control tokens, as a tokenizer splits it."""
    if not controls:
        return [text]
    pattern = "|".join(re.escape(marker) for marker in sorted(controls, key=len, reverse=True))
    return [piece for piece in re.split(f"({pattern})", text) if piece]


def parse(format, chunks, tools=TOOLS, opened="", controls=()):
    """Return the events of an answer in chunks; chunks in `controls` are control tokens.

    Ids of calls are counted, to be comparable.
    """
    parser = AnswerParser(BY_NAME[format], tools, opened, controls)
    ids = count()
    parser._output._new_id = lambda: f"id{next(ids)}"
    events = []
    for chunk in chunks:
        events += parser.mark(chunk) if chunk in controls else parser.push(chunk)
    return merged(events + parser.finish())


def answer(*args, **kwargs):
    return Answer.of(parse(*args, **kwargs))
