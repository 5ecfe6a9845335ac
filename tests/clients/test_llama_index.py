"""Tests with llama-index-llms-openai-like (https://docs.llamaindex.ai)."""

from __future__ import annotations

from typing import Any

import pytest
from clients.installed import needs
from pydantic import BaseModel

pytestmark = needs("llama_index.llms.openai_like", "llama-index-llms-openai-like")


class Person(BaseModel):
    """A person."""

    name: str
    age: int


@pytest.fixture
def model(url: str) -> Any:
    from llama_index.llms.openai_like import OpenAILike

    return OpenAILike(
        model="demo", api_base=url, api_key="none", is_chat_model=True, context_window=4096,
        is_function_calling_model=True, temperature=0, max_tokens=100, max_retries=0,
    )  # fmt: skip


def messages(*texts: str) -> list[Any]:
    from llama_index.core.llms import ChatMessage

    roles = ("user", "assistant")
    return [ChatMessage(role=roles[i % 2], content=text) for i, text in enumerate(texts)]


def test_an_answer_and_a_second_turn(model):
    first = model.chat(messages("Hello")).message.content
    assert first
    assert model.chat(messages("Hello", first, "Thanks")).message.content


def test_a_stream(model):
    pieces = [chunk.delta or "" for chunk in model.stream_chat(messages("Hello"))]
    assert len(pieces) > 3
    assert "".join(pieces) == model.chat(messages("Hello")).message.content


def test_a_tool_is_called_and_answered(model):
    from llama_index.core.tools import FunctionTool

    cities = []

    def get_weather(city: str) -> str:
        """Get the current weather in a city."""
        cities.append(city)
        return '{"temperature": 21}'

    tool = FunctionTool.from_defaults(get_weather)
    found = model.predict_and_call([tool], "What is the weather in Paris?", tool_required=True)
    assert cities == ["Paris"]
    assert "21" in found.response
    demanded = model.chat_with_tools([tool], "Hello", tool_required=True)
    assert model.get_tool_calls_from_response(demanded)


def test_a_structured_answer(model):
    from llama_index.core.prompts import PromptTemplate

    prompt = PromptTemplate("Anna is {age} years old.")
    assert isinstance(model.structured_predict(Person, prompt, age=31), Person)
