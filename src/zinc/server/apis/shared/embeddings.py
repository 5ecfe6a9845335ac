"""Embeddings of texts, for the endpoints of all APIs.

The texts of a request go to the engine in groups, so that a request with thousands of texts does
not fill the queue. The server's `--pooling` determines how a text becomes one vector.
"""

from __future__ import annotations

import asyncio
import base64
import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from zinc.core.errors import TextTooLongError
from zinc.engine.limits import check_embeds
from zinc.engine.readout import Pooled, Pooling
from zinc.engine.sequence import Timings
from zinc.ops.values import FloatArray
from zinc.server.apis.shared import prompts
from zinc.server.apis.shared.service import Service, client_of, record_answers
from zinc.server.errors import CONTEXT_EXCEEDED, ApiError, invalid
from zinc.server.http.responses import encode_json, record, unless_disconnected
from zinc.server.runtime.job import Client
from zinc.server.runtime.reading import Reading, total
from zinc.server.runtime.served_model import ServedModel

MAX_INPUTS = 2048  # OpenAI's own limit
GROUP_TEXTS = 32  # most texts of one request that are submitted together
# Requests with such short bodies are tokenised, and such few numbers encoded, without changing to
# another thread, which takes a tenth of a millisecond.
QUICK_BYTES = 8192
QUICK_NUMBERS = 4096
QUICK_PACKED_NUMBERS = 32768  # as base64
# Texts of one request are tokenised together if they have at most this many characters: the ids of
# all of them are then in memory before they are counted.
MAX_CHARACTERS_TOGETHER = 1 << 18
# A text is cut to this many characters for each token of the context before it is tokenised.
MAX_TOKEN_CHARACTERS = 64

T = TypeVar("T")
Texts = prompts.Prompt
Truncate = Literal["start", "end"]
RowFormat = Literal["float", "base64", "binary", "ubinary"]


class EmbeddingReply(Protocol):
    """The reply to a request for embeddings, in the form of one API."""

    @property
    def is_packed(self) -> bool:
        """Whether embeddings are base64, which is encoded faster than JSON numbers."""
        ...

    def check(self, model: ServedModel) -> None:
        """Raise ApiError if the model cannot answer."""

    def encode(self, model: ServedModel) -> list[list[int]]:
        """Return the token ids of each text. Raises ApiError."""
        ...

    def body(self, model: ServedModel, pools: list[Pooled], tokens: int) -> Iterable[bytes]:
        """Yield the parts of the response: the embeddings of `pools` and the prompt `tokens`."""
        ...


async def answer_embeddings(
    service: Service,
    request: Request,
    name: str | None,
    priority: int | None,
    reply: EmbeddingReply,
) -> Response:
    """Return the response to a request for embeddings. name: the model, as the client calls it."""
    async with service.pool.use(name) as model:
        record(request).model = model.name
        check_embeds(model.llm.spec.kind)
        reply.check(model)
        ids = await _run(partial(reply.encode, model), _body_bytes(request) <= QUICK_BYTES)
        client = client_of(service, request)
        work = read_all(model, ids, client, priority or 0, model.llm.text_pool)
        pools, timings = await unless_disconnected(request, work)
        record_answers(request, [("stop", timings)])
        tokens = timings.prompt_tokens
        # Encoded row by row: megabytes of JSON would delay every stream.
        n_rows = tokens if model.llm.pooling is Pooling.NONE else len(pools)
        most = QUICK_PACKED_NUMBERS if reply.is_packed else QUICK_NUMBERS
        is_quick = n_rows * model.llm.n_dimensions <= most
        data = await _run(lambda: b"".join(reply.body(model, pools, tokens)), is_quick)
    return Response(data, media_type="application/json")


def check_one_vector(model: ServedModel) -> None:
    """Raise ApiError if the server returns a vector for each token, not one for each text."""
    if model.llm.pooling is Pooling.NONE:
        raise ApiError(
            400,
            "this endpoint needs one vector for each text",
            "the server was started with --pooling none",
            "use /embedding",
        )


def check_dimensions(model: ServedModel, wanted: int | None, param: str) -> None:
    """Raise ApiError if the field `param` wants more dimensions than embeddings have."""
    if (wanted or 1) > model.llm.n_dimensions:
        raise invalid(
            param,
            f"{param} is {wanted}",
            f"embeddings of this model have {model.llm.n_dimensions}",
        )


async def _run(work: Callable[[], T], is_quick: bool) -> T:
    """Return the result of `work`, which runs in another thread unless it is quick."""
    return work() if is_quick else await asyncio.to_thread(work)


def _body_bytes(request: Request) -> float:
    """Return the size of a request's body by its Content-Length; infinity without the header."""
    length = request.headers.get("content-length", "")
    return int(length) if length.isdecimal() and len(length) < 20 else math.inf


def encode_texts(
    model: ServedModel,
    texts: Texts,
    param: str,
    parse_special: bool,
    prompt: str = "",
    truncate: Truncate | None = None,
) -> list[list[int]]:
    """Return the token ids of each text in `texts`, the value of the field `param`.

    prompt: text to put before each text, but not before token ids. truncate: which end to cut off a
    text that is longer than the context; None refuses such a text.
    """
    found = prompts.as_list(texts, param, MAX_INPUTS)
    names = [param] if len(found) == 1 else [f"{param}[{i}]" for i in range(len(found))]
    whole = [prompt + text for text in found if isinstance(text, str)]
    if len(whole) == len(found) > 1 and sum(map(len, whole)) <= MAX_CHARACTERS_TOGETHER:
        try:
            together = model.tokenizer.encode_all(whole, parse_special, limit=model.context)
        except TextTooLongError:
            pass  # the code below finds the text, and cuts it or names it in an error
        else:
            parts = zip(together, names, strict=True)
            fitting = (prompts.checked(model, ids, name, room=0) for ids, name in parts)
            return prompts.limited(model, fitting, param)

    def encoded(text: str | list[Any], name: str) -> list[int]:
        whole = prompt + text if isinstance(text, str) else text
        try:
            return prompts.encode(model, whole, name, parse_special=parse_special, room=0)
        except ApiError as error:
            if truncate is None or not isinstance(text, str) or error.kind != CONTEXT_EXCEEDED:
                raise
            return _cut(model, prompt, text, truncate)

    each = (encoded(text, name) for text, name in zip(found, names, strict=True))
    return prompts.limited(model, each, param)


def _cut(model: ServedModel, prompt: str, text: str, truncate: Truncate) -> list[int]:
    """Return the ids of the part of a text that fits the context, after the prompt."""
    tokenizer = model.tokenizer
    frame = tokenizer.encode("")  # BOS and EOS, as far as the model adds them
    n_before = int(tokenizer.add_bos and tokenizer.bos_id is not None)
    most = model.context * MAX_TOKEN_CHARACTERS
    if truncate == "end":
        body = tokenizer.encode(prompt + text[:most], add_special=False)
        kept = body[: model.context - len(frame)]
    else:
        first = tokenizer.encode(prompt, add_special=False) if prompt else []
        body = tokenizer.encode(text[-most:], add_special=False)
        kept = first + body[len(body) - (model.context - len(frame) - len(first)) :]
    return frame[:n_before] + kept + frame[n_before:]


async def read_all(
    model: ServedModel,
    texts: list[list[int]],
    client: Client,
    priority: int,
    make_pool: Callable[[], Pooled],
) -> tuple[list[Pooled], Timings]:
    """Run texts without an answer; return the pooled rows of each, and the timings of all.

    Two groups of texts are in the engine or its queue at a time. The engine thus has texts for its
    next step while the results of the last one are collected. A group takes a quarter of the room
    in the queue, at most GROUP_TEXTS.
    """
    runner = model.runner
    pools = [make_pool() for _ in texts]
    size = min(GROUP_TEXTS, max(1, runner.room // 4))
    readings: list[Reading] = []
    timings: list[Timings] = []
    try:
        for first in range(0, len(texts), size):
            group = slice(first, first + size)
            readings.append(runner.read(texts[group], pools[group], priority, client))
            if len(readings) > 1:
                timings.append(await readings[-2].end())
        if readings:
            timings.append(await readings[-1].end())
    finally:
        for each in readings[len(timings) :]:
            runner.cancel_reading(each)
    return pools, total(timings)


def encode_row(row: FloatArray, format: RowFormat) -> str | list[float] | list[int]:
    """Return an embedding as a list of numbers, or as base64 of little-endian float32.

    binary, ubinary: the signs of eight dimensions per byte, the first one in the highest bit, 1 for
    positive; as signed numbers byte - 128.
    """
    if format in ("binary", "ubinary"):
        packed = np.packbits(row > 0).astype(np.int64)
        signs: list[int] = (packed if format == "ubinary" else packed - 128).tolist()
        return signs
    if format == "base64":
        return _base64(row).decode()
    found: list[float] = row.tolist()
    return found


def json_row(row: FloatArray, format: RowFormat) -> bytes:
    """Return an embedding as JSON, in the form of `encode_row`.

    Floats have nine digits, which identify any float32, and take a third of the time of JSON's
    seventeen. Raises ValueError for NaN and infinity.
    """
    if format == "base64":
        return b'"%b"' % _base64(row)
    if format != "float":
        return encode_json(encode_row(row, format))
    if not np.isfinite(row).all():
        raise ValueError("an embedding is not finite")
    return b"[%b]" % b",".join([b"%.9g"] * len(row)) % tuple(row.tolist())


def json_rows(rows: Iterable[FloatArray], format: RowFormat) -> bytes:
    """Return a JSON list of embeddings."""
    return b"[%b]" % b",".join(json_row(row, format) for row in rows)


def _base64(row: FloatArray) -> bytes:
    return base64.b64encode(row.astype("<f4", copy=False).tobytes())
