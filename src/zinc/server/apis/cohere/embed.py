"""POST /v2/embed and /v1/embed: texts to vectors, in one or several number formats.

https://docs.cohere.com/reference/embed. The first version answers with a plain list of vectors if
the request names no `embedding_types`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal
from uuid import uuid4

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from zinc.core.dataclass import dataclass
from zinc.engine.readout import Pooled, embeddings
from zinc.server.apis.shared.embeddings import (
    MAX_INPUTS,
    RowFormat,
    Truncate,
    answer_embeddings,
    check_dimensions,
    check_one_vector,
    encode_texts,
    json_rows,
)
from zinc.server.apis.shared.fields import QueueFields, Strings
from zinc.server.apis.shared.service import Service, read_fields
from zinc.server.apis.shared.task_prompts import task_prompt
from zinc.server.errors import invalid
from zinc.server.http.fields import Fields, FirstError
from zinc.server.http.responses import encode_json
from zinc.server.runtime.served_model import ServedModel

_CUTS: dict[str, Truncate | None] = {"NONE": None, "START": "start", "END": "end"}


class EmbedInput(Fields):
    """A text as parts of content."""

    content: Annotated[list[dict[str, Any]], FirstError()]


class CohereEmbedFields(QueueFields):
    """A request for embeddings in Cohere's form."""

    model: str | None = None
    texts: Strings | None = Field(None, min_length=1, max_length=MAX_INPUTS)
    inputs: Annotated[list[EmbedInput], FirstError()] | None = Field(
        None, min_length=1, max_length=MAX_INPUTS, description="texts as parts of content"
    )
    input_type: str | None = Field(
        None, description="what the texts are for, such as search_query or search_document"
    )
    embedding_types: Annotated[list[RowFormat], FirstError()] | None = Field(None, min_length=1)
    output_dimension: int | None = Field(None, ge=1, description="keep only the first dimensions")
    truncate: Literal["NONE", "START", "END"] = Field(
        "END", description="the end at which a text longer than the context is truncated"
    )
    max_tokens: int | None = Field(None, description="no effect: the context limits texts")


async def embed(service: Service, request: Request) -> Response:
    """Answer with the embeddings of texts in Cohere's form."""
    fields = await read_fields(service, request, CohereEmbedFields)
    if (fields.texts is None) == (fields.inputs is None):
        raise invalid("texts", "texts is missing", "give either texts or inputs")
    reply = _Reply(fields, is_first=request.url.path.endswith("/v1/embed"))
    return await answer_embeddings(service, request, fields.model, fields.priority, reply)


@dataclass(frozen=True, slots=True)
class _Reply:
    """The reply to a request in Cohere's form. Implements `EmbeddingReply`.

    is_first: the request uses the first version of the API.
    """

    fields: CohereEmbedFields
    is_first: bool
    is_packed = False

    def check(self, model: ServedModel) -> None:
        check_one_vector(model)
        check_dimensions(model, self.fields.output_dimension, "output_dimension")

    def encode(self, model: ServedModel) -> list[list[int]]:
        fields = self.fields
        param, texts = "texts", list[Any](fields.texts or ())
        if fields.inputs is not None:
            param, texts = "inputs", [{"content": each.content} for each in fields.inputs]
        prompt = task_prompt(model.llm.spec, fields.input_type, "input_type")
        cut = _CUTS[fields.truncate]
        return encode_texts(model, texts, param, parse_special=False, prompt=prompt, truncate=cut)

    def body(self, model: ServedModel, pools: list[Pooled], tokens: int) -> Iterable[bytes]:
        fields, rows = self.fields, embeddings(pools, self.fields.output_dimension)
        plain = self.is_first and fields.embedding_types is None
        types = fields.embedding_types or ["float"]
        by_type = [
            b'"%b":%b' % (type.encode(), json_rows(rows, type)) for type in dict.fromkeys(types)
        ]
        yield encode_json({"id": str(uuid4())})[:-1]
        yield b',"embeddings":'
        yield json_rows(rows, "float") if plain else b"{%b}" % b",".join(by_type)
        rest = {
            "texts": fields.texts or [],
            "response_type": "embeddings_floats" if plain else "embeddings_by_type",
            "meta": {
                "api_version": {"version": "1" if self.is_first else "2"},
                "billed_units": {"input_tokens": tokens},
            },
        }
        yield b"," + encode_json(rest)[1:]
