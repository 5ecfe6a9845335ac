"""POST /api/embed and the older /api/embeddings: texts to vectors of length 1.

As in Ollama, a request without text loads the model and has no vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from zinc.engine.readout import Pooled, Pooling
from zinc.engine.readout import embeddings as embeddings_of
from zinc.server.apis.ollama.common import Clock, own_name
from zinc.server.apis.shared.embeddings import (
    Texts,
    Truncate,
    answer_embeddings,
    encode_texts,
    json_row,
    json_rows,
)
from zinc.server.apis.shared.fields import QueueFields
from zinc.server.apis.shared.service import Service, read_fields
from zinc.server.errors import ApiError, invalid
from zinc.server.http.responses import encode_json
from zinc.server.runtime.loaded_model import LoadedModel


class _Fields(QueueFields):
    """Fields that /api/embed and /api/embeddings share."""

    model: str | None = None
    options: dict[str, Any] | None = Field(
        None, description="no effect: options of `zinc serve` control how a model is loaded"
    )
    keep_alive: float | str | None = Field(None, description="no effect for embeddings")


class EmbedFields(_Fields):
    """A request for the embeddings of texts."""

    input: Texts
    truncate: bool | None = Field(None, description="false refuses texts longer than the context")
    dimensions: int | None = Field(None, ge=1, description="keep only the first dimensions")


class EmbeddingsFields(_Fields):
    """A request for the embedding of one text."""

    prompt: str


async def embed(service: Service, request: Request) -> Response:
    """Embed texts."""
    fields = await read_fields(service, request, EmbedFields)
    clock = Clock()

    def check(model: LoadedModel) -> None:
        clock.loaded()
        _check_pooling(model)
        most = model.llm.n_dimensions
        if (fields.dimensions or 1) > most:
            why = f"embeddings of this model have {most}"
            raise invalid("dimensions", f"dimensions is {fields.dimensions}", why)

    def body(model: LoadedModel, pools: list[Pooled], tokens: int) -> Iterable[bytes]:
        counts = {**clock.durations(), "prompt_eval_count": tokens}
        rows = embeddings_of(pools, fields.dimensions) if pools else ()
        yield encode_json({"model": model.name, **counts})[:-1]
        yield b',"embeddings":%b}' % json_rows(rows, "float")

    cut: Truncate | None = None if fields.truncate is False else "end"
    return await _answer(service, request, fields, fields.input, "input", check, body, cut)


async def embeddings(service: Service, request: Request) -> Response:
    """Embed one text."""
    fields = await read_fields(service, request, EmbeddingsFields)

    def body(model: LoadedModel, pools: list[Pooled], tokens: int) -> Iterable[bytes]:
        row = json_row(embeddings_of(pools)[0], "float") if pools else b"[]"
        yield b'{"embedding":%b}' % row

    return await _answer(
        service, request, fields, fields.prompt, "prompt", _check_pooling, body, "end"
    )


async def _answer(
    service: Service,
    request: Request,
    fields: _Fields,
    texts: Texts,
    param: str,
    check: Callable[[LoadedModel], None],
    body: Callable[[LoadedModel, list[Pooled], int], Iterable[bytes]],
    truncate: Truncate | None,
) -> Response:
    def encode(model: LoadedModel) -> list[list[int]]:
        if not texts:
            return []
        return encode_texts(model, texts, param, parse_special=False, truncate=truncate)

    name = own_name(service.pool, fields.model)
    return await answer_embeddings(service, request, name, fields.priority, check, encode, body)


def _check_pooling(model: LoadedModel) -> None:
    if model.llm.pooling is Pooling.NONE:
        raise ApiError(
            400,
            "this endpoint needs one vector for each text",
            "the server was started with --pooling none",
            "use /embedding",
        )
