"""POST /v1/completions: OpenAI's older API, which continues text or tokens.

https://platform.openai.com/docs/api-reference/completions. With a list of prompts, the choices are
the `n` answers of the first prompt, then those of the second, and so on. With `echo` and
`logprobs`, the prompt's tokens have log-probabilities too, except for the first one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from zinc.core.dataclass import dataclass
from zinc.engine.readout import PromptLogprobs
from zinc.engine.sampling import Sampled, SamplingParams
from zinc.server.apis.openai.common import (
    DONE,
    OPENAI,
    Members,
    NeutralFields,
    StreamOptions,
    check_count,
    no_members,
    response_head,
)
from zinc.server.apis.openai.usage import Usage, progress_members, timings_member, timings_object
from zinc.server.apis.shared import prompts
from zinc.server.apis.shared.fields import (
    MAX_ANSWERS,
    BiasField,
    Constraint,
    ConstraintFields,
    LlamaFields,
    QueueFields,
    ResponseFormat,
    SamplingFields,
    StopField,
    Tokens,
    biases,
    constraint_of,
    constraints,
    finite_logprob,
    sampling_params,
    telemetry_of,
    with_seed,
)
from zinc.server.apis.shared.infill import fill_prompt
from zinc.server.apis.shared.service import Service, answer, client_of, read_fields, record_answers
from zinc.server.apis.shared.text import PlainText, plain_text
from zinc.server.errors import invalid, unsupported
from zinc.server.http.fields import FirstError
from zinc.server.http.responses import event, merge
from zinc.server.runtime.job import End, Job, Telemetry
from zinc.server.runtime.reader import PlainReader
from zinc.server.runtime.runner import Generation
from zinc.server.runtime.served_model import ServedModel
from zinc.tokenizer import Tokenizer

MAX_LOGPROBS = 20
MAX_PROMPTS = 128

Prompt = str | Tokens | Annotated[list[str], FirstError()] | Annotated[list[Tokens], FirstError()]


class CompletionFields(SamplingFields, ConstraintFields, LlamaFields, NeutralFields, QueueFields):
    """A request for a completion."""

    prompt: Prompt
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=-1)
    n: int | None = None
    best_of: int | None = None
    stop: StopField = None
    echo: bool | None = None
    suffix: str | None = Field(
        None, description="the text after the answer, for fill-in-the-middle models"
    )
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    logit_bias: BiasField = None
    response_format: ResponseFormat | None = None


def jobs_of(
    model: ServedModel,
    texts: Sequence[str | list[Any]],
    params: SamplingParams,
    n: int,
    constraint: Constraint | None,
    scored: bool,
    priority: int,
    telemetry: Telemetry,
    suffix: str = "",
) -> list[Job]:
    """Return `n` jobs for each prompt in `texts`. Raises ApiError.

    scored: also compute the log-probabilities of the prompt's tokens. suffix: the text after the
    answer, for fill-in-the-middle models.
    """
    if suffix and model.tokenizer.fill is None:
        raise unsupported("suffix", "this model has no fill-in-the-middle markers")
    model.runner.check_room(n * len(texts))
    reader = partial(PlainReader, model.tokenizer, params.stop)
    per_answer = iter(constraints(model, constraint, n * len(texts)))
    breakers = model.llm.dry_breakers(params)
    room = 0 if params.max_tokens == 0 else 1
    encoded = (
        fill_prompt(model, text, suffix, param="suffix", answer=max(params.max_tokens or 0, 0))
        if suffix and isinstance(text, str)
        else prompts.encode(model, text, "prompt", room=room)
        for text in texts
    )
    return [
        Job(
            ids,
            with_seed(params, i),
            reader,
            constraint=next(per_answer),
            priority=priority,
            readout=PromptLogprobs(params.logprobs or 0) if scored else None,
            dry_breakers=breakers,
            telemetry=telemetry,
        )
        for ids in prompts.limited(model, encoded, "prompt")
        for i in range(n)
    ]


async def completions(
    service: Service, request: Request, members: Members = no_members
) -> Response:
    """Continue prompts. members: further members of the answer."""
    fields = await read_fields(service, request, CompletionFields)
    answers = _Answers(service, request, fields, members)
    return await answer(
        service,
        request,
        fields.model,
        answers.begin,
        answers.whole,
        answers.events if fields.stream else None,
        OPENAI,
        fields.sse_ping_interval,
    )


class _Answers:
    """The answers to a request, whole or streamed. Raises ApiError if a field is not valid.

    members: further members of the response, from the model and the ends of its answers.
    """

    def __init__(
        self, service: Service, request: Request, fields: CompletionFields, members: Members
    ) -> None:
        self._service, self._request, self._fields = service, request, fields
        self._members = members
        self._constraint = constraint_of(fields.response_format, fields)
        self._texts = prompts.as_list(fields.prompt, "prompt", MAX_PROMPTS)
        self._n = check_count(fields.n, "n", MAX_ANSWERS)
        if fields.best_of not in (None, self._n):
            raise invalid("best_of", f"best_of is {fields.best_of}", "only n answers are generated")
        self._scored = bool(fields.echo) and fields.logprobs is not None
        is_text = all(isinstance(text, str) for text in self._texts)
        if fields.suffix and (self._scored or not is_text):
            raise invalid(
                "suffix", "suffix needs text prompts, and cannot be used with echoed logprobs"
            )
        self._params = sampling_params(
            fields,
            max_tokens=fields.max_tokens,
            stop=fields.stop,
            logprobs=fields.logprobs,
            logit_bias=biases(fields.logit_bias),
        )
        self._head = {**response_head("cmpl"), "object": "text_completion"}

    async def begin(self, model: ServedModel) -> list[Generation]:
        """Submit the jobs of all answers."""
        fields = self._fields
        jobs = await asyncio.to_thread(
            jobs_of,
            model,
            self._texts,
            self._params,
            self._n,
            self._constraint,
            self._scored,
            fields.priority or 0,
            telemetry_of(fields, fields.stream),
            fields.suffix or "",
        )
        return model.runner.submit(jobs, client_of(self._service, self._request))

    async def whole(self, model: ServedModel, answers: Sequence[Generation]) -> dict[str, Any]:
        """Return the body of the response, once all answers have ended."""
        found = [await _collect(each) for each in answers]
        ends = [each.end for each in found]
        self._record(ends)
        return {
            **self._head,
            "model": model.name,
            "choices": [
                self._choice(model, index, job, each)
                for index, (job, each) in enumerate(
                    zip((a.job for a in answers), found, strict=True)
                )
            ],
            "usage": _usage(ends, self._n).openai(),
            "timings": timings_object(ends[0].timings),
            **self._members(model, ends),
        }

    def _choice(self, model: ServedModel, index: int, job: Job, found: _Whole) -> dict[str, Any]:
        logprobs = Logprobs(model.tokenizer).add([*_prompt_tokens(job), *found.tokens])
        return {
            "index": index,
            "text": self._echo(model, index) + found.text,
            "logprobs": logprobs if self._fields.logprobs is not None else None,
            "finish_reason": found.end.reason,
        }

    async def events(
        self, model: ServedModel, answers: Sequence[Generation]
    ) -> AsyncGenerator[bytes]:
        """Yield the events of the stream."""
        fields = self._fields
        with_usage = bool(fields.stream_options and fields.stream_options.include_usage)
        shared = {**self._head, "model": model.name, **({"usage": None} if with_usage else {})}
        logprobs = [Logprobs(model.tokenizer) for _ in answers]

        def chunk(index: int, text: str, tokens: Sequence[Sampled] = (), **more: object) -> bytes:
            found = logprobs[index].add(tokens) if fields.logprobs is not None else None
            choice = {"index": index, "text": text, "logprobs": found, "finish_reason": None}
            finish = more.pop("finish_reason", None)
            return event({**shared, "choices": [{**choice, "finish_reason": finish}], **more})

        to_echo = set(range(len(answers))) if fields.echo else set()
        if not self._scored:
            for index in sorted(to_echo):
                yield chunk(index, self._echo(model, index))
            to_echo = set()
        ends: list[End] = []
        async for index, item in merge([plain_text(each) for each in answers]):
            if isinstance(item, PlainText) and item.progress is not None:
                yield chunk(index, "", **progress_members(item.progress, fields.timings_per_token))
                continue
            if index in to_echo:  # now the prompt has log-probabilities
                to_echo.remove(index)
                yield chunk(index, self._echo(model, index), _prompt_tokens(answers[index].job))
            if isinstance(item, End):
                ends.append(item)
                timings = timings_object(item.timings)
                more = self._members(model, [item])
                yield chunk(index, "", finish_reason=item.reason, timings=timings, **more)
            elif item.text:
                yield chunk(index, item.text, item.tokens, **timings_member(item.timings))
        self._record(ends)
        if with_usage:
            timings = timings_object(ends[0].timings)
            usage = {"usage": _usage(ends, self._n).openai(), "timings": timings}
            yield event({**shared, "choices": [], **usage})
        yield DONE

    def _echo(self, model: ServedModel, index: int) -> str:
        """Return the prompt of answer `index` as text, if the request asks for it."""
        text = self._texts[index // self._n]
        if not self._fields.echo:
            return ""
        return text if isinstance(text, str) else model.tokenizer.decode(text)

    def _record(self, ends: Sequence[End]) -> None:
        record_answers(self._request, [(end.reason, end.timings) for end in ends])


@dataclass(frozen=True, slots=True)
class _Whole:
    """A complete answer."""

    text: str
    tokens: list[Sampled]
    end: End


async def _collect(generation: Generation) -> _Whole:
    parts: list[PlainText] = []
    async for item in plain_text(generation):
        if isinstance(item, End):
            tokens = [token for part in parts for token in part.tokens]
            return _Whole("".join(part.text for part in parts), tokens, item)
        parts.append(item)
    raise RuntimeError("the answer has no end")


def _prompt_tokens(job: Job) -> list[Sampled]:
    """Return the tokens of a processed prompt with their log-probabilities, if it was scored."""
    if not isinstance(job.readout, PromptLogprobs):
        return []
    return [Sampled(job.ids[0]), *job.readout.tokens]


def _usage(ends: Sequence[End], n: int) -> Usage:
    """Return the token counts of a request; a prompt with several answers counts once."""
    timings = [end.timings for end in ends]
    return replace(
        Usage.of(timings),
        prompt=sum(t.prompt_tokens for t in timings) // n,
        cached=sum(t.cached_tokens for t in timings) // n,
    )


class Logprobs:
    """Log-probabilities of one answer in the form of the completions API.

    `text_offset` continues over the pieces of an answer. The first token of a prompt has no
    log-probability, so its value is null.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._offset = 0

    def add(self, tokens: Sequence[Sampled]) -> dict[str, Any]:
        """Return the `logprobs` object of the next tokens."""
        texts = [self._text(s.token) for s in tokens]
        offsets = []
        for text in texts:
            offsets.append(self._offset)
            self._offset += len(text)
        return {
            "tokens": texts,
            "token_logprobs": [
                None if s.logprob is None else finite_logprob(s.logprob) for s in tokens
            ],
            "top_logprobs": [
                None
                if s.logprob is None
                else {self._text(t): finite_logprob(p) for t, p in s.top_logprobs}
                for s in tokens
            ],
            "text_offset": offsets,
        }

    def _text(self, token: int) -> str:
        return self._tokenizer.token_bytes(token).decode("utf-8", "replace")
