"""Tests with openai-agents (https://github.com/openai/openai-agents-python)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from clients.installed import needs
from pydantic import BaseModel

pytestmark = needs("agents", "openai-agents")


class Person(BaseModel):
    name: str
    age: int


@pytest.fixture(params=["chat", "responses"])
def agent(request: pytest.FixtureRequest, url: str, loop: asyncio.Runner) -> Iterator[Any]:
    import agents
    import openai

    agents.set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
    kinds = {
        "chat": agents.OpenAIChatCompletionsModel,
        "responses": agents.OpenAIResponsesModel,
    }
    settings = agents.ModelSettings(temperature=0, max_tokens=100)
    model = kinds[request.param](model="demo", openai_client=client)
    yield agents.Agent(name="Assistant", model=model, model_settings=settings)
    loop.run(client.close())


@pytest.fixture
def run(loop: asyncio.Runner) -> Callable[[Any, Any], Any]:
    import agents

    return lambda agent, given: loop.run(agents.Runner.run(agent, given, max_turns=3))


def test_an_answer_and_a_second_turn(agent, run):
    first = run(agent, "Hello")
    assert first.final_output
    second = run(agent, [*first.to_input_list(), {"role": "user", "content": "Thanks"}])
    assert second.final_output
    assert second.raw_responses[0].usage.input_tokens > first.raw_responses[0].usage.input_tokens


def test_a_stream(agent, loop):
    import agents

    async def read() -> tuple[str, str]:
        result, text = agents.Runner.run_streamed(agent, "Tell me a short story."), ""
        async for event in result.stream_events():
            if event.type == "raw_response_event" and hasattr(event.data, "delta"):
                text += event.data.delta
        return text, result.final_output

    text, whole = loop.run(read())
    assert text == whole != ""


def test_a_tool_is_called_and_answered(agent, run):
    import agents

    cities = []

    @agents.function_tool
    def get_weather(city: str) -> str:
        """Get the current weather in a city.

        Args:
            city: Name of the city
        """
        cities.append(city)
        return '{"temperature": 21}'

    result = run(agent.clone(tools=[get_weather]), "What is the weather in Paris?")
    assert cities == ["Paris"]
    assert result.final_output
    kinds = [item.type for item in result.new_items]
    assert kinds == ["tool_call_item", "tool_call_output_item", "message_output_item"]


def test_a_structured_answer(agent, run):
    found = run(agent.clone(output_type=Person), "Anna is 31 years old.").final_output
    assert isinstance(found, Person)
