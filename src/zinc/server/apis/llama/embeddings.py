"""POST /embedding of llama.cpp's server."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from zinc.core.dataclass import dataclass
from zinc.engine.readout import Pooled, Pooling, embeddings
from zinc.ops.values import FloatArray
from zinc.server.apis.shared.embeddings import Texts, answer_embeddings, encode_texts, json_rows
from zinc.server.apis.shared.fields import QueueFields
from zinc.server.apis.shared.service import Service, read_fields
from zinc.server.errors import invalid
from zinc.server.runtime.served_model import ServedModel

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
    return await answer_embeddings(service, request, fields.model, fields.priority, _Reply(fields))


@dataclass(frozen=True, slots=True)
class _Reply:
    """The reply to a request in llama.cpp's form. Implements `EmbeddingReply`."""

    fields: NativeEmbeddingFields

    @property
    def is_packed(self) -> bool:
        return self.fields.encoding_format == "base64"

    def check(self, model: ServedModel) -> None:
        """Accept every model: embeddings may be of texts or of tokens."""

    def encode(self, model: ServedModel) -> list[list[int]]:
        param = "content" if self.fields.input is None else "input"
        texts: Texts = getattr(self.fields, param) or ""
        return encode_texts(model, texts, param, parse_special=True)

    def body(self, model: ServedModel, pools: list[Pooled], tokens: int) -> Iterable[bytes]:
        fields, each_token = self.fields, model.llm.pooling is Pooling.NONE
        yield b"["
        for i, each in enumerate(pools):
            rows = each.rows if each_token else _normalised(each, fields.embd_normalize)
            yield b"," * (i > 0)
            yield b'{"index":%d,"embedding":%b}' % (i, json_rows(rows, fields.encoding_format))
        yield b"]"


def _normalised(pool: Pooled, kind: int) -> FloatArray:
    """Return the embedding [1, hidden] normalised as llama.cpp's `embd_normalize` = `kind` asks."""
    if kind == 0:
        return embeddings([pool], norm=float("inf")) * _INT16_SCALE
    return embeddings([pool], norm=None if kind < 0 else kind)
