"""Tests with langchain-openai and langchain-anthropic (https://docs.langchain.com)."""

from __future__ import annotations

from typing import Any

import pytest
from clients.installed import needs
from pydantic import BaseModel
from server.serving import WEATHER, Running

KINDS = [
    pytest.param("chat", marks=needs("langchain_openai", "langchain-openai")),
    pytest.param("responses", marks=needs("langchain_openai", "langchain-openai")),
    pytest.param("anthropic", marks=needs("langchain_anthropic", "langchain-anthropic")),
]


class Person(BaseModel):
    """A person."""

    name: str
    age: int


@pytest.fixture(params=KINDS)
def model(request: pytest.FixtureRequest, url: str, server: Running) -> Any:
    common: dict[str, Any] = {"model": "demo", "temperature": 0, "max_retries": 0}
    common.update(max_tokens=100, api_key="none")
    if request.param == "anthropic":
        from langchain_anthropic import ChatAnthropic

        return ChatAnthropic(base_url=server.url, **common)
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(base_url=url, use_responses_api=request.param == "responses", **common)


def test_an_answer_and_a_second_turn(model):
    first = model.invoke("Hello")
    assert first.text
    second = model.invoke([("user", "Hello"), first, ("user", "Thanks")])
    assert second.text
    assert second.usage_metadata["input_tokens"] > first.usage_metadata["input_tokens"]


def test_a_stream(model):
    pieces = [chunk.text for chunk in model.stream("Hello")]
    assert len(pieces) > 3
    assert "".join(pieces) == model.invoke("Hello").text


def test_a_tool_is_called_and_answered(model):
    bound, question = model.bind_tools([WEATHER]), ("user", "What is the weather in Paris?")
    message = bound.invoke([question])
    (call,) = message.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
    from langchain_core.messages import ToolMessage

    result = ToolMessage('{"temperature": 21}', tool_call_id=call["id"])
    assert bound.invoke([question, message, result]).text


def test_a_call_can_be_demanded(model):
    assert model.bind_tools([WEATHER], tool_choice="any").invoke("Hello").tool_calls


@pytest.mark.parametrize("method", ["function_calling", "json_schema"])
def test_a_structured_answer(model, method):
    found = model.with_structured_output(Person, method=method).invoke("Anna is 31 years old.")
    assert isinstance(found, Person)


@needs("langchain_openai", "langchain-openai")
def test_embeddings(url):
    from langchain_openai import OpenAIEmbeddings

    embeddings = OpenAIEmbeddings(
        model="demo", base_url=url, api_key="none", check_embedding_ctx_length=False
    )
    assert len(embeddings.embed_documents(["one", "two"])) == 2
