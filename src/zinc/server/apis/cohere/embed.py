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

from zinc.engine.readout import Pooled, Pooling, embeddings
from zinc.server.apis.shared.embeddings import (
    MAX_INPUTS,
    RowFormat,
    Truncate,
    answer_embeddings,
    encode_texts,
    json_rows,
)
from zinc.server.apis.shared.fields import QueueFields, Strings
from zinc.server.apis.shared.service import Service, read_fields
from zinc.server.apis.shared.task_prompts import task_prompt
from zinc.server.errors import ApiError, invalid
from zinc.server.http.body import Fields, FirstError
from zinc.server.http.responses import encode_json
from zinc.server.runtime.loaded_model import LoadedModel

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
        "END", description="the end that is cut off a text longer than the context"
    )
    max_tokens: int | None = Field(None, description="no effect: the context limits texts")


async def embed(service: Service, request: Request) -> Response:
    """Answer with the embeddings of texts in Cohere's form."""
    fields = await read_fields(service, request, CohereEmbedFields)
    if (fields.texts is None) == (fields.inputs is None):
        raise invalid("texts", "texts is missing", "give either texts or inputs")
    param, texts = ("texts", list[Any](fields.texts or ()))
    if fields.inputs is not None:
        param, texts = "inputs", [{"content": each.content} for each in fields.inputs]
    is_first = request.url.path.endswith("/v1/embed")
    plain = is_first and fields.embedding_types is None

    def check(model: LoadedModel) -> None:
        if model.llm.pooling is Pooling.NONE:
            raise ApiError(
                400,
                "this endpoint needs one vector for each text",
                "the server was started with --pooling none",
                "use /embedding",
            )
        most = model.llm.n_dimensions
        if (fields.output_dimension or 1) > most:
            raise invalid(
                "output_dimension",
                f"output_dimension is {fields.output_dimension}",
                f"embeddings of this model have {most}",
            )

    def body(model: LoadedModel, pools: list[Pooled], tokens: int) -> Iterable[bytes]:
        rows = embeddings(pools, fields.output_dimension)
        types = fields.embedding_types or ["float"]
        by_type = [
            b'"%b":%b' % (type.encode(), json_rows(rows, type)) for type in dict.fromkeys(types)
        ]
        yield encode_json({"id": str(uuid4())})[:-1]
        yield b',"embeddings":'
        yield json_rows(rows, "float") if plain else b"{%b}" % b",".join(by_type)
        version = "1" if is_first else "2"
        rest = {
            "texts": fields.texts or [],
            "response_type": "embeddings_floats" if plain else "embeddings_by_type",
            "meta": {
                "api_version": {"version": version},
                "billed_units": {"input_tokens": tokens},
            },
        }
        yield b"," + encode_json(rest)[1:]

    def encode(model: LoadedModel) -> list[list[int]]:
        prompt = task_prompt(model.llm.spec, fields.input_type, "input_type")
        cut = _CUTS[fields.truncate]
        return encode_texts(model, texts, param, parse_special=False, prompt=prompt, truncate=cut)

    return await answer_embeddings(
        service, request, fields.model, fields.priority, check, encode, body
    )
