"""Tests with smolagents (https://huggingface.co/docs/smolagents): a model and an agent."""

from __future__ import annotations

from typing import Any

import pytest
from clients.installed import needs

pytestmark = needs("smolagents", "smolagents")

ASK = [{"role": "user", "content": "What is the weather in Paris?"}]


@pytest.fixture
def model(url: str) -> Any:
    from smolagents import OpenAIModel

    return OpenAIModel(
        model_id="demo", api_base=url, api_key="none", temperature=0, max_tokens=100,
        client_kwargs={"max_retries": 0},
    )  # fmt: skip


@pytest.fixture
def weather() -> Any:
    from smolagents import tool

    @tool
    def get_weather(city: str) -> str:
        """Get the current weather in a city.

        Args:
            city: Name of the city
        """
        return '{"temperature": 21}'

    return get_weather


def test_an_answer(model):
    found = model.generate([{"role": "user", "content": [{"type": "text", "text": "Hello"}]}])
    assert found.content
    assert found.token_usage.output_tokens > 0


def test_a_stream(model):
    pieces = [delta.content or "" for delta in model.generate_stream(ASK)]
    assert len(pieces) > 3
    assert "".join(pieces) == model.generate(ASK).content


def test_a_tool_is_called(model, weather):
    found = model.generate(ASK, tools_to_call_from=[weather])
    assert [call.function.name for call in found.tool_calls] == ["get_weather"]
    assert found.tool_calls[0].function.arguments in ({"city": "Paris"}, '{"city": "Paris"}')


def test_a_structured_answer(model):
    schema = {
        "type": "object",
        "properties": {"thought": {"type": "string", "maxLength": 40}},
        "required": ["thought"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "t", "schema": schema, "strict": True}}
    assert model.generate(ASK, response_format=form).content.startswith("{")


def test_an_agent_takes_a_step(model, weather):
    from smolagents import ToolCallingAgent

    agent = ToolCallingAgent(tools=[weather], model=model, verbosity_level=0)
    agent.run("What is the weather in Paris?", max_steps=2)
    steps = [getattr(step, "tool_calls", None) or [] for step in agent.memory.steps]
    assert any(steps)
