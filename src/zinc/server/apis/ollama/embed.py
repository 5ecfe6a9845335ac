"""POST /api/embed and the older /api/embeddings: texts to vectors of length 1.

As in Ollama, a request without text loads the model and has no vectors.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from zinc.core.dataclass import dataclass
from zinc.engine.readout import Pooled
from zinc.engine.readout import embeddings as embeddings_of
from zinc.server.apis.ollama.common import Clock, own_name
from zinc.server.apis.shared.embeddings import (
    Texts,
    Truncate,
    answer_embeddings,
    check_dimensions,
    check_one_vector,
    encode_texts,
    json_row,
    json_rows,
)
from zinc.server.apis.shared.fields import QueueFields
from zinc.server.apis.shared.service import Service, read_fields
from zinc.server.http.responses import encode_json
from zinc.server.runtime.served_model import ServedModel


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
    name = own_name(service.pool, fields.model)
    return await answer_embeddings(service, request, name, fields.priority, _Reply(fields))


async def embeddings(service: Service, request: Request) -> Response:
    """Embed one text."""
    fields = await read_fields(service, request, EmbeddingsFields)
    name = own_name(service.pool, fields.model)
    return await answer_embeddings(service, request, name, fields.priority, _OneReply(fields))


class _Reply:
    """The reply of /api/embed. Implements `EmbeddingReply`."""

    is_packed = False

    def __init__(self, fields: EmbedFields) -> None:
        self._fields, self._clock = fields, Clock()

    def check(self, model: ServedModel) -> None:
        self._clock.loaded()
        check_one_vector(model)
        check_dimensions(model, self._fields.dimensions, "dimensions")

    def encode(self, model: ServedModel) -> list[list[int]]:
        cut: Truncate | None = None if self._fields.truncate is False else "end"
        return _encode(model, self._fields.input, "input", cut)

    def body(self, model: ServedModel, pools: list[Pooled], tokens: int) -> Iterable[bytes]:
        counts = {**self._clock.durations(), "prompt_eval_count": tokens}
        rows = embeddings_of(pools, self._fields.dimensions) if pools else ()
        yield encode_json({"model": model.name, **counts})[:-1]
        yield b',"embeddings":%b}' % json_rows(rows, "float")


@dataclass(frozen=True, slots=True)
class _OneReply:
    """The reply of /api/embeddings. Implements `EmbeddingReply`."""

    fields: EmbeddingsFields
    is_packed = False

    def check(self, model: ServedModel) -> None:
        check_one_vector(model)

    def encode(self, model: ServedModel) -> list[list[int]]:
        return _encode(model, self.fields.prompt, "prompt", "end")

    def body(self, model: ServedModel, pools: list[Pooled], tokens: int) -> Iterable[bytes]:
        row = json_row(embeddings_of(pools)[0], "float") if pools else b"[]"
        yield b'{"embedding":%b}' % row


def _encode(
    model: ServedModel, texts: Texts, param: str, truncate: Truncate | None
) -> list[list[int]]:
    """Return the token ids of each text in the field `param`, of none if it is empty."""
    if not texts:
        return []
    return encode_texts(model, texts, param, parse_special=False, truncate=truncate)
