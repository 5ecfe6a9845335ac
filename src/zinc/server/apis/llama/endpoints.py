"""The endpoints of llama.cpp's server: /completion, /infill, /tokenize, /props and their kin.

Fields and shapes as its README gives them, so that its clients work here. A slot here is a running
sequence: there is no fixed number of them beside what the engine runs at once.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from zinc import __version__
from zinc.engine.sampling import Sampled, SamplingParams
from zinc.server.apis.openai.chat import ChatFields, to_request
from zinc.server.apis.openai.completions import MAX_PROMPTS
from zinc.server.apis.openai.shapes import (
    OPENAI,
    check_count,
    progress_members,
    refuse,
    timings_member,
    timings_object,
    token_logprob,
)
from zinc.server.apis.shared import prompts
from zinc.server.apis.shared.chat import rendered
from zinc.server.apis.shared.fields import (
    MAX_ANSWERS,
    MAX_TOP_LOGPROBS,
    ConstraintFields,
    LlamaFields,
    QueueFields,
    SamplingFields,
    StopField,
    Strings,
    Tokens,
    constraint_of,
    constraints,
    sampling_params,
    telemetry_of,
    with_seed,
)
from zinc.server.apis.shared.infill import Chunk, IndentReader, fill_prompt
from zinc.server.apis.shared.service import Service, account, answer, client_of, read_fields
from zinc.server.apis.shared.text import PlainText, plain_text
from zinc.server.errors import ApiError, invalid
from zinc.server.http.body import Fields, FirstError
from zinc.server.http.responses import JSONAnswer, encode_json, event, merge
from zinc.server.runtime.pool import LoadedModel
from zinc.server.runtime.runner import End, Generation, Job
from zinc.tokenizer import Tokenizer

_ONE_MODEL = "the first one that the server has, unless it is named"
_LISTED_TOKENS = 4096
_BIASED = 4096  # tokens of one text in logit_bias


class NativeFields(SamplingFields, ConstraintFields, LlamaFields, QueueFields):
    """A completion by llama.cpp's API."""

    prompt: prompts.Prompt
    model: str | None = None
    stream: bool | None = None
    n_predict: int | None = Field(None, ge=-1)
    max_tokens: int | None = Field(None, ge=-1)
    n_cmpl: int | None = None
    stop: StopField = None
    logit_bias: dict[str, Any] | list[Any] | None = None
    n_probs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    return_tokens: bool | None = None
    t_max_predict_ms: int | None = None
    response_fields: Strings | None = None
    n_indent: int | None = Field(
        None,
        ge=0,
        le=1000,
        description="ends the answer before a further line that is indented by less",
    )
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    post_sampling_probs: bool | None = Field(
        None, description="`n_probs` reports the probabilities that tokens were drawn with"
    )
    lora: list[Any] | None = None
    image_data: list[Any] | None = None


_REFUSED: dict[str, tuple[Any, str]] = {
    "dynatemp_range": (0.0, "the temperature does not change on its own"),
    "lora": ([], "adapters are not supported"),
    "image_data": ([], "only text is understood"),
}


async def completion(service: Service, request: Request) -> Response:
    fields = await read_fields(service, request, NativeFields)

    def ids_of(model: LoadedModel) -> list[list[int]]:
        found = prompts.several(fields.prompt, "prompt", MAX_PROMPTS)
        encoded = (prompts.encode(model, each, "prompt", parse_special=True) for each in found)
        return prompts.bounded(model, encoded, "prompt")

    return await _complete(service, request, fields, ids_of)


class InfillFields(NativeFields):
    """A gap to be filled."""

    prompt: str = Field("", description="how the text in the gap begins")
    input_prefix: str = Field("", description="the text before the gap")
    input_suffix: str = Field("", description="the text behind it")
    input_extra: Annotated[list[Chunk], FirstError()] | None = Field(
        None, description="pieces of other files, the most important last"
    )


async def infill(service: Service, request: Request) -> Response:
    fields = await read_fields(service, request, InfillFields)
    if fields.samplers is not None:  # one that only llama.cpp has, and its editor plugins ask for
        fields.samplers = [name for name in fields.samplers if name != "infill"]

    def ids_of(model: LoadedModel) -> list[list[int]]:
        prompt = fill_prompt(
            model,
            fields.input_prefix,
            fields.input_suffix,
            param="input_prefix",
            extra=fields.input_extra or (),
            begun=fields.prompt,
            answer=max(fields.n_predict or fields.max_tokens or 0, 0),
        )
        return [prompt]

    return await _complete(service, request, fields, ids_of)


async def _complete(
    service: Service,
    request: Request,
    fields: NativeFields,
    ids_of: Callable[[LoadedModel], list[list[int]]],
) -> Response:
    """Answers to the prompts that `ids_of` makes of a request."""
    if fields.dynatemp_range is None or fields.dynatemp_range == 0:
        fields.dynatemp_exponent = None
    refuse(fields, _REFUSED)
    constraint = constraint_of(None, fields)
    n = check_count(fields.n_cmpl, "n_cmpl", MAX_ANSWERS)
    limit = fields.n_predict if fields.n_predict is not None else fields.max_tokens

    def jobs_of(model: LoadedModel) -> list[Job]:
        params = sampling_params(
            fields,
            max_tokens=limit,
            max_tokens_name="n_predict",
            stop=[s for s in fields.stop if s] if isinstance(fields.stop, list) else fields.stop,
            logprobs=fields.n_probs or None,
            logit_bias=_biases(fields.logit_bias, model.tokenizer),
        )
        params = replace(params, post_sampling_probs=bool(fields.post_sampling_probs))
        reader = partial(IndentReader, model.tokenizer, params.stop, fields.n_indent or 0)
        deadline = (fields.t_max_predict_ms or 0) / 1000
        found = ids_of(model)
        model.runner.check_room(n * len(found))
        held = iter(constraints(model, constraint, n * len(found)))
        breakers = model.llm.dry_breakers(params)
        return [
            Job(
                ids,
                with_seed(params, i),
                reader,
                constraint=next(held),
                deadline_s=deadline if deadline > 0 else None,
                priority=fields.priority or 0,
                dry_breakers=breakers,
                telemetry=telemetry_of(fields, fields.stream),
            )
            for ids in found
            for i in range(n)
        ]

    async def begin(model: LoadedModel) -> list[Generation]:
        jobs = await asyncio.to_thread(jobs_of, model)
        return model.runner.submit(jobs, client_of(service, request))

    async def whole(model: LoadedModel, answers: Sequence[Generation]) -> Any:
        results: list[Any] = []
        ends: list[End] = []
        for index, each in enumerate(answers):
            result = _Result(model, fields, each, index)
            async for item in plain_text(each):
                if isinstance(item, End):
                    ends.append(item)
                    results.append(result.final(item))
                else:
                    result.add(item.text, item.tokens)
        account(request, [(end.reason, end.timings) for end in ends])
        return results[0] if len(results) == 1 else results

    async def events(model: LoadedModel, answers: Sequence[Generation]) -> AsyncGenerator[bytes]:
        results = [_Result(model, fields, each, i) for i, each in enumerate(answers)]
        ends: list[End] = []
        async for index, item in merge([plain_text(each) for each in answers]):
            if isinstance(item, End):
                ends.append(item)
                yield event(results[index].final(item, streamed=True))
            elif item.text or item.progress:
                yield event(results[index].piece(item))
        account(request, [(end.reason, end.timings) for end in ends])

    streamed = events if fields.stream else None
    return await answer(
        service, request, fields.model, begin, whole, streamed, OPENAI, fields.sse_ping_interval
    )


class _Result:
    """What is known of one answer, in llama.cpp's shapes."""

    def __init__(
        self, model: LoadedModel, fields: NativeFields, generation: Generation, index: int
    ) -> None:
        self._model, self._fields = model, fields
        self._generation, self._index = generation, index
        self._text = ""
        self._tokens: list[Sampled] = []

    def add(self, text: str, tokens: Sequence[Sampled]) -> None:
        self._text += text
        self._tokens += tokens

    def piece(self, piece: PlainText) -> dict[str, Any]:
        tokens = piece.tokens
        self.add(piece.text, tokens)
        found: dict[str, Any] = {
            "index": self._index,
            "content": piece.text,
            "tokens": [s.token for s in tokens],
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": len(self._tokens),
            "tokens_evaluated": self._generation.n_prompt,
        }
        if piece.progress is not None:
            return found | progress_members(piece.progress, self._fields.timings_per_token)
        found |= timings_member(piece.timings)
        if self._fields.n_probs:
            found["completion_probabilities"] = self._probabilities(tokens)
        return found

    def final(self, end: End, streamed: bool = False) -> dict[str, Any]:
        t, params = end.timings, self._generation.job.params
        kind = "word" if end.stop is not None else {"stop": "eos"}.get(end.reason, "limit")
        wanted = self._fields.return_tokens and not streamed
        n_used = t.prompt_tokens + t.generated_tokens
        found: dict[str, Any] = {
            "index": self._index,
            "content": "" if streamed else self._text,
            "tokens": [s.token for s in self._tokens] if wanted else [],
            "id_slot": -1,
            "stop": True,
            "model": self._model.name,
            "tokens_predicted": t.generated_tokens,
            "tokens_evaluated": t.prompt_tokens,
            "generation_settings": settings(params, self._model),
            "prompt": self._model.tokenizer.decode(self._generation.job.ids, skip_special=False),
            "has_new_line": "\n" in self._text,
            "truncated": t.shifted_tokens > 0 or n_used >= self._model.context,
            "stop_type": kind,
            "stopping_word": end.stop or "",
            "tokens_cached": t.cached_tokens,
            "timings": timings_object(t),
        }
        if self._fields.n_probs and not streamed:
            found["completion_probabilities"] = self._probabilities(self._tokens)
        wanted_fields = self._fields.response_fields
        return _selected(found, wanted_fields) if wanted_fields else found

    def _probabilities(self, tokens: Sequence[Sampled]) -> list[dict[str, Any]]:
        drawn = bool(self._fields.post_sampling_probs)

        def one(token: int, logprob: float | None) -> dict[str, Any]:
            found = {"id": token, **token_logprob(self._model.tokenizer, token, logprob)}
            return found | {"prob": math.exp(found.pop("logprob"))} if drawn else found

        top = "top_probs" if drawn else "top_logprobs"
        return [
            {**one(s.token, s.logprob), top: [one(t, p) for t, p in s.top_logprobs]} for s in tokens
        ]


# Settings of samplers that this server does not have, at the values that switch them off.
_OFF = {
    "dynatemp_range": 0.0,
    "dynatemp_exponent": 1.0,
    "adaptive_target": -1.0,
    "adaptive_decay": 0.9,
}


def settings(params: SamplingParams, model: LoadedModel) -> dict[str, Any]:
    """Return the parameters under the names of llama.cpp's server."""
    banned = dict.fromkeys(model.tokenizer.eog_ids, -math.inf) if params.ignore_eos else {}
    renamed = {"max_tokens": "n_predict", "logprobs": "n_probs"}
    found: dict[str, Any] = {
        renamed.get(name, name): getattr(params, name) for name in SamplingParams.__slots__
    }
    found |= {
        **_OFF,
        "n_ctx": model.context,
        "n_predict": -1 if params.max_tokens is None else params.max_tokens,
        "n_probs": params.logprobs or 0,
        "logit_bias": [
            {"token": token, "bias": bias if bias > -1e9 else None}
            for token, bias in {**params.logit_bias, **banned}.items()
        ],
        "seed": 0xFFFFFFFF if params.seed is None else params.seed,
    }
    return found


def _selected(found: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the members of `found` called `names`; the name `a/b` stands for member b of a."""
    selected: dict[str, Any] = {}
    for name in names:
        value: Any = found
        for part in name.split("/"):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            selected[name] = value
    return selected


def _biases(value: dict[str, Any] | list[Any] | None, tokenizer: Tokenizer) -> dict[int, float]:
    """llama.cpp's `logit_bias`: pairs of token (or text, for all its tokens) and bias or false."""
    pairs = list(value.items()) if isinstance(value, dict) else value or []
    found: dict[int, float] = {}
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise invalid("logit_bias", "logit_bias is not valid", "it must hold pairs")
        key, bias = pair
        if bias is False:
            bias = float("-inf")
        if isinstance(bias, bool) or not isinstance(bias, int | float):
            raise invalid("logit_bias", "logit_bias is not valid", "a bias is a number or false")
        if isinstance(key, str) and not (key.isascii() and key.isdecimal() and len(key) < 10):
            tokens = tokenizer.encode(key, add_special=False, parse_special=True, limit=_BIASED)
        elif isinstance(key, bool) or not isinstance(key, int | str):
            raise invalid("logit_bias", "logit_bias is not valid", "a key is a token id or text")
        else:
            tokens = [int(key)]
        found.update(dict.fromkeys(tokens, float(bias)))
    return found


# -- tokens and templates -------------------------------------------------------------------------


class TokenizeFields(Fields):
    """Text to be cut into tokens."""

    content: str
    model: str | None = Field(None, description=_ONE_MODEL)
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeFields(Fields):
    """Tokens to be put together."""

    tokens: Tokens
    model: str | None = Field(None, description=_ONE_MODEL)


async def tokenize(service: Service, request: Request) -> Response:
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
        # A part at a time: one large list of megabytes of JSON would hold up every stream.
        data = await asyncio.to_thread(
            lambda: b"".join(_listed(ids, tokenizer if fields.with_pieces else None))
        )
    return Response(data, media_type="application/json")


def _listed(ids: Sequence[int], pieces: Tokenizer | None) -> Iterator[bytes]:
    """The answer of `/tokenize`."""
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
    fields = await read_fields(service, request, DetokenizeFields)
    async with service.pool.use(fields.model) as model:
        n_vocab = model.tokenizer.n_vocab
        if fields.tokens and not 0 <= min(fields.tokens) <= max(fields.tokens) < n_vocab:
            raise invalid(
                "tokens", "tokens has an id that there is not", f"ids lie below {n_vocab}"
            )
        text = await asyncio.to_thread(model.tokenizer.decode, fields.tokens, False)
        return JSONAnswer({"content": text})


async def apply_template(service: Service, request: Request) -> Response:
    fields = await read_fields(service, request, ChatFields)
    asked = to_request(fields)
    async with service.pool.use(fields.model) as model:
        prompt = await rendered(model, asked)
    return JSONAnswer({"prompt": prompt.text})


# -- the state of the server ----------------------------------------------------------------------


async def props(service: Service, request: Request) -> Response:
    async with service.pool.use(request.query_params.get("model")) as model:
        tokenizer = model.tokenizer
        defaults = settings(SamplingParams(**await service.sampling_of(model.name)), model)
        return JSONAnswer(
            {
                "default_generation_settings": {
                    "id": 0,
                    "id_task": -1,
                    "n_ctx": model.context,
                    "speculative": False,
                    "is_processing": bool(model.runner.live),
                    "params": defaults,
                },
                "total_slots": model.llm.engine.max_sequences,
                "model_alias": model.name,
                "model_path": str(model.llm.path),
                "chat_template": tokenizer.chat_template or "",
                "bos_token": _token_text(tokenizer, tokenizer.bos_id),
                "eos_token": _token_text(tokenizer, tokenizer.eos_id),
                "modalities": {"vision": False, "audio": False},
                "build_info": f"zinc {__version__}",
                "is_sleeping": False,
            }
        )


def _token_text(tokenizer: Tokenizer, id: int | None) -> str:
    return "" if id is None else tokenizer.text_of(id)


async def slots(service: Service, request: Request) -> Response:
    """Running and waiting sequences. What is said in them is not shown."""
    async with service.pool.use(request.query_params.get("model")) as model:
        live = list(model.runner.live)
        name = client_of(service, request).name

        def mine(generation: Generation) -> bool:
            return not service.config.api_keys or generation.client.name == name

        total = model.llm.engine.max_sequences
        if "fail_on_no_slot" in request.query_params and len(live) >= total:
            raise ApiError(503, "no slot is free", f"{len(live)} sequences run or wait")
        rows: list[dict[str, Any]] = [
            {
                "id": i,
                "n_ctx": model.context,
                "speculative": False,
                "is_processing": True,
                "is_waiting": not each.running,
                "n_prompt_tokens": each.n_prompt,
                # Stop strings and biases tell of what was asked, so other keys do not see them.
                **({"params": settings(each.job.params, model)} if mine(each) else {}),
                "next_token": {
                    "has_next_token": True,
                    "n_remain": -1
                    if each.job.params.max_tokens is None
                    else each.job.params.max_tokens - each.n_generated,
                    "n_decoded": each.n_generated,
                },
            }
            for i, each in enumerate(live)
        ]
        rows += [
            {"id": i, "n_ctx": model.context, "speculative": False, "is_processing": False}
            for i in range(len(live), total)
        ]
        return JSONAnswer(rows)
