"""POST /v1/messages, through Anthropic's own client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from serving import MODEL, Running

from zinc import LLM, SamplingParams

if TYPE_CHECKING:  # it takes two seconds, of which those who run other tests need none
    import anthropic

HELLO = [{"role": "user", "content": "Hello"}]
SUM = [{"role": "user", "content": "Tom has 3 apples and buys 4 more. How many apples has he?"}]
ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
WEATHER = {
    "name": "get_weather",
    "description": "Get the current weather in a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "Name of the city"}},
        "required": ["city"],
    },
}
THINKING = {"type": "enabled", "budget_tokens": 1024}


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[anthropic.Anthropic]:
    import anthropic

    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as found:
        yield found


def arguments(messages: Any, fields: dict[str, Any]) -> dict[str, Any]:
    # The sampler's fields are not in every version of the client's signature.
    extra = {"temperature": 0, **fields.pop("extra_body", {})}
    return {
        "model": MODEL, "max_tokens": 60, "messages": messages, "extra_body": extra, **fields
    }  # fmt: skip


def create(client: anthropic.Anthropic, messages: Any = HELLO, **fields: Any) -> Any:
    return client.messages.create(**arguments(messages, fields))


def n_input(usage: Any) -> int:
    """All tokens of the prompt: Anthropic counts those from the cache apart."""
    return usage.input_tokens + usage.cache_read_input_tokens


def test_an_answer_is_the_engines(client, llm: LLM):
    found = create(client)
    alone = llm.chat(HELLO, SamplingParams(temperature=0, max_tokens=60))
    assert (found.type, found.role, found.model) == ("message", "assistant", MODEL)
    assert [block.type for block in found.content] == ["text"]
    assert found.content[0].text == alone.text
    assert (found.stop_reason, found.stop_sequence) == ("end_turn", None)
    assert n_input(found.usage) == alone.timings.prompt_tokens
    assert found.usage.output_tokens == alone.timings.generated_tokens


def test_events_come_in_order(client):
    whole = create(client)
    events = list(create(client, stream=True))
    kinds = [event.type for event in events if event.type != "ping"]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    text = "".join(e.delta.text for e in events if e.type == "content_block_delta")
    assert text == whole.content[0].text
    assert n_input(events[0].message.usage) == n_input(whole.usage)
    assert n_input(events[-2].usage) == n_input(whole.usage)
    assert events[-2].delta.stop_reason == "end_turn"
    assert events[-2].usage.output_tokens == whole.usage.output_tokens


def test_the_clients_own_accumulator(client):
    with client.messages.stream(**arguments(HELLO, {})) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert final.content[0].text == text == create(client).content[0].text


def test_system_prompts(client, llm: LLM):
    messages = [{"role": "system", "content": "You are a pirate."}, *HELLO]
    alone = llm.chat(messages, SamplingParams(temperature=0, max_tokens=60)).text
    assert create(client, system="You are a pirate.").content[0].text == alone
    blocks = [{"type": "text", "text": "You are a pirate.", "cache_control": {"type": "ephemeral"}}]
    assert create(client, system=blocks).content[0].text == alone


def test_stop_sequences_and_length(client):
    whole = create(client).content[0].text
    word = whole.split()[3]
    found = create(client, stop_sequences=[word])
    assert found.content[0].text == whole[: whole.index(word)]
    assert (found.stop_reason, found.stop_sequence) == ("stop_sequence", word)
    found = create(client, max_tokens=3)
    assert (found.stop_reason, found.usage.output_tokens) == ("max_tokens", 3)


def test_thinking(client):
    found = create(client, SUM, thinking=THINKING, max_tokens=2000)
    assert [block.type for block in found.content] == ["thinking", "text"]
    assert found.content[0].thinking
    kinds, thinking = [], ""
    for event in create(client, SUM, thinking=THINKING, max_tokens=2000, stream=True):
        if event.type == "content_block_start":
            kinds.append((event.index, event.content_block.type))
        elif event.type == "content_block_delta" and event.delta.type == "thinking_delta":
            thinking += event.delta.thinking
    assert kinds == [(0, "thinking"), (1, "text")]
    assert thinking == found.content[0].thinking
    off = create(client, SUM, thinking={"type": "disabled"}, max_tokens=200)
    assert [block.type for block in off.content] == ["text"]
    # What was thought goes back with the conversation.
    messages = [*SUM, {"role": "assistant", "content": found.content}, *HELLO]
    assert create(client, messages, thinking=THINKING, max_tokens=1100).content


def test_a_budget_ends_the_thinking(client):
    free = create(client, SUM, thinking=THINKING, max_tokens=2000)
    budget = {"type": "enabled", "budget_tokens": 4}
    short = create(client, SUM, thinking=budget, max_tokens=200)
    assert [block.type for block in short.content] == ["thinking", "text"]
    assert len(short.content[0].thinking) < len(free.content[0].thinking)


def test_tools(client):
    found = create(client, ASK, tools=[WEATHER])
    assert found.stop_reason == "tool_use"
    (use,) = found.content
    assert (use.type, use.name, use.input) == ("tool_use", "get_weather", {"city": "Paris"})
    assert use.id
    with client.messages.stream(**arguments(ASK, {"tools": [WEATHER]})) as stream:
        final = stream.get_final_message()
    assert final.stop_reason == "tool_use"
    assert final.content[0].input == {"city": "Paris"}
    for content in ("21 degrees", [{"type": "text", "text": "21 degrees"}]):
        result = {"type": "tool_result", "tool_use_id": use.id, "content": content}
        messages = [
            *ASK,
            {"role": "assistant", "content": found.content},
            {"role": "user", "content": [result]},
        ]
        assert create(client, messages, tools=[WEATHER]).content[0].text
    none = create(client, ASK, tools=[WEATHER], tool_choice={"type": "none"})
    assert none.stop_reason == "end_turn"


def test_calls_can_be_demanded(client):
    for choice in ({"type": "any"}, {"type": "tool", "name": "get_weather"}):
        found = create(client, tools=[WEATHER], tool_choice=choice)
        assert found.stop_reason == "tool_use"
        assert {block.type for block in found.content} == {"tool_use"}
        assert set(found.content[0].input) == {"city"}


def test_output_by_a_schema(client):
    number = {"type": "integer", "minimum": 0, "maximum": 99}
    schema = {
        "type": "object",
        "properties": {"n": number},
        "required": ["n"],
        "additionalProperties": False,
    }
    config = {"format": {"type": "json_schema", "schema": schema}}
    found = create(client, extra_body={"output_config": config})
    assert set(json.loads(found.content[0].text)) == {"n"}


def test_counting_tokens(client):
    fields: dict[str, Any] = {"system": "You are a pirate.", "tools": [WEATHER]}
    counted = client.messages.count_tokens(model=MODEL, messages=ASK, **fields)
    assert counted.input_tokens == n_input(create(client, ASK, **fields).usage)


def test_an_assistant_message_is_continued(client):
    whole = create(client).content[0].text
    begun = whole[: whole.index(" ")]
    found = create(client, [*HELLO, {"role": "assistant", "content": begun}])
    assert found.content[0].text
    assert not found.content[0].text.startswith(begun)


def test_what_claude_code_sends_is_answered(server: Running):
    """The shape of its requests: beta fields beside those of the API, schemas with $schema."""
    once = {"cache_control": {"type": "ephemeral"}}
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", **WEATHER["input_schema"]}
    fields = {
        "model": MODEL,
        "max_tokens": 4,
        "temperature": 1,
        "stream": True,
        "metadata": {"user_id": "user"},
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "medium"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "system": [{"type": "text", "text": "You help.", **once}],
        "tools": [{**WEATHER, "input_schema": schema, **once}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello", **once}]}],
    }
    found = server.post("/v1/messages?beta=true", fields)
    assert found.status == 200, found.body
    assert found.events[-1]["type"] == "message_stop"


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "image"),
        ({"messages": [{"role": "king", "content": "x"}]}, "role"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool", "name": "none"}, "tools": [WEATHER]}, "tool_choice"),
        ({"extra_body": {"output_config": {"format": {"type": "xml"}}}}, "output_config.format"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search"),
        ({"thinking": {"type": "enabled"}}, "budget_tokens"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"extra_body": {"top_p": 3}}, "top_p"),
        ({"extra_body": {"no_such_field": 3}}, "no_such_field"),
        ({"extra_body": {"mcp_servers": [1]}}, "mcp_servers"),
        (
            {"extra_body": {"context_management": {"edits": [{"type": "clear_tool_uses_x"}]}}},
            "context_management",
        ),
    ],
)
def test_what_is_refused_names_its_field(client, fields, word):
    from anthropic import BadRequestError

    with pytest.raises(BadRequestError) as caught:
        create(client, **{"messages": HELLO, **fields})
    body = caught.value.body
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert word in body["error"]["message"]


def test_other_errors_have_anthropics_envelope(client, server: Running):
    from anthropic import NotFoundError

    with pytest.raises(NotFoundError) as caught:
        create(client, model="claude-none")
    assert caught.value.body["error"]["type"] == "not_found_error"
    assert server.post("/v1/messages", b"{").json["type"] == "error"
    assert server.get("/v1/messages").status == 405
