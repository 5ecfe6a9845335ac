"""POST /v1/rerank and its aliases: documents ranked by how well they suit a query.

The fields and the answer are those of Jina, Cohere, vLLM and llama.cpp's server. With `texts` in
place of `documents` they are those of Hugging Face's Text Embeddings Inference, as in llama.cpp.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any
from uuid import uuid4

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from zinc.core.errors import TextTooLongError
from zinc.engine.limits import check_ranks
from zinc.llm.answers import ranked
from zinc.server.apis.shared import prompts
from zinc.server.apis.shared.embeddings import read_all
from zinc.server.apis.shared.fields import QueueFields, Strings
from zinc.server.apis.shared.service import Service, client_of, read_fields, record_answers
from zinc.server.errors import context_exceeded, invalid
from zinc.server.http.fields import Fields, FirstError
from zinc.server.http.responses import JSONResponse, record, unless_disconnected
from zinc.server.runtime.served_model import ServedModel

MAX_DOCUMENTS = 2048


class Document(Fields):
    """A document as an object."""

    text: str


class RerankFields(QueueFields):
    """A request to rank documents."""

    query: str
    documents: Annotated[list[str | Document], FirstError()] | None = Field(
        None, min_length=1, max_length=MAX_DOCUMENTS, description="texts, or objects with `text`"
    )
    texts: Strings | None = Field(
        None,
        min_length=1,
        max_length=MAX_DOCUMENTS,
        description="`documents`, for an answer in the form of Text Embeddings Inference",
    )
    model: str | None = None
    top_n: int | None = Field(None, ge=0, description="how many to return (default, 0: all)")
    return_documents: bool = False
    return_text: bool = False


async def rerank(service: Service, request: Request) -> Response:
    """Answer with the documents, the best first, and their scores."""
    fields = await read_fields(service, request, RerankFields)
    if (fields.documents is None) == (fields.texts is None):
        raise invalid("documents", "documents is missing", "give either documents or texts")
    param, given = ("texts", fields.texts) if fields.documents is None else ("documents", None)
    texts = given or [d if isinstance(d, str) else d.text for d in fields.documents or ()]
    async with service.pool.use(fields.model) as model:
        record(request).model = model.name
        check_ranks(model.llm.spec.kind)
        pairs = await asyncio.to_thread(_encode, model, fields.query, texts, param)
        work = read_all(
            model, pairs, client_of(service, request), fields.priority or 0, model.llm.rank_pool
        )
        pools, timings = await unless_disconnected(request, work)
        record_answers(request, [("stop", timings)])
        scores = await asyncio.to_thread(lambda: [*map(model.llm.rank_score, pools)])
    n_tokens = timings.prompt_tokens
    best = ranked(scores, fields.top_n or None)
    if fields.texts is not None:
        return JSONResponse(
            [
                {"index": each.index, "score": each.score}
                | ({"text": texts[each.index]} if fields.return_text else {})
                for each in best
            ]
        )
    results: list[dict[str, Any]] = [
        {"index": each.index, "relevance_score": each.score}
        | ({"document": {"text": texts[each.index]}} if fields.return_documents else {})
        for each in best
    ]
    return JSONResponse(
        {
            "id": f"rerank-{uuid4().hex}",
            "object": "list",
            "model": model.name,
            "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
            "results": results,
        }
    )


def _encode(model: ServedModel, query: str, texts: list[str], param: str) -> list[list[int]]:
    """Return the token ids of `query` with each of `texts`, the value of the field `param`."""

    def encoded(text: str, name: str) -> list[int]:
        try:
            return model.llm.encode_pair(query, text)
        except TextTooLongError as error:
            raise context_exceeded(
                error.n_tokens, model.context, name, at_least=not error.is_exact
            ) from None

    each = (encoded(text, f"{param}[{i}]") for i, text in enumerate(texts))
    return prompts.limited(model, each, param)
