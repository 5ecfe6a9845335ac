"""Tests with langchain-ollama (https://docs.langchain.com)."""

from __future__ import annotations

from typing import Any

import pytest
from clients.installed import needs
from pydantic import BaseModel
from server.serving import WEATHER, Running

pytestmark = needs("langchain_ollama", "langchain-ollama")


class Person(BaseModel):
    """A person."""

    name: str
    age: int


@pytest.fixture
def model(server: Running) -> Any:
    from langchain_ollama import ChatOllama

    return ChatOllama(model="demo", base_url=server.url, temperature=0, num_predict=100)


def test_an_answer_and_a_stream(model):
    whole = model.invoke("Hello")
    assert whole.content
    assert whole.usage_metadata["output_tokens"] > 0
    assert "".join(part.content for part in model.stream("Hello")) == whole.content


def test_a_tool_is_called_and_answered(model):
    from langchain_core.messages import HumanMessage, ToolMessage

    tools = model.bind_tools([WEATHER])
    asked = HumanMessage("What is the weather in Paris?")
    found = tools.invoke([asked])
    (call,) = found.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
    result = ToolMessage("sunny", tool_call_id=call["id"])
    assert tools.invoke([asked, found, result]).content


def test_a_structured_answer(model):
    found = model.with_structured_output(Person, method="json_schema").invoke("Who are you?")
    assert isinstance(found, Person)


def test_embeddings(server: Running):
    from langchain_ollama import OllamaEmbeddings

    model = OllamaEmbeddings(model="demo", base_url=server.url)
    assert len(model.embed_documents(["one", "two"])) == 2
