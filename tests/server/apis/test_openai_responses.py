"""/v1/responses, through OpenAI's own client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import openai
import pytest
from serving import LOAD, MODEL, WEATHER, Running, running

from zinc import LLM, SamplingParams
from zinc.server.apis.shared.chat.prompt import truncations

SHORT = 1024

SUM = "Tom has 3 apples and buys 4 more. How many apples has he?"
ASK = "What is the weather in Paris?"
TOOL = {"type": "function", **WEATHER["function"]}
CALL = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "call_1"}
TEXT = {"type": "input_text", "text": "What is this?"}
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,"}


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as found:
        yield found


def create(client: openai.OpenAI, input: Any = "Hello", **fields: Any) -> Any:
    fields = {"model": MODEL, "temperature": 0, "max_output_tokens": 150, **fields}
    return client.responses.create(input=input, **fields)


def test_text(client, llm: LLM):
    found = create(client)
    alone = llm.chat([{"role": "user", "content": "Hello"}], SamplingParams(temperature=0))
    assert found.output_text == alone.text
    assert (found.object, found.status, found.model) == ("response", "completed", MODEL)
    (message,) = found.output
    assert (message.type, message.role, message.status) == ("message", "assistant", "completed")
    assert found.usage.input_tokens == alone.timings.prompt_tokens
    assert found.usage.output_tokens == alone.timings.generated_tokens
    assert found.incomplete_details is None


def test_events(client):
    whole = create(client)
    events = list(create(client, stream=True))
    assert [e.sequence_number for e in events] == list(range(len(events)))
    kinds = [e.type for e in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert text == whole.output_text == events[-1].response.output_text
    assert events[0].response.status == "in_progress"
    assert events[0].response.output == []
    assert events[2].item.content == []
    ids = {e.item_id for e in events if hasattr(e, "item_id")}
    assert ids == {events[-1].response.output[0].id}


def test_the_clients_own_accumulator(client):
    with client.responses.stream(
        model=MODEL, input="Hello", temperature=0, max_output_tokens=50
    ) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text == create(client).output_text


def test_instructions_and_roles(client, llm: LLM):
    messages = [
        {"role": "system", "content": "You are a pirate."},
        {"role": "user", "content": "Hello"},
    ]
    alone = llm.chat(messages, SamplingParams(temperature=0)).text
    assert create(client, instructions="You are a pirate.").output_text == alone
    items = [
        {"role": "developer", "content": "You are a pirate."},
        {"role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
    ]
    assert create(client, items).output_text == alone


def test_a_stored_response_is_continued(client):
    first = create(client, "My name is Anna.")
    second = create(client, "What is my name?", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    by_hand = [
        {"role": "user", "content": "My name is Anna."},
        *[item.model_dump() for item in first.output],
        {"role": "user", "content": "What is my name?"},
    ]
    whole = create(client, by_hand)
    assert second.output_text == whole.output_text
    assert second.usage.input_tokens == whole.usage.input_tokens
    assert client.responses.retrieve(first.id).output_text == first.output_text
    items = client.responses.input_items.list(first.id).data
    assert [item.content for item in items] == ["My name is Anna."]
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError) as caught:
        create(client, previous_response_id=first.id)
    assert caught.value.body["param"] == "previous_response_id"
    forgotten = create(client, store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(forgotten.id)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"max_output_tokens": 3},
        {"input": SUM, "reasoning": {"effort": "high"}},
        {"input": ASK, "tools": [TOOL]},
        {"top_logprobs": 2},
    ],
    ids=["text", "cut", "reasoning", "call", "logprobs"],
)
def test_a_stored_response_is_streamed_again(client, fields):
    first = list(create(client, stream=True, **fields))
    stored = first[-1].response
    again = list(client.responses.retrieve(stored.id, stream=True))
    assert [e.sequence_number for e in again] == list(range(len(again)))
    kinds = [list(dict.fromkeys(e.type for e in run)) for run in (first, again)]
    assert kinds[0] == kinds[1]
    for kind in ("response.output_text.delta", "response.reasoning_text.delta"):
        texts = ["".join(e.delta for e in run if e.type == kind) for run in (first, again)]
        assert texts[0] == texts[1]
    assert again[-1].response == stored
    ends = [
        [e.model_dump(exclude={"sequence_number"}) for e in run if e.type.endswith(".done")]
        for run in (first, again)
    ]
    assert ends[0] == ends[1]
    rest = list(client.responses.retrieve(stored.id, stream=True, starting_after=3))
    assert rest == again[4:]


def test_a_replay_starts_at_a_number(server: Running, client):
    id = create(client).id
    found = server.get(f"/v1/responses/{id}?stream=true&starting_after=x")
    assert (found.status, found.json["error"]["param"]) == (400, "starting_after")
    assert server.get("/v1/responses/resp_none?stream=true").status == 404


def test_reasoning(client):
    found = create(client, SUM, reasoning={"effort": "high"})
    reasoning, message = found.output
    assert (reasoning.type, message.type) == ("reasoning", "message")
    assert reasoning.content[0].text
    assert found.usage.output_tokens_details.reasoning_tokens > 3
    events = list(create(client, SUM, reasoning={"effort": "high"}, stream=True))
    text = "".join(e.delta for e in events if e.type == "response.reasoning_text.delta")
    assert text == reasoning.content[0].text
    assert events[-1].response.output_text == found.output_text


def test_calls_of_functions(client):
    found = create(client, ASK, tools=[TOOL])
    (call,) = found.output
    assert (call.type, call.name, call.status) == ("function_call", "get_weather", "completed")
    assert json.loads(call.arguments) == {"city": "Paris"}
    events = list(create(client, ASK, tools=[TOOL], stream=True))
    kind = "response.function_call_arguments.delta"
    assert "".join(e.delta for e in events if e.type == kind) == call.arguments
    items = [
        {"role": "user", "content": ASK},
        call.model_dump(exclude_none=True),
        {"type": "function_call_output", "call_id": call.call_id, "output": "21 degrees"},
    ]
    by_hand = create(client, items, tools=[TOOL])
    assert by_hand.output_text
    stored = create(client, items[2:], tools=[TOOL], previous_response_id=found.id)
    assert stored.output_text == by_hand.output_text


def test_calls_of_custom_tools_have_text(client):
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}
    tool = {"type": "custom", "name": "shell", "description": "Runs a command", "format": grammar}
    for choice in ("required", {"type": "custom", "name": "shell"}):
        demanded = {"tools": [tool], "tool_choice": choice, "temperature": 0}
        (call,) = create(client, ASK, **demanded).output
        assert (call.type, call.name, call.status) == ("custom_tool_call", "shell", "completed")
        assert call.input
        assert not call.input.startswith("{")
        events = list(create(client, ASK, stream=True, **demanded))
        kinds = [e.type for e in events if "input" in e.type]
        assert kinds == [f"response.custom_tool_call_input.{kind}" for kind in ("delta", "done")]
        last = events[-1].response.output[0]
        assert last.input == call.input == events[-3].input == events[-4].delta
    items = [
        {"role": "user", "content": ASK},
        call.model_dump(exclude_none=True),
        {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "21 degrees"},
    ]
    assert create(client, items, tools=[tool]).output_text


def test_calls_in_a_namespace_contain_it(client):
    inner = {**TOOL, "name": "get_weather"}
    tool = {"type": "namespace", "name": "sky", "description": "Weather", "tools": [inner]}
    (call,) = create(client, ASK, tools=[tool], tool_choice="required").output
    assert (call.type, call.namespace, call.name) == ("function_call", "sky", "get_weather")
    items = [
        {"role": "user", "content": ASK},
        call.model_dump(exclude_none=True),
        {"type": "function_call_output", "call_id": call.call_id, "output": "21 degrees"},
    ]
    flat = create(client, ASK, tools=[{**inner, "name": "sky__get_weather"}], temperature=0)
    found = create(client, ASK, tools=[tool], temperature=0)
    assert found.usage.input_tokens == flat.usage.input_tokens
    assert create(client, items, tools=[tool]).output_text


def test_tools_of_hosted_servers_are_ignored(client):
    """Codex sends them with every request."""
    search = {"type": "web_search", "external_web_access": False}
    found = create(client, ASK, tools=[search, TOOL], extra_body={"client_metadata": {"x": "y"}})
    plain = create(client, ASK, tools=[TOOL])
    assert [tool.type for tool in found.tools] == ["function"]
    assert found.usage.input_tokens == plain.usage.input_tokens
    assert create(client, tools=[search]).tools == []


def test_json_schema_and_forced_calls(client):
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "maximum": 99, "minimum": 0}},
        "required": ["n"],
    }
    form = {"type": "json_schema", "name": "number", "schema": {**schema,
            "additionalProperties": False}}  # fmt: skip
    found = create(client, text={"format": form})
    assert isinstance(json.loads(found.output_text)["n"], int)
    assert found.text.format.type == "json_schema"
    (call, *_) = create(client, tools=[TOOL], tool_choice="required").output
    assert (call.type, call.name) == ("function_call", "get_weather")


def test_allowed_tools(client):
    """Only the allowed tools are in the prompt, and only these can be called."""
    other = {**TOOL, "name": "get_time", "description": "Get the current time in a city"}
    names = {"type": "allowed_tools", "tools": [{"type": "function", "name": "get_time"},
             {"type": "web_search"}]}  # fmt: skip
    found = create(client, ASK, tools=[TOOL, other], tool_choice={**names, "mode": "required"})
    assert {item.name for item in found.output} == {"get_time"}
    found = create(client, ASK, tools=[TOOL, other], tool_choice={**names, "mode": "auto"})
    alone = create(client, ASK, tools=[other])
    assert found.usage.input_tokens == alone.usage.input_tokens
    assert [item.type for item in found.output] == [item.type for item in alone.output]
    assert [tool.name for tool in found.tools] == ["get_weather", "get_time"]


NUMBER = {
    "type": "object",
    "properties": {"n": {"type": "integer", "maximum": 99, "minimum": 0}},
    "required": ["n"],
    "additionalProperties": False,
}
FORM = {"format": {"type": "json_schema", "name": "number", "schema": NUMBER}}


def test_an_output_format_and_tools_together(client):
    """The answer is a call or follows the format; a forced call takes precedence."""
    (call,) = create(client, ASK, tools=[TOOL], text=FORM).output
    assert (call.type, call.name) == ("function_call", "get_weather")
    assert json.loads(call.arguments) == {"city": "Paris"}
    (message,) = create(client, "Hello", tools=[TOOL], text=FORM).output
    assert message.type == "message"
    assert set(json.loads(message.content[0].text)) == {"n"}
    named = {"type": "function", "name": "get_weather"}
    (call,) = create(client, "Hello", tools=[TOOL], text=FORM, tool_choice=named).output
    assert (call.type, call.name) == ("function_call", "get_weather")
    none = create(client, ASK, tools=[TOOL], text=FORM, tool_choice="none")
    assert set(json.loads(none.output_text)) == {"n"}


@pytest.mark.parametrize("verbosity", ["low", "medium", "high"])
def test_verbosity_is_accepted(client, verbosity: str):
    found = create(client, text={"verbosity": verbosity})
    assert found.output_text == create(client).output_text
    assert found.text.verbosity == verbosity


@pytest.fixture
def short(llm: LLM) -> Iterator[openai.OpenAI]:
    """A client of a server with a context of SHORT tokens."""
    with running(load=replace(LOAD, context=SHORT)) as server:
        url = f"{server.url}/v1"
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as found:
            yield found


def test_truncation_leaves_out_the_oldest_turns(short, llm: LLM):
    client, long = short, "word " * 375
    items: list[Any] = [{"role": "system", "content": "You are a pirate."}]
    for i in range(8):
        items += [
            {"role": "user", "content": f"{i} {long}"},
            {"role": "assistant", "content": "Yes."},
        ]
    items.append({"role": "user", "content": "Hello"})
    with pytest.raises(openai.BadRequestError) as caught:
        create(client, items, max_output_tokens=20)
    assert caught.value.code == "context_length_exceeded"
    found = create(client, items, truncation="auto", max_output_tokens=20)
    assert found.truncation == "auto"
    kept = next(
        n for n in range(1, len(items), 2) if len(llm.render([items[0], *items[n:]])) <= SHORT - 20
    )
    by_hand = create(client, [items[0], *items[kept:]], max_output_tokens=20)
    assert found.usage.input_tokens == by_hand.usage.input_tokens
    assert found.output_text == by_hand.output_text
    counted = client.responses.input_tokens.count(
        model=MODEL, input=items, truncation="auto", extra_body={"max_output_tokens": 20}
    )
    assert counted.input_tokens == found.usage.input_tokens
    whole = create(client, items[-1:], truncation="auto")
    assert whole.output_text == create(client, items[-1:]).output_text


def test_truncation_leaves_out_the_oldest_calls_of_one_turn():
    call = {"role": "assistant", "content": "", "tool_calls": [{}]}
    result = {"role": "tool", "content": "x"}
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
        *[call, result] * 3,
    ]
    kept = [[m["content"] for m in each] for each in truncations(messages)]
    assert kept == [
        ["s", "a", "b", "c", "", "x", "", "x", "", "x"],
        ["s", "c", "", "x", "", "x", "", "x"],
        ["s", "c", "", "x", "", "x"],
        ["s", "c", "", "x"],
    ]


def test_a_question_longer_than_the_context_is_refused(client):
    with pytest.raises(openai.BadRequestError) as caught:
        create(client, "word " * 9000, truncation="auto")
    assert caught.value.code == "context_length_exceeded"


def test_a_complete_response_cannot_be_cancelled(client):
    found = create(client, max_output_tokens=2)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.cancel(found.id)
    assert "complete" in caught.value.message
    with pytest.raises(openai.NotFoundError):
        client.responses.cancel("resp_none")


def test_a_response_of_another_key_cannot_be_found_to_cancel():
    with running(api_keys=("first", "second")) as server:
        fields = {"input": "Hello", "max_output_tokens": 2}
        id = server.post("/v1/responses", fields).json["id"]
        for key, status in (("first", 400), ("second", 404)):
            headers = {"Authorization": f"Bearer {key}"}
            assert server.post(f"/v1/responses/{id}/cancel", {}, headers=headers).status == status


def test_a_response_cut_by_the_token_limit_is_incomplete(client):
    found = create(client, max_output_tokens=3)
    assert found.status == "incomplete"
    assert found.incomplete_details.reason == "max_output_tokens"
    events = list(create(client, max_output_tokens=3, stream=True))
    assert events[-1].type == "response.incomplete"


def test_logprobs(client):
    found = create(
        client, top_logprobs=2, include=["message.output_text.logprobs"], max_output_tokens=5
    )
    logprobs = found.output[0].content[0].logprobs
    assert "".join(t.token for t in logprobs) == found.output_text
    assert all(len(t.top_logprobs) == 2 for t in logprobs)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"truncation": "sometimes"}, "truncation"),
        ({"text": {"verbosity": "shouting"}}, "text.verbosity"),
        (
            {
                "tools": [TOOL],
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "auto",
                    "tools": [{"type": "function", "name": "none"}],
                },
            },
            "tool_choice",
        ),
        (
            {
                "tools": [TOOL],
                "tool_choice": {"type": "allowed_tools", "mode": "often", "tools": []},
            },
            "tool_choice",
        ),
        ({"input": []}, "input"),
        ({"input": [{"type": "computer_call"}]}, "input[0]"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "king", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [TEXT, IMAGE]}]}, "input[0].content[1]"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
            "input[0].content[0].text",
        ),
        (
            {"instructions": "Be brief.", "input": [CALL, {**OUTPUT, "output": [IMAGE]}]},
            "input[1].output[0]",
        ),
        ({"tools": [{"type": "local_shell"}]}, "tools[0]"),
        ({"tools": [{"type": "custom"}]}, "tools[0].name"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "often"}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"previous_response_id": "resp_none"}, "previous_response_id"),
        ({"extra_body": {"no_such_field": 1}}, "no_such_field"),
    ],
)
def test_errors_name_the_field(client, fields, param):
    with pytest.raises(openai.BadRequestError) as caught:
        create(client, **{"input": "Hello", **fields})
    assert caught.value.body["param"] == param


def test_input_tokens(server: Running, client: openai.OpenAI):
    first = client.responses.create(model=MODEL, input="Hello", max_output_tokens=3)
    assert client.responses.input_tokens.count(model=MODEL, input="Hello").input_tokens == (
        first.usage.input_tokens
    )
    again = {"model": MODEL, "input": "And then?", "previous_response_id": first.id}
    counted = client.responses.input_tokens.count(**again).input_tokens
    assert counted == client.responses.create(**again, max_output_tokens=1).usage.input_tokens
    assert counted > first.usage.input_tokens
