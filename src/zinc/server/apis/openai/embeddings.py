"""POST /v1/embeddings, and llama.cpp's /embedding: texts to vectors.

https://platform.openai.com/docs/api-reference/embeddings. The engine gets the texts of a request in
groups, so that a request with thousands of texts does not fill the queue. The server's `--pooling`
determines how a text becomes one vector.
"""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from zinc.core.dataclass import dataclass
from zinc.engine.readout import Pooled
from zinc.engine.readout import embeddings as embeddings_of
from zinc.server.apis.openai.common import NeutralFields
from zinc.server.apis.shared.embeddings import (
    RowFormat,
    Texts,
    Truncate,
    answer_embeddings,
    check_dimensions,
    check_one_vector,
    encode_texts,
    json_row,
)
from zinc.server.apis.shared.fields import QueueFields
from zinc.server.apis.shared.service import Service, read_fields
from zinc.server.apis.shared.task_prompts import task_prompt
from zinc.server.http.responses import encode_json
from zinc.server.runtime.served_model import ServedModel


class EmbeddingFields(NeutralFields, QueueFields):
    """A request for embeddings."""

    input: Texts = Field(description="text or token ids, or a list of these")
    model: str | None = None
    dimensions: int | None = Field(None, ge=1, description="keep only the first dimensions")
    encoding_format: RowFormat = "float"
    embedding_type: RowFormat | None = Field(None, description="Jina: the same as encoding_format")
    input_type: str | None = Field(
        None, description="Cohere, Voyage, NVIDIA: what the texts are for, query or document"
    )
    task: str | None = Field(None, description="Jina: the same, such as retrieval.query")
    prompt_name: str | None = Field(None, description="Text Embeddings Inference: the same")
    normalized: bool = Field(True, description="Jina: scale embeddings to length 1")
    truncate: bool = Field(False, description="Jina: truncate texts longer than the context")


async def embeddings(service: Service, request: Request) -> Response:
    """Answer with the embeddings of texts in OpenAI's form."""
    fields = await read_fields(service, request, EmbeddingFields)
    return await answer_embeddings(service, request, fields.model, fields.priority, _Reply(fields))


@dataclass(frozen=True, slots=True)
class _Reply:
    """The reply to a request in OpenAI's form. Implements `EmbeddingReply`."""

    fields: EmbeddingFields

    @property
    def format(self) -> RowFormat:
        """The form of each embedding."""
        return self.fields.embedding_type or self.fields.encoding_format

    @property
    def is_packed(self) -> bool:
        return self.format == "base64"

    def check(self, model: ServedModel) -> None:
        check_one_vector(model)
        check_dimensions(model, self.fields.dimensions, "dimensions")

    def encode(self, model: ServedModel) -> list[list[int]]:
        fields, names = self.fields, ("input_type", "task", "prompt_name")
        param = next((name for name in names if getattr(fields, name) is not None), names[0])
        prompt = task_prompt(model.llm.spec, getattr(fields, param), param)
        cut: Truncate | None = "end" if fields.truncate else None
        return encode_texts(
            model, fields.input, "input", parse_special=False, prompt=prompt, truncate=cut
        )

    def body(self, model: ServedModel, pools: list[Pooled], tokens: int) -> Iterable[bytes]:
        fields = self.fields
        format = self.format
        head = {"object": "list", "model": model.name}
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        yield encode_json({**head, "usage": usage})[:-1] + b',"data":['
        norm = 2 if fields.normalized else None
        for i, row in enumerate(embeddings_of(pools, fields.dimensions, norm)):
            yield b"," * (i > 0)
            yield b'{"object":"embedding","index":%d,"embedding":' % i
            yield json_row(row, format)
            yield b"}"
        yield b"]}"
