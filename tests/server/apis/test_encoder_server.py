"""A server with an encoder: it embeds, and says that it does nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from data.encoder_texts import TEXTS
from serving import Running, running

from zinc.engine.load.options import LoadOptions
from zinc.server.config import ModelSource

ENCODERS = Path(__file__).parents[2] / "data" / "encoders"
LOAD = LoadOptions(backend="cpu", threads=2)


@pytest.fixture(scope="module")
def encoder() -> Iterator[Running]:
    with running(models=(ModelSource("bert", ENCODERS / "bert.gguf"),), load=LOAD) as found:
        yield found


def test_embeddings_are_those_of_transformers(encoder: Running) -> None:
    found = encoder.post("/v1/embeddings", {"input": list(TEXTS)}).json
    with np.load(ENCODERS / "bert.npz") as data:
        got = np.array([row["embedding"] for row in found["data"]])
        assert np.abs(got - data["embeddings"]).max() <= 1e-3
        assert found["usage"]["prompt_tokens"] == data["lengths"].sum()


MESSAGES = {"messages": [{"role": "user", "content": "fox"}], "model": "bert", "max_tokens": 4}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", MESSAGES),
        ("/v1/chat/completions", {**MESSAGES, "stream": True}),
        ("/v1/messages", MESSAGES),
        ("/v1/responses", {"input": "fox", "model": "bert"}),
        ("/v1/completions", {"prompt": "fox", "model": "bert"}),
        ("/completion", {"prompt": "fox"}),
        ("/api/chat", {"model": "bert", "messages": MESSAGES["messages"]}),
        ("/api/generate", {"model": "bert", "prompt": "fox"}),
    ],
)
def test_endpoints_that_generate_say_that_it_is_an_encoder(
    encoder: Running, path: str, fields: dict[str, object]
) -> None:
    answer = encoder.post(path, fields)
    assert answer.status == 400
    assert "it is an encoder, which turns texts into embeddings" in answer.body.decode()


def test_other_servers_names_for_what_it_can_do(encoder: Running) -> None:
    assert encoder.post("/api/show", {"model": "bert"}).json["capabilities"] == ["embedding"]
    assert encoder.get("/api/v0/models/bert").json["type"] == "embeddings"
