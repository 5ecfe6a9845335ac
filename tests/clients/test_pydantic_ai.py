"""Tests with pydantic-ai (https://ai.pydantic.dev), using chat, responses and Anthropic's API."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from clients.installed import needs
from pydantic import BaseModel
from server.serving import Running

pytestmark = needs("pydantic_ai", "pydantic-ai")


class Person(BaseModel):
    name: str
    age: int


@pytest.fixture(params=["chat", "responses", "anthropic"])
def model(
    request: pytest.FixtureRequest, url: str, server: Running, loop: asyncio.Runner
) -> Iterator[Any]:
    if request.param == "anthropic":
        import anthropic
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        client = anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0)
        yield AnthropicModel(
            "demo",
            provider=AnthropicProvider(anthropic_client=client),
            profile={
                "supports_json_schema_output": True
            },  # the library's default for unknown models is False
        )
    else:
        import openai
        from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
        from pydantic_ai.providers.openai import OpenAIProvider

        client = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
        kind = OpenAIChatModel if request.param == "chat" else OpenAIResponsesModel
        yield kind("demo", provider=OpenAIProvider(openai_client=client))
    loop.run(client.close())


def agent(model: Any, **more: Any) -> Any:
    from pydantic_ai import Agent

    return Agent(model, model_settings={"temperature": 0, "max_tokens": 100}, retries=0, **more)


def test_an_answer_and_a_second_turn(model, loop):
    assistant = agent(model, instructions="You are a helpful assistant.")
    first = loop.run(assistant.run("Hello"))
    assert first.output
    second = loop.run(assistant.run("Thanks", message_history=first.all_messages()))
    assert second.output
    assert len(second.all_messages()) == 4


def test_a_stream(model, loop):
    async def read() -> tuple[list[str], str]:
        async with agent(model).run_stream("Tell me a short story.") as result:
            pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
            return pieces, await result.get_output()

    pieces, whole = loop.run(read())
    assert len(pieces) > 3
    assert "".join(pieces) == whole != ""


def test_a_tool_is_called_and_answered(model, loop):
    assistant, cities = agent(model), []

    @assistant.tool_plain
    def get_weather(city: str) -> str:
        """Get the current weather in a city.

        Args:
            city: Name of the city
        """
        cities.append(city)
        return '{"temperature": 21}'

    assert loop.run(assistant.run("What is the weather in Paris?")).output
    assert cities == ["Paris"]


@pytest.mark.parametrize("how", ["tool", "native"])
def test_a_structured_answer(model, how, loop):
    from pydantic_ai import NativeOutput, ToolOutput

    kind = {"tool": ToolOutput, "native": NativeOutput}[how]
    assistant = agent(model, output_type=kind(Person))
    assert isinstance(loop.run(assistant.run("Anna is 31 years old.")).output, Person)
