"""POST /v1/messages, through Anthropic's own client."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from effort import EVERY
from serving import MODEL, Running, running

from zinc import LLM, SamplingParams
from zinc.chat.events import Answer, Call
from zinc.server.apis.anthropic.blocks import content_blocks
from zinc.server.apis.anthropic.fields import MessagesFields
from zinc.server.apis.anthropic.request import to_request, tool_use_id
from zinc.server.apis.anthropic.tools import AnthropicTool, functions
from zinc.server.config import ModelSource

if TYPE_CHECKING:  # importing it takes two seconds
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
    # Not every version of the client has parameters for the sampling fields.
    extra = {"temperature": 0, **fields.pop("extra_body", {})}
    return {
        "model": MODEL, "max_tokens": 60, "messages": messages, "extra_body": extra, **fields
    }  # fmt: skip


def create(client: anthropic.Anthropic, messages: Any = HELLO, **fields: Any) -> Any:
    return client.messages.create(**arguments(messages, fields))


def n_input(usage: Any) -> int:
    """Return the number of prompt tokens; Anthropic counts cached ones separately."""
    return usage.input_tokens + usage.cache_read_input_tokens


def test_an_answer_equals_that_of_the_python_api(client, llm: LLM):
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
    # The reasoning is sent back with the conversation.
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
    assert re.fullmatch(r"toolu_[A-Za-z0-9]{24}", use.id)
    assert re.fullmatch(r"msg_[a-f0-9]{32}", found.id)
    with client.messages.stream(**arguments(ASK, {"tools": [WEATHER]})) as stream:
        final = stream.get_final_message()
    assert final.stop_reason == "tool_use"
    assert final.content[0].input == {"city": "Paris"}
    assert final.content[0].id.startswith("toolu_")
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


def test_a_call_that_is_cut_off_keeps_its_whole_members(client):
    number, point = {"type": "integer"}, {"type": "object", "required": ["x", "y"]}
    point["properties"] = {"x": number, "y": number}
    schema = {"type": "object", "properties": {"at": point, "city": {"enum": ["Paris"]}}}
    schema |= {"required": ["at", "city"], "additionalProperties": False}
    forced = {
        "tools": [{**WEATHER, "input_schema": schema}],
        "tool_choice": {"type": "tool", "name": "get_weather"},
    }
    whole = create(client, ASK, **forced, max_tokens=200)
    assert whole.stop_reason == "tool_use"
    found = []
    for limit in range(4, whole.usage.output_tokens, 1 if EVERY else 2):
        cut = create(client, ASK, **forced, max_tokens=limit)
        with client.messages.stream(**arguments(ASK, {**forced, "max_tokens": limit})) as stream:
            final = stream.get_final_message()
        assert cut.stop_reason == final.stop_reason == "max_tokens"
        assert [each.type for each in cut.content] == [each.type for each in final.content]
        if cut.content[0].type == "tool_use":
            assert cut.content[0].input == final.content[0].input
            found.append(cut.content[0].input)
    assert {} in found
    assert {"at": whole.content[0].input["at"]} in found


@pytest.mark.parametrize(
    "text", ["", "no JSON", "[1, 2", '"text', '{"a": NaN', "{" + "[" * 100_000]
)
def test_arguments_that_are_no_object_are_empty(text: str):
    call = Call("call_1", "f", text)
    assert content_blocks(Answer(calls=[call]))[0]["input"] == {}


BASH = {"type": "bash_20250124", "name": "bash"}
EDITOR = {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"}
OLD_EDITOR = {"type": "text_editor_20250124", "name": "str_replace_editor"}
MEMORY = {"type": "memory_20250818", "name": "memory"}
COMPUTER = {
    "type": "computer_20251124", "name": "computer", "display_width_px": 1024,
    "display_height_px": 768, "enable_zoom": True,
}  # fmt: skip


def test_client_tools_are_shown_with_their_documented_input():
    tools = [AnthropicTool(**t) for t in (BASH, EDITOR, OLD_EDITOR, MEMORY, COMPUTER)]
    shown = [tool["function"] for tool in functions(tools) or []]
    bash, editor, old, memory, computer = ({**f["parameters"]["properties"]} for f in shown)
    assert [f["name"] for f in shown] == [t.name for t in tools]
    assert set(bash) == {"command", "restart"}
    texts = {"path", "file_text", "old_str", "new_str", "insert_line", "view_range"}
    assert set(editor) == {"command", "insert_text"} | texts
    assert editor["command"]["enum"] == ["view", "create", "str_replace", "insert"]
    assert set(old) == {"command"} | texts
    assert "undo_edit" in old["command"]["enum"]
    assert set(memory) == {"command", "insert_text", "old_path", "new_path"} | texts
    assert {"delete", "rename"} <= set(memory["command"]["enum"])
    assert {"screenshot", "scroll", "zoom"} <= set(computer["action"]["enum"])
    assert {"coordinate", "text", "duration", "region"} <= set(computer)
    assert "1024 x 768" in shown[4]["description"]
    for function in shown:
        assert function["description"]


def test_the_memory_tool_has_the_members_of_the_clients_commands():
    from anthropic.types import beta

    kinds = ("View", "Create", "StrReplace", "Insert", "Delete", "Rename")
    commands = [getattr(beta, f"BetaMemoryTool20250818{kind}Command") for kind in kinds]
    (memory,) = functions([AnthropicTool(**MEMORY)]) or []
    properties = memory["function"]["parameters"]["properties"]
    assert set(properties) == {name for each in commands for name in each.model_fields}
    names = [each.model_fields["command"].annotation.__args__[0] for each in commands]
    assert properties["command"]["enum"] == names


@pytest.mark.parametrize("tool", [BASH, EDITOR, OLD_EDITOR, MEMORY, COMPUTER])
def test_client_tools_are_called(client, tool: dict[str, Any]):
    choice = {"type": "tool", "name": tool["name"]}
    found = create(client, tools=[tool], tool_choice=choice, max_tokens=300)
    (use,) = found.content
    assert (use.type, use.name) == ("tool_use", tool["name"])
    known = functions([AnthropicTool(**tool)]) or []
    assert set(use.input) <= set(known[0]["function"]["parameters"]["properties"])
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "done"}
    messages = [
        *HELLO,
        {"role": "assistant", "content": found.content},
        {"role": "user", "content": [result]},
    ]
    assert create(client, messages, tools=[tool]).content


def test_tools_of_hosted_servers_are_ignored(client):
    others = [
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
        {"type": "web_fetch_20250910", "name": "web_fetch"},
        {"type": "code_execution_20250825", "name": "code_execution"},
        {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"},
    ]
    found = create(client, ASK, tools=[*others, WEATHER])
    assert n_input(found.usage) == n_input(create(client, ASK, tools=[WEATHER]).usage)
    assert found.content[0].name == "get_weather"
    assert create(client, tools=others).content[0].text == create(client).content[0].text


def test_ids_of_calls_reach_the_template_as_the_model_gave_them(server: Running):
    """Some formats have ids that the template shows to the model again."""
    use = {"type": "tool_use", "id": "toolu_abc123XYZ", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_abc123XYZ", "content": "x"}
    fields = MessagesFields(
        max_tokens=1,
        messages=[
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result]},
        ],
    )
    _, call, answer = to_request(fields, fields).messages
    assert call["tool_calls"][0]["id"] == answer["tool_call_id"] == "abc123XYZ"
    assert tool_use_id("abc123XYZ") == "toolu_abc123XYZ"


def test_an_output_format_and_tools_together(client):
    schema = {"type": "object", "properties": {"n": {"enum": [5, 6]}}, "required": ["n"],
              "additionalProperties": False}  # fmt: skip
    config = {"output_config": {"format": {"type": "json_schema", "schema": schema}}}
    found = create(client, ASK, tools=[WEATHER], extra_body=config)
    assert found.content[0].input == {"city": "Paris"}
    found = create(client, tools=[WEATHER], extra_body=config)
    assert json.loads(found.content[0].text)["n"] in (5, 6)


def test_models_in_anthropics_form(client, server: Running, llm: LLM):
    page = client.models.list()
    (found,) = page.data
    assert (found.type, found.id, found.display_name) == ("model", MODEL, MODEL)
    assert found.created_at.year >= 2024
    assert found.max_input_tokens == llm.context
    assert (page.first_id, page.last_id, page.has_more) == (MODEL, MODEL, False)
    assert client.models.retrieve(MODEL).id == MODEL
    assert [model.id for model in client.models.list(limit=1)] == [MODEL]
    plain = server.get("/v1/models").json
    assert (plain["object"], plain["data"][0]["object"]) == ("list", "model")


def test_pages_of_models():
    import anthropic

    names = [f"model-{i}" for i in range(5)]
    sources = tuple(ModelSource(name, None) for name in names)
    with running(models=sources) as server, anthropic.Anthropic(
        base_url=server.url, api_key="none", max_retries=0
    ) as client:  # fmt: skip
        assert [model.id for model in client.models.list(limit=2)] == names
        page = client.models.list(limit=2, before_id="model-3")
        assert ([m.id for m in page.data], page.has_more) == (["model-1", "model-2"], True)
        page = client.models.list(limit=3, after_id="model-2")
        assert ([m.id for m in page.data], page.has_more) == (["model-3", "model-4"], False)
        for query in ({"limit": 0}, {"limit": 5000}, {"after_id": "none"}):
            with pytest.raises(anthropic.BadRequestError) as caught:
                client.models.list(**query)
            assert caught.value.body["error"]["type"] == "invalid_request_error"


def test_a_missing_key_in_anthropics_envelope():
    import anthropic

    with running(api_keys=("secret",)) as server, anthropic.Anthropic(
        base_url=server.url, api_key="wrong", max_retries=0
    ) as client:  # fmt: skip
        with pytest.raises(anthropic.AuthenticationError) as caught:
            client.models.list()
        assert caught.value.body["error"]["type"] == "authentication_error"


def test_calls_can_be_forced(client):
    for choice in ({"type": "any"}, {"type": "tool", "name": "get_weather"}):
        found = create(client, tools=[WEATHER], tool_choice=choice)
        assert found.stop_reason == "tool_use"
        assert {block.type for block in found.content} == {"tool_use"}
        assert set(found.content[0].input) == {"city"}


def test_output_follows_a_schema(client):
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


def test_requests_of_claude_code_are_answered(server: Running):
    """They contain beta fields and schemas with $schema."""
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
        ({"tools": [{"type": "computer_toolset_20260801"}]}, "computer_toolset"),
        ({"tools": [{"type": "bash", "name": "bash"}]}, "tools[0]"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        (
            {
                "tools": [{"type": "web_search_20250305", "name": "web_search"}],
                "tool_choice": {"type": "any"},
            },
            "tool_choice",
        ),
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
def test_errors_name_the_field(client, fields, word):
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
        client.models.retrieve("claude-none")
    assert caught.value.body["error"]["type"] == "not_found_error"
    assert server.post("/v1/messages", b"{").json["type"] == "error"
    assert server.get("/v1/messages").status == 405
