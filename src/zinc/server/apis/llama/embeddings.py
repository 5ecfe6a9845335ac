"""POST /embedding of llama.cpp's server."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from zinc.engine.readout import Pooled, Pooling, embeddings
from zinc.ops.values import FloatArray
from zinc.server.apis.shared.embeddings import Texts, answer_embeddings, encode_texts, json_rows
from zinc.server.apis.shared.fields import QueueFields
from zinc.server.apis.shared.service import Service, read_fields
from zinc.server.errors import invalid
from zinc.server.runtime.loaded_model import LoadedModel

_INT16_SCALE = 32760.0


class NativeEmbeddingFields(QueueFields):
    """A request for embeddings in llama.cpp's form."""

    content: Texts | None = None
    input: Texts | None = None
    model: str | None = None
    embd_normalize: int = Field(
        2,
        ge=-1,
        le=1000,
        description="-1: none, 0: scale the largest value to 32760, p: divide by the p-norm",
    )
    encoding_format: Literal["float", "base64"] = "float"


async def native_embeddings(service: Service, request: Request) -> Response:
    """Answer with the embeddings of texts in llama.cpp's form."""
    fields = await read_fields(service, request, NativeEmbeddingFields)
    if (fields.content is None) == (fields.input is None):
        raise invalid("content", "content is missing", "give either content or input")
    param, texts = ("content", fields.content) if fields.input is None else ("input", fields.input)

    def body(model: LoadedModel, pools: list[Pooled], tokens: int) -> Iterable[bytes]:
        yield b"["
        for i, each in enumerate(pools):
            each_token = model.llm.pooling is Pooling.NONE
            rows = each.rows if each_token else _normalised(each, fields.embd_normalize)
            yield b"," * (i > 0)
            yield b'{"index":%d,"embedding":%b}' % (i, json_rows(rows, fields.encoding_format))
        yield b"]"

    encode = partial(encode_texts, texts=texts or "", param=param, parse_special=True)
    return await answer_embeddings(
        service, request, fields.model, fields.priority, lambda model: None, encode, body
    )


def _normalised(pool: Pooled, kind: int) -> FloatArray:
    """Return the embedding [1, hidden] normalised as llama.cpp's `embd_normalize` = `kind` asks."""
    if kind == 0:
        return embeddings([pool], norm=float("inf")) * _INT16_SCALE
    return embeddings([pool], norm=None if kind < 0 else kind)
