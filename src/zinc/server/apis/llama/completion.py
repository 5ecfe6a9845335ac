"""POST /completion and /infill of llama.cpp's server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from zinc.core.dataclass import dataclass
from zinc.server.apis.llama.fields import InfillFields, NativeFields
from zinc.server.apis.llama.result import CompletionResult
from zinc.server.apis.openai.common import OPENAI, check_count
from zinc.server.apis.openai.completions import MAX_PROMPTS
from zinc.server.apis.shared import prompts
from zinc.server.apis.shared.fields import (
    MAX_ANSWERS,
    Constraint,
    constraint_of,
    constraints,
    refuse,
    sampling_params,
    telemetry_of,
    with_seed,
)
from zinc.server.apis.shared.infill import IndentReader, fill_prompt
from zinc.server.apis.shared.service import Service, answer, client_of, read_fields, record_answers
from zinc.server.apis.shared.text import plain_text
from zinc.server.errors import invalid
from zinc.server.http.responses import event, merge
from zinc.server.runtime.job import End, Job
from zinc.server.runtime.runner import Generation
from zinc.server.runtime.served_model import ServedModel
from zinc.tokenizer import Tokenizer

_BIASED = 4096  # tokens of one text in logit_bias


_REFUSED: dict[str, tuple[Any, str]] = {
    "dynatemp_range": (0.0, "there is no dynamic temperature"),
    "image_data": ([], "only text is supported"),
}


async def completion(service: Service, request: Request) -> Response:
    """Continue prompts."""
    fields = await read_fields(service, request, NativeFields)

    def ids_of(model: ServedModel) -> list[list[int]]:
        found = prompts.as_list(fields.prompt, "prompt", MAX_PROMPTS)
        encoded = (prompts.encode(model, each, "prompt", parse_special=True) for each in found)
        return prompts.limited(model, encoded, "prompt")

    return await _complete(service, request, fields, ids_of)


async def infill(service: Service, request: Request) -> Response:
    """Fill the gap between a prefix and a suffix."""
    fields = await read_fields(service, request, InfillFields)
    if fields.samplers is not None:  # llama.cpp's editor plugins ask for its sampler "infill"
        fields.samplers = [name for name in fields.samplers if name != "infill"]

    def ids_of(model: ServedModel) -> list[list[int]]:
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
    ids_of: Callable[[ServedModel], list[list[int]]],
) -> Response:
    """Return the response to a request. ids_of: returns the token ids of each prompt."""
    if fields.dynatemp_range is None or fields.dynatemp_range == 0:
        fields.dynatemp_exponent = None
    refuse(fields, _REFUSED)
    n = check_count(fields.n_cmpl, "n_cmpl", MAX_ANSWERS)
    task = _Completion(service, request, fields, ids_of, constraint_of(None, fields), n)
    streamed = task.events if fields.stream else None
    interval = fields.sse_ping_interval
    return await answer(
        service, request, fields.model, task.begin, task.whole, streamed, OPENAI, interval
    )


@dataclass(frozen=True, slots=True)
class _Completion:
    """A request to continue prompts, with `n` answers for each. ids_of: as in `_complete`."""

    service: Service
    request: Request
    fields: NativeFields
    ids_of: Callable[[ServedModel], list[list[int]]]
    constraint: Constraint | None
    n: int

    async def begin(self, model: ServedModel) -> list[Generation]:
        jobs = await asyncio.to_thread(self.jobs, model)
        return model.runner.submit(jobs, client_of(self.service, self.request))

    def jobs(self, model: ServedModel) -> list[Job]:
        fields, n = self.fields, self.n
        params = sampling_params(
            fields,
            max_tokens=fields.n_predict if fields.n_predict is not None else fields.max_tokens,
            max_tokens_name="n_predict",
            stop=[s for s in fields.stop if s] if isinstance(fields.stop, list) else fields.stop,
            logprobs=fields.n_probs or None,
            logit_bias=_biases(fields.logit_bias, model.tokenizer),
        )
        params = replace(params, post_sampling_probs=bool(fields.post_sampling_probs))
        reader = partial(IndentReader, model.tokenizer, params.stop, fields.n_indent or 0)
        deadline = (fields.t_max_predict_ms or 0) / 1000
        found = self.ids_of(model)
        model.runner.check_room(n * len(found))
        per_answer = iter(constraints(model, self.constraint, n * len(found)))
        breakers = model.llm.dry_breakers(params)
        return [
            Job(
                ids,
                with_seed(params, i),
                reader,
                constraint=next(per_answer),
                deadline_s=deadline if deadline > 0 else None,
                priority=fields.priority or 0,
                dry_breakers=breakers,
                telemetry=telemetry_of(fields, fields.stream),
            )
            for ids in found
            for i in range(n)
        ]

    async def whole(self, model: ServedModel, answers: Sequence[Generation]) -> Any:
        results: list[Any] = []
        ends: list[End] = []
        for index, each in enumerate(answers):
            result = CompletionResult(model, self.fields, each, index)
            async for item in plain_text(each):
                if isinstance(item, End):
                    ends.append(item)
                    results.append(result.final(item))
                else:
                    result.add(item.text, item.tokens)
        self._record(ends)
        return results[0] if len(results) == 1 else results

    async def events(
        self, model: ServedModel, answers: Sequence[Generation]
    ) -> AsyncGenerator[bytes]:
        results = [CompletionResult(model, self.fields, x, i) for i, x in enumerate(answers)]
        ends: list[End] = []
        async for index, item in merge([plain_text(each) for each in answers]):
            if isinstance(item, End):
                ends.append(item)
                yield event(results[index].final(item, streamed=True))
            elif item.text or item.progress:
                yield event(results[index].piece(item))
        self._record(ends)

    def _record(self, ends: Sequence[End]) -> None:
        record_answers(self.request, [(end.reason, end.timings) for end in ends])


def _biases(value: dict[str, Any] | list[Any] | None, tokenizer: Tokenizer) -> dict[int, float]:
    """Return llama.cpp's `logit_bias` by token id. Raises ApiError.

    value: pairs of a token id, or a text for all of its tokens, and a bias; false forbids a token.
    """
    pairs = list(value.items()) if isinstance(value, dict) else value or []
    found: dict[int, float] = {}
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise invalid("logit_bias", "logit_bias is not valid", "it must contain pairs")
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
