"""Grammars of demanded calls, for each format: what the parser of the format reads, they allow."""

from __future__ import annotations

import json
from typing import Any

import pytest
from serving import TIME, WEATHER, function

from zinc import LLM
from zinc.chat.parser import AnswerParser
from zinc.chat.tools import FORMATS
from zinc.engine.structured import Grammars
from zinc.server.errors import ApiError
from zinc.server.forced_calls import grammar

pytest.importorskip("llguidance")

BY_NAME = {format.name: format for format in FORMATS}
MANY = function("many", "Takes many", text="any text", other="more")
MANY["function"]["parameters"]["properties"] |= {
    "count": {"type": "integer"},
    "size": {"type": "string", "enum": ["small", "large"]},
}
CALLS = {
    "hermes": '<tool_call>\n{"name": "get_time", "arguments": {"city": "Rome"}}\n</tool_call>',
    "llama": '{"name": "get_time", "parameters": {"city": "Rome"}}',
    "qwen-tags": "<tool_call>\n<function=get_time>\n<parameter=city>\nRome\n</parameter>\n"
    "</function>\n</tool_call>",
}


def follows(llm: LLM, source: str, text: str) -> bool:
    """Whether a grammar allows a text, token by token, and may end there."""
    constraint = Grammars(llm.tokenizer, llm.spec.vocab).constraint("grammar", source)
    end = llm.tokenizer.eos_id
    assert end is not None
    for token in [*llm.tokenizer.encode(text, add_special=False), end]:
        words = constraint.mask()
        if constraint.finished:
            return token == end
        if not int(words[token // 32]) >> (token % 32) & 1:
            return False
        constraint.accept(token)
    return True


@pytest.mark.parametrize("name", sorted(CALLS))
def test_a_call_is_allowed_and_nothing_else(llm: LLM, name):
    source = grammar(BY_NAME[name], llm.tokenizer, [WEATHER, TIME], several=False)
    call = CALLS[name]
    assert follows(llm, source, call)
    for wrong in ("Hello", call[:-1], call.replace("get_time", "get_none"),
                  call.replace("city", "town"), f"{call}\n{call}", f"x{call}"):  # fmt: skip
        assert not follows(llm, source, wrong), wrong


@pytest.mark.parametrize("name", sorted(CALLS))
def test_the_parser_reads_what_the_grammar_allows(llm: LLM, name):
    parser = AnswerParser(BY_NAME[name], [WEATHER, TIME])
    events = parser.push(CALLS[name]) + parser.finish()
    arguments = "".join(getattr(e, "text", "") for e in events if type(e).__name__ != "Content")
    assert json.loads(arguments) == {"city": "Rome"}


@pytest.mark.parametrize("name", ["hermes", "qwen-tags"])
def test_several_calls(llm: LLM, name):
    source = grammar(BY_NAME[name], llm.tokenizer, [WEATHER, TIME], several=True)
    assert follows(llm, source, f"{CALLS[name]}\n{CALLS[name].replace('time', 'weather')}")


def test_values_in_tags(llm: LLM):
    MANY["function"]["parameters"]["required"] = ["text"]
    source = grammar(BY_NAME["qwen-tags"], llm.tokenizer, [MANY], several=False)

    def call(**values: Any) -> str:
        tags = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in values.items())
        return f"<tool_call>\n<function=many>\n{tags}</function>\n</tool_call>"

    assert follows(llm, source, call(text="a\n<b> & c < d"))
    assert follows(llm, source, call(text="a", count=5, size="small"))
    assert not follows(llm, source, call(count=5))
    assert not follows(llm, source, call(text="a", count="five"))
    assert not follows(llm, source, call(text="a", size="medium"))


def test_formats_without_a_grammar_refuse(llm: LLM):
    with pytest.raises(ApiError, match="cannot be forced"):
        grammar(BY_NAME["harmony"], llm.tokenizer, [WEATHER], several=False)
