"""Tests with litellm (https://docs.litellm.ai), using the APIs of OpenAI, Anthropic and Ollama."""

from __future__ import annotations

import json
from typing import Any

import pytest
from clients.installed import needs
from pydantic import BaseModel
from server.serving import WEATHER, Running

pytestmark = needs("litellm", "litellm")

HELLO = [{"role": "user", "content": "Hello"}]
ASK = [{"role": "user", "content": "What is the weather in Paris?"}]


class Person(BaseModel):
    name: str
    age: int


@pytest.fixture(params=["openai", "hosted_vllm", "anthropic", "ollama_chat"])
def target(request: pytest.FixtureRequest, url: str, server: Running) -> dict[str, Any]:
    base = server.url if request.param in ("anthropic", "ollama_chat") else url
    return {"model": f"{request.param}/demo", "api_base": base, "api_key": "none"}


def complete(target: dict[str, Any], messages: Any, **fields: Any) -> Any:
    import litellm

    fields = {"max_tokens": 100, "temperature": 0, "num_retries": 0, **fields}
    return litellm.completion(messages=messages, **target, **fields)


def test_an_answer_and_a_second_turn(target):
    first = complete(target, HELLO)
    assert first.choices[0].message.content
    again = [*HELLO, first.choices[0].message.model_dump(), {"role": "user", "content": "Thanks"}]
    second = complete(target, again)
    assert second.choices[0].message.content
    assert second.usage.prompt_tokens > first.usage.prompt_tokens


def test_a_stream(target):
    pieces = [c.choices[0].delta.content or "" for c in complete(target, HELLO, stream=True)]
    assert len(pieces) > 3
    assert "".join(pieces) == complete(target, HELLO).choices[0].message.content


def test_a_tool_is_called_and_answered(target):
    message = complete(target, ASK, tools=[WEATHER]).choices[0].message
    (call,) = message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == (
        "get_weather",
        {"city": "Paris"},
    )
    result = {"role": "tool", "tool_call_id": call.id, "content": '{"temperature": 21}'}
    found = complete(target, [*ASK, message.model_dump(), result], tools=[WEATHER])
    assert found.choices[0].message.content


def test_a_call_can_be_demanded(target):
    if target["model"].startswith("ollama"):
        pytest.skip("Ollama's API has no tool_choice")
    found = complete(target, HELLO, tools=[WEATHER], tool_choice="required")
    assert found.choices[0].message.tool_calls


def test_a_structured_answer(target):
    found = complete(target, HELLO, response_format=Person)
    assert Person.model_validate_json(found.choices[0].message.content)


def test_embeddings(url):
    import litellm

    found = litellm.embedding("openai/demo", ["one", "two"], api_base=url, api_key="none")
    assert len(found.data) == 2


def test_a_text_is_continued(url):
    import litellm

    found = litellm.text_completion(
        model="text-completion-openai/demo", prompt="Once upon", max_tokens=5, api_base=url,
        api_key="none",
    )  # fmt: skip
    assert found.choices[0].text
