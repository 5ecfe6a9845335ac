"""POST /tokenize, /detokenize and /apply-template of llama.cpp's server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from zinc.server.apis.openai.chat_request import ChatFields, to_request
from zinc.server.apis.shared import prompts
from zinc.server.apis.shared.chat.prompt import prompt_of
from zinc.server.apis.shared.fields import (
    Tokens,
)
from zinc.server.apis.shared.service import Service, read_fields
from zinc.server.errors import invalid
from zinc.server.http.fields import Fields
from zinc.server.http.responses import JSONResponse, encode_json
from zinc.tokenizer import Tokenizer

_ONE_MODEL = "the name of the model (default: the server's first model)"
_LISTED_TOKENS = 4096


# -- tokens and templates -------------------------------------------------------------------------


class TokenizeFields(Fields):
    """A request to split text into tokens."""

    content: str
    model: str | None = Field(None, description=_ONE_MODEL)
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeFields(Fields):
    """A request to join tokens to text."""

    tokens: Tokens
    model: str | None = Field(None, description=_ONE_MODEL)


async def tokenize(service: Service, request: Request) -> Response:
    """Answer with the tokens of a text."""
    fields = await read_fields(service, request, TokenizeFields)
    async with service.pool.use(fields.model) as model:
        tokenizer = model.tokenizer
        ids = await asyncio.to_thread(
            tokenizer.encode,
            fields.content,
            fields.add_special,
            fields.parse_special,
            limit=prompts.MAX_COUNTED_TOKENS,
        )
        # Encoded in another thread, part by part: megabytes of JSON would delay every stream.
        data = await asyncio.to_thread(
            lambda: b"".join(_listed(ids, tokenizer if fields.with_pieces else None))
        )
    return Response(data, media_type="application/json")


def _listed(ids: Sequence[int], pieces: Tokenizer | None) -> Iterator[bytes]:
    """Yield the response of /tokenize in parts. pieces: the tokenizer, if pieces are wanted."""
    yield b'{"tokens":['
    for at in range(0, len(ids), _LISTED_TOKENS):
        part: list[Any] = list(ids[at : at + _LISTED_TOKENS])
        if pieces is not None:
            part = [{"id": i, "piece": _piece(pieces, i)} for i in part]
        yield b"," * (at > 0) + encode_json(part)[1:-1]
    yield b"]}"


def _piece(tokenizer: Tokenizer, id: int) -> str | list[int]:
    piece = tokenizer.token_bytes(id)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


async def detokenize(service: Service, request: Request) -> Response:
    """Answer with the text of tokens."""
    fields = await read_fields(service, request, DetokenizeFields)
    async with service.pool.use(fields.model) as model:
        n_vocab = model.tokenizer.n_vocab
        if fields.tokens and not 0 <= min(fields.tokens) <= max(fields.tokens) < n_vocab:
            raise invalid("tokens", "tokens has an unknown token id", f"ids are below {n_vocab}")
        text = await asyncio.to_thread(model.tokenizer.decode, fields.tokens, False)
        return JSONResponse({"content": text})


async def apply_template(service: Service, request: Request) -> Response:
    """Answer with the prompt of a conversation as text."""
    fields = await read_fields(service, request, ChatFields)
    chat_request = to_request(fields)
    async with service.pool.use(fields.model) as model:
        prompt = await prompt_of(model, chat_request)
    return JSONResponse({"prompt": prompt.text})
