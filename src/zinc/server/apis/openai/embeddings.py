"""POST /v1/embeddings, and llama.cpp's /embedding: texts to vectors.

https://platform.openai.com/docs/api-reference/embeddings. The texts of a request go to the engine a
few at a time, so that a client with thousands of them leaves the queue to others; how a text
becomes one row is the server's `--pooling`.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Iterable
from functools import partial
from typing import Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from zinc.engine.readout import Pooled, Pooling, embedding
from zinc.engine.sampling import SamplingParams
from zinc.engine.sequence import Timings
from zinc.ops.graph import FloatArray
from zinc.server.apis.openai.shapes import NeutralFields
from zinc.server.apis.shared import prompts
from zinc.server.apis.shared.fields import QueueFields
from zinc.server.apis.shared.service import Service, account, client_of, read_fields
from zinc.server.errors import ApiError, invalid
from zinc.server.http.responses import encode_json, record, stop, unless_disconnected
from zinc.server.runtime.pool import LoadedModel
from zinc.server.runtime.runner import Client, End, Job, PlainReader

MAX_INPUTS = 2048  # OpenAI's own limit
AT_A_TIME = 32  # of one request, in the engine or its queue
_NO_ANSWER = SamplingParams(max_tokens=0)
_INT16_SCALE = 32760.0

Texts = prompts.Prompt


class EmbeddingFields(NeutralFields, QueueFields):
    """Texts to be embedded."""

    input: Texts = Field(description="text or token ids, or a list of these")
    model: str | None = None
    dimensions: int | None = Field(None, ge=1, description="keep the first ones only")
    encoding_format: Literal["float", "base64"] = "float"


class NativeEmbeddingFields(QueueFields):
    """Texts to be embedded, by llama.cpp's API."""

    content: Texts | None = None
    input: Texts | None = None
    model: str | None = None
    embd_normalize: int = Field(
        2, ge=-1, le=1000, description="-1: none, 0: largest is 32760, p: divided by the p-norm"
    )
    encoding_format: Literal["float", "base64"] = "float"


async def embeddings(service: Service, request: Request) -> Response:
    fields = await read_fields(service, request, EmbeddingFields)

    def check(model: LoadedModel) -> None:
        if model.llm.pooling is Pooling.NONE:
            raise ApiError(
                400,
                "there are no embeddings in OpenAI's form",
                "this server was started with --pooling none",
                "ask /embedding",
            )
        if (fields.dimensions or 1) > model.llm.spec.hidden:
            raise invalid(
                "dimensions",
                f"dimensions is {fields.dimensions}",
                f"embeddings of this model have {model.llm.spec.hidden}",
            )

    def body(model: LoadedModel, pools: list[Pooled], tokens: int) -> Iterable[bytes]:
        head = {"object": "list", "model": model.name}
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        yield encode_json({**head, "usage": usage})[:-1] + b',"data":['
        for i, each in enumerate(pools):
            row = _encoded(embedding(each.row, fields.dimensions), fields.encoding_format)
            yield b"," * (i > 0)
            yield encode_json({"object": "embedding", "index": i, "embedding": row})
        yield b"]}"

    encode = partial(_encode_all, texts=fields.input, param="input", parse_special=False)
    return await _answer(service, request, fields.model, fields.priority, check, encode, body)


async def native_embeddings(service: Service, request: Request) -> Response:
    fields = await read_fields(service, request, NativeEmbeddingFields)
    if (fields.content is None) == (fields.input is None):
        raise invalid("content", "content is missing", "it or input must be given, and not both")
    param, texts = ("content", fields.content) if fields.input is None else ("input", fields.input)

    def body(model: LoadedModel, pools: list[Pooled], tokens: int) -> Iterable[bytes]:
        yield b"["
        for i, each in enumerate(pools):
            each_token = model.llm.pooling is Pooling.NONE
            rows = each.rows if each_token else [_normalised(each, fields.embd_normalize)]
            found = [_encoded(row, fields.encoding_format) for row in rows]
            yield b"," * (i > 0)
            yield encode_json({"index": i, "embedding": found})
        yield b"]"

    encode = partial(_encode_all, texts=texts or "", param=param, parse_special=True)
    return await _answer(
        service, request, fields.model, fields.priority, lambda model: None, encode, body
    )


async def _answer(
    service: Service,
    request: Request,
    name: str | None,
    priority: int | None,
    check: Callable[[LoadedModel], None],
    encode: Callable[[LoadedModel], list[list[int]]],
    body: Callable[[LoadedModel, list[Pooled], int], Iterable[bytes]],
) -> Response:
    async with service.pool.use(name) as model:
        record(request).model = model.name
        check(model)
        ids = await asyncio.to_thread(encode, model)
        work = _embed_all(model, ids, client_of(service, request), priority or 0)
        found = await unless_disconnected(request, work)
        account(request, [("stop", timings) for _, timings in found])
        tokens = sum(timings.prompt_tokens for _, timings in found)
        pools = [pool for pool, _ in found]
        # A row at a time: one large number of megabytes of JSON would hold up every stream.
        data = await asyncio.to_thread(lambda: b"".join(body(model, pools, tokens)))
    return Response(data, media_type="application/json")


def _encode_all(
    model: LoadedModel, texts: Texts, param: str, parse_special: bool
) -> list[list[int]]:
    found = prompts.several(texts, param, MAX_INPUTS)
    names = [param] if len(found) == 1 else [f"{param}[{i}]" for i in range(len(found))]
    encoded = (
        prompts.encode(model, text, name, parse_special=parse_special, room=0)
        for text, name in zip(found, names, strict=True)
    )
    return prompts.bounded(model, encoded, param)


async def _embed_all(
    model: LoadedModel, prompts: list[list[int]], client: Client, priority: int
) -> list[tuple[Pooled, Timings]]:
    gate = asyncio.Semaphore(AT_A_TIME)
    reader = partial(PlainReader, model.tokenizer, ())

    async def one(ids: list[int]) -> tuple[Pooled, Timings]:
        pool = Pooled(model.llm.pooling)
        job = Job(ids, _NO_ANSWER, reader, priority=priority, readout=pool)
        async with gate:
            (generation,) = model.runner.submit([job], client)
            async for item in generation:
                if isinstance(item, End):
                    timings = item.timings
        return pool, timings

    tasks = [asyncio.create_task(one(ids)) for ids in prompts]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await stop(tasks)


def _normalised(pool: Pooled, kind: int) -> FloatArray:
    """llama.cpp's `embd_normalize`."""
    if kind == 0:
        return embedding(pool.row, norm=float("inf")) * _INT16_SCALE
    return embedding(pool.row, norm=None if kind < 0 else kind)


def _encoded(row: FloatArray, format: str) -> str | list[float]:
    if format == "base64":
        return base64.b64encode(row.astype("<f4").tobytes()).decode()
    found: list[float] = row.tolist()
    return found
