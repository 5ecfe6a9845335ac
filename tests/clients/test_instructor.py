"""Tests with instructor (https://python.useinstructor.com): structured answers in each mode."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from clients.installed import needs
from pydantic import BaseModel, Field
from server.serving import Running

pytestmark = needs("instructor", "instructor")

ANNA = [{"role": "user", "content": "Anna is 31 years old."}]


class Person(BaseModel):
    """A person."""

    name: str = Field(description="Name of the person")
    age: int = Field(ge=0, le=150)


def ask(client: Any, model: Any = Person, **more: Any) -> Any:
    fields = {"model": "demo", "max_tokens": 200, "max_retries": 0, "messages": ANNA, **more}
    return client.chat.completions.create(response_model=model, **fields)


class get_weather(BaseModel):  # noqa: N801 - the name of the tool
    """Get the current weather in a city."""

    city: str = Field(description="Name of the city")


@pytest.mark.parametrize("mode", ["TOOLS", "TOOLS_STRICT", "JSON_SCHEMA", "JSON", "MD_JSON"])
def test_an_object_over_chat(url: str, mode: str):
    import instructor
    import openai

    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as openai_client:
        client = instructor.from_openai(openai_client, mode=instructor.Mode[mode])
        assert isinstance(ask(client, temperature=0), Person)


def test_several_calls(url: str):
    import instructor
    import openai

    question = [{"role": "user", "content": "What is the weather in Paris?"}]
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as openai_client:
        client = instructor.from_openai(openai_client, mode=instructor.Mode.PARALLEL_TOOLS)
        found = list(ask(client, Iterable[get_weather], messages=question, temperature=0))
    assert found == [get_weather(city="Paris")]


def test_a_partial_object_in_a_stream(url: str):
    import instructor
    import openai

    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as openai_client:
        client = instructor.from_openai(openai_client, mode=instructor.Mode.JSON_SCHEMA)
        parts = list(
            client.chat.completions.create_partial(
                model="demo", messages=ANNA, response_model=Person, max_tokens=200, temperature=0
            )
        )
    assert len(parts) > 2
    assert parts[-1].name
    assert parts[-1].age >= 0


@pytest.mark.parametrize("mode", ["RESPONSES_TOOLS"])
def test_an_object_over_responses(url: str, mode: str):
    import instructor
    import openai

    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as openai_client:
        client = instructor.from_openai(openai_client, mode=instructor.Mode[mode])
        found = client.responses.create(
            model="demo", input="Anna is 31 years old.", response_model=Person, max_retries=0
        )
    assert isinstance(found, Person)


def test_an_object_over_anthropics_api(server: Running):
    import instructor

    anthropic = pytest.importorskip("anthropic", reason="anthropic is not installed")
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        wrapped = instructor.from_anthropic(client, mode=instructor.Mode.ANTHROPIC_TOOLS)
        assert isinstance(ask(wrapped), Person)
