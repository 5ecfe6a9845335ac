"""Tests with ollama, the official client of Ollama's API (github.com/ollama/ollama-python)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clients.installed import needs
from data.encoder_texts import TEXTS
from pydantic import BaseModel
from server.serving import WEATHER, Running, running

from zinc.engine.load.options import LoadOptions
from zinc.server.config import ModelSource

pytestmark = needs("ollama", "ollama")

ENCODERS = Path(__file__).parents[1] / "data" / "encoders"
HELLO = [{"role": "user", "content": "Hello"}]
ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
GREEDY = {"temperature": 0, "num_predict": 100}


class Person(BaseModel):
    name: str
    age: int


@pytest.fixture
def client(server: Running) -> Any:
    import ollama

    return ollama.Client(server.url)


def test_an_answer_and_a_second_turn(client):
    first = client.chat("demo", HELLO, options=GREEDY)
    assert first.message.content
    assert first.done_reason in ("stop", "length")
    again = [*HELLO, first.message, {"role": "user", "content": "Thanks"}]
    second = client.chat("demo", again, options=GREEDY)
    assert second.message.content
    assert second.prompt_eval_count > first.prompt_eval_count


def test_a_stream(client):
    parts = list(client.chat("demo", HELLO, options=GREEDY, stream=True))
    assert len(parts) > 3
    assert [part.done for part in parts] == [*[False] * (len(parts) - 1), True]
    whole = client.chat("demo", HELLO, options=GREEDY)
    assert "".join(part.message.content for part in parts) == whole.message.content


def test_an_asynchronous_stream(server: Running, loop: Any) -> None:
    import ollama

    async def ask() -> str:
        client = ollama.AsyncClient(server.url)
        parts = await client.chat("demo", HELLO, options=GREEDY, stream=True)
        return "".join([part.message.content async for part in parts])

    assert loop.run(ask()) == ollama.Client(server.url).chat(
        "demo", HELLO, options=GREEDY
    ).message.content  # fmt: skip


def test_a_tool_is_called_and_answered(client):
    for stream in (False, True):
        found = client.chat("demo", ASK, tools=[WEATHER], options=GREEDY, stream=stream)
        parts = list(found) if stream else [found]
        (call,) = [call for part in parts for call in part.message.tool_calls or ()]
        assert (call.function.name, call.function.arguments) == ("get_weather", {"city": "Paris"})
    result = {"role": "tool", "tool_name": "get_weather", "content": '{"temperature": 21}'}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    second = client.chat("demo", [*ASK, message, result], tools=[WEATHER], options=GREEDY)
    assert second.message.content


def test_a_structured_answer(client):
    found = client.chat("demo", HELLO, format=Person.model_json_schema(), options=GREEDY)
    Person.model_validate_json(found.message.content)
    found = client.generate("demo", "An object:", format="json", options=GREEDY)
    assert isinstance(json.loads(found.response), dict) or found.done_reason == "length"


def test_a_prompt_is_continued(client):
    whole = client.generate("demo", "Once upon", raw=True, options=GREEDY)
    parts = list(client.generate("demo", "Once upon", raw=True, options=GREEDY, stream=True))
    assert "".join(part.response for part in parts) == whole.response
    system = client.generate("demo", "Hello", system="Answer in one word.", options=GREEDY)
    assert system.response


def test_embeddings(client):
    found = client.embed("demo", ["one", "two"])
    assert len(found.embeddings) == 2
    assert sum(x * x for x in found.embeddings[0]) == pytest.approx(1, abs=1e-3)
    assert list(client.embeddings("demo", "one").embedding) == list(found.embeddings[0])


def test_models_are_listed_and_described(client):
    (row,) = client.list().models
    assert row.model == "demo"
    assert row.details.format == "gguf"
    client.chat("demo", HELLO, options={"num_predict": 1})
    (running,) = client.ps().models
    assert running.context_length > 0
    shown = client.show("demo:latest")
    assert "tools" in shown.capabilities
    assert shown.modelinfo["general.architecture"] == shown.details.family


def test_a_model_is_created_with_settings_of_its_own():
    import ollama

    with running(allow_pull=True) as server:
        client = ollama.Client(server.url)
        system = "You are a pirate."
        parameters = {"temperature": 0, "num_predict": 8, "stop": ["\n"]}
        made = client.create("pirate", from_="demo", system=system, parameters=parameters)
        assert made.status == "success"
        own = client.chat("pirate", HELLO)
        whole = [{"role": "system", "content": system}, *HELLO]
        assert own.message == client.chat("demo", whole, options=parameters).message
        assert system in client.show("pirate").modelfile


def test_an_error_is_an_exception_with_its_reason(client):
    import ollama

    with pytest.raises(ollama.ResponseError, match="only text") as error:
        client.chat("demo", [{**HELLO[0], "images": ["aGVsbG8="]}])
    assert error.value.status_code == 400


def test_embeddings_of_an_encoder() -> None:
    import ollama

    load = LoadOptions(backend="cpu", threads=2)
    with running(models=(ModelSource("bert", ENCODERS / "bert.gguf"),), load=load) as encoder:
        client = ollama.Client(encoder.url)
        texts = [text for text in TEXTS if text]
        found = client.embed("bert", texts, dimensions=8)
        (one,) = client.embed("bert", texts[0]).embeddings
        old = client.embeddings("bert", texts[0]).embedding
    with np.load(ENCODERS / "bert.npz") as data:
        rows = np.array([row for text, row in zip(TEXTS, data["embeddings"], strict=True) if text])
    cut = rows[:, :8] / np.linalg.norm(rows[:, :8], axis=1, keepdims=True)
    assert np.abs(np.array(found.embeddings) - cut).max() <= 2e-3
    assert np.abs(np.array(one) - rows[0]).max() <= 1e-3
    np.testing.assert_allclose(np.array(old) / np.linalg.norm(old), one, atol=1e-6)
