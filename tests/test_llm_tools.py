"""Tools in the Python API: what the model reads, and the calls in answers."""

from __future__ import annotations

import json
import logging

import pytest

from zinc import LLM
from zinc.core.errors import RequestError

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
QUESTION = [{"role": "user", "content": "What is the weather in Oslo?"}]
# Neither template has a place for tools or calls.
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
GEMMA = (
    "{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content }}<end_of_turn>\n{% endfor %}"
    "<start_of_turn>model\n"
)
CALL = {"name": "get_weather", "arguments": {"city": "Oslo"}}
OSLO = {"name": "get_weather", "arguments": '{"city": "Oslo"}'}


@pytest.fixture(scope="module")
def llm():
    with LLM(backend="cpu", threads=2) as model:
        yield model


def text_of(llm: LLM, *arguments, **named) -> str:
    return llm.tokenizer.decode(llm.render(*arguments, **named), skip_special=False)


def test_calls_are_parsed_and_go_on_in_the_next_request(llm):
    answer = llm.chat(QUESTION, tools=[WEATHER], temperature=0)
    (call,) = answer.tool_calls
    assert (call["type"], call["function"]) == ("function", OSLO)
    assert answer.message == {"role": "assistant", "content": None, "tool_calls": [call]}
    assert "<tool_call>" in answer.text
    result = {"role": "tool", "tool_call_id": call["id"], "content": "rain"}
    text = text_of(llm, [*QUESTION, answer.message, result], tools=[WEATHER])
    assert answer.text in text
    assert "<tool_response>\nrain\n</tool_response>" in text
    *_, last = llm.stream(QUESTION, tools=[WEATHER], temperature=0)
    assert last.message["tool_calls"][0]["function"] == OSLO


def test_an_answer_without_tools_is_a_message_with_its_reasoning_apart(llm):
    sum = [{"role": "user", "content": "What is 125 + 317?"}]
    answer = llm.chat(sum, enable_thinking=True, temperature=0, max_tokens=200)
    reasoning, content = answer.text.removeprefix("<think>\n").split("\n</think>\n\n")
    assert answer.message == {
        "role": "assistant",
        "content": content,
        "reasoning_content": reasoning,
    }
    assert reasoning
    assert answer.tool_calls == []
    assert llm.generate("Once", max_tokens=1).message is None
    chunks = list(llm.stream(QUESTION, temperature=0, max_tokens=4))
    assert [chunk.message for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].message["content"] == "".join(chunk.text for chunk in chunks)
    stopped = llm.chat(QUESTION, temperature=0, stop=(" a",))
    assert stopped.message["content"] == stopped.text


def test_a_call_that_the_token_limit_cuts_off_is_in_the_answer(llm):
    answer = llm.chat(QUESTION, tools=[WEATHER], temperature=0, max_tokens=16)
    assert answer.finish_reason == "length"
    assert answer.tool_calls[0]["function"]["name"] == "get_weather"
    assert OSLO["arguments"].startswith(answer.tool_calls[0]["function"]["arguments"])


def test_tools_are_described_if_the_template_has_no_place_for_them(caplog):
    with (
        caplog.at_level(logging.WARNING, "zinc"),
        LLM(backend="cpu", threads=2, chat_template=CHATML) as llm,
    ):
        plain = text_of(llm, QUESTION)
        assert "tools" not in caplog.text
        text = text_of(llm, QUESTION, tools=[WEATHER])
        assert json.dumps(WEATHER["function"]) in text
        assert text.endswith(plain)
        called = {"role": "assistant", "content": None, "tool_calls": [{"function": OSLO}]}
        rest = [*QUESTION, called, {"role": "tool", "content": "rain"}]
        for conversation in (text_of(llm, rest, tools=[WEATHER]), text_of(llm, rest)):
            assert "<tool_response>\nrain\n</tool_response>" in conversation
            assert f"<tool_call>\n{json.dumps(CALL)}\n</tool_call>" in conversation
        data = [*QUESTION, {"role": "tool", "content": {"celsius": 5}}]
        with pytest.raises(RequestError, match=r"messages\[1\].content"):
            llm.render(data, tools=[WEATHER])
    assert caplog.text.count("the chat template has no place for tools, so the system prompt") == 1
    assert "`chat_template=` sets another one" in caplog.text


def test_calls_are_parsed_if_the_template_has_no_place_for_tools():
    with LLM(backend="cpu", threads=2, chat_template=GEMMA) as llm:
        # The constraint stands for a larger model, which follows the description.
        call = llm.constraint("regex", r"```tool_code\nget_weather\(city='Oslo'\)\n```")
        answer = llm.chat(QUESTION, tools=[WEATHER], constraint=call, temperature=0)
        assert [each["function"] for each in answer.tool_calls] == [OSLO]
        assert answer.message["content"] is None
        assert llm.chat(QUESTION, constraint=call, temperature=0).tool_calls == []
