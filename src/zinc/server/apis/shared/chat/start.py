"""The start of a chat: from a `ChatRequest` to its answers, queued for the engine.

    ChatRequest -> prompt (template, token ids) -> constraints -> Runner -> ChatAnswer

The APIs translate their requests to `ChatRequest` and the pieces of each answer back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from zinc.chat.format import ChatFormat
from zinc.chat.parser import TokenParser
from zinc.core.dataclass import dataclass
from zinc.core.errors import TextTooLongError
from zinc.engine import constraint as engine
from zinc.server.apis.shared.chat.answer import CallCheck, ChatAnswer
from zinc.server.apis.shared.chat.constraint import AnswerConstraint, answer_constraint
from zinc.server.apis.shared.chat.prompt import Prompt, prompt_of
from zinc.server.apis.shared.chat.request import ChatRequest
from zinc.server.apis.shared.fields import MAX_ANSWERS, constraints, with_seed
from zinc.server.apis.shared.service import Service, StreamEvents, answer, client_of
from zinc.server.errors import context_exceeded, invalid
from zinc.server.runtime.job import ANYBODY, Client, Job
from zinc.server.runtime.runner import Generation
from zinc.server.runtime.served_model import ServedModel

MIN_RETRY_TEMPERATURE = 0.7  # a greedy retry would repeat the answer


async def answer_chat(
    service: Service,
    request: Request,
    name: str | None,
    chat_request: ChatRequest,
    whole: Callable[[ServedModel, Sequence[ChatAnswer]], Awaitable[Any]],
    events: Callable[[ServedModel, Sequence[ChatAnswer]], AsyncGenerator[bytes]] | None,
    stream_events: StreamEvents,
    ping_interval_s: float | None = None,
) -> Response:
    """Return the response to `chat_request`, answered by the model called `name`.

    The other parameters are those of `service.answer`.
    """
    client = client_of(service, request)

    async def begin(model: ServedModel) -> list[ChatAnswer]:
        return await start(model, chat_request, client)

    return await answer(
        service, request, name, begin, whole, events, stream_events, ping_interval_s
    )


async def count_prompt_tokens(service: Service, name: str | None, chat_request: ChatRequest) -> int:
    """Return the number of tokens of the prompt of `chat_request` for the model called `name`."""
    async with service.pool.use(name) as model:
        prompt = await prompt_of(model, chat_request)
    return len(prompt.ids)


async def start(
    model: ServedModel, request: ChatRequest, client: Client = ANYBODY
) -> list[ChatAnswer]:
    """Queue the `request.n` answers of `request` and return them.

    Raises ApiError: 400 for a request that cannot be served, with the code
    context_length_exceeded for a prompt that does not fit, and 429 if the queue is full.
    """
    model.runner.check_room(request.n)
    prompt = await _prompt(model, request)
    if request.thinking_budget is not None and prompt.format.thinking is None:
        # Clients send a budget to every model; one without reasoning always keeps it.
        model.note(
            "its chat format has no markers for reasoning, so thinking budgets have no effect"
        )
    prepared = await _prepare(model, request, prompt.format)
    thinking = _thinking(model, request, prompt, prepared.answer.constraint is not None)

    def reader() -> TokenParser:
        return TokenParser(
            model.tokenizer, prompt.format, request.tools, prompt.opened, request.params.stop
        )

    jobs = [
        Job(
            prompt.ids,
            with_seed(request.params, i),
            reader,
            thinking,
            constraint,
            one_call=request.one_call,
            priority=request.priority,
            dry_breakers=prepared.dry_breakers,
            telemetry=request.telemetry,
            prediction=prepared.prediction,
        )
        for i, constraint in enumerate(prepared.constraints)
    ]
    generations = model.runner.submit(jobs, client)
    if not prepared.answer.unchecked:
        return [ChatAnswer(generation) for generation in generations]
    return [
        ChatAnswer(generation, _call_check(model, prepared.answer, job, client))
        for generation, job in zip(generations, jobs, strict=True)
    ]


async def _prompt(model: ServedModel, request: ChatRequest) -> Prompt:
    """Return the prompt of `request`. Raises ApiError if it leaves no room in the context."""
    try:
        prompt = await prompt_of(model, request, model.context)
    except TextTooLongError as error:
        raise context_exceeded(
            error.n_tokens, model.context, request.param, at_least=not error.is_exact
        ) from None
    if len(prompt.ids) >= model.context:
        raise context_exceeded(len(prompt.ids), model.context, request.param)
    return prompt


@dataclass(frozen=True, slots=True)
class _Prepared:
    """The parts of a request that are slow to build.

    They are a constraint for each answer, the DRY breakers and the ids of the predicted text.
    """

    answer: AnswerConstraint
    constraints: Sequence[engine.Constraint | None]
    dry_breakers: Collection[Sequence[int]]
    prediction: Sequence[int]


async def _prepare(model: ServedModel, request: ChatRequest, format: ChatFormat) -> _Prepared:
    """Build what is slow to build for `request`. Raises ApiError.

    This runs in another thread, unless there is nothing to build: changing threads costs time to
    the first token. It is not part of rendering the prompt, because compiling a grammar would
    occupy one of the model's few renderings.
    """

    def build() -> _Prepared:
        found = answer_constraint(model, request, format)
        return _Prepared(
            found,
            constraints(model, found.constraint, request.n),
            model.llm.dry_breakers(request.params),
            _predicted_ids(model, request.prediction),
        )

    is_quick = not (
        request.forced_tools
        or request.constraint
        or request.params.dry_multiplier
        or request.prediction
    )
    return build() if is_quick else await asyncio.to_thread(build)


def _predicted_ids(model: ServedModel, text: str) -> Sequence[int]:
    """Return the ids of a predicted text. Raises ApiError if no answer can be that long."""
    if not text or model.llm.engine.speculation is None:
        return ()
    try:
        return model.tokenizer.encode(text, add_special=False, limit=model.context)
    except TextTooLongError as error:
        n_tokens = f"{'' if error.is_exact else 'at least '}{error.n_tokens} tokens"
        raise invalid(
            "prediction",
            "prediction is too long",
            f"it has {n_tokens}, and the context {model.context}",
            "send the part that the answer repeats",
        ) from None


def _call_check(
    model: ServedModel, answer: AnswerConstraint, job: Job, client: Client
) -> CallCheck:
    """Return the check of the calls that `job` generates."""

    async def violation(calls: Sequence[tuple[str, str]]) -> str | None:
        return await model.arguments.first_violation(calls, answer.unchecked)

    async def retry(attempt: int) -> Generation:
        (constraint,) = await asyncio.to_thread(constraints, model, answer.constraint, 1)
        params = with_seed(job.params, attempt * MAX_ANSWERS)
        params = replace(params, temperature=max(params.temperature, MIN_RETRY_TEMPERATURE))
        (generation,) = model.runner.submit(
            [replace(job, params=params, constraint=constraint)], client
        )
        return generation

    return CallCheck(violation, retry)


def _thinking(
    model: ServedModel, request: ChatRequest, prompt: Prompt, constrained: bool
) -> engine.Thinking | None:
    """Return the markers of the reasoning as token ids; a constraint applies after its end.

    None if the format has no reasoning, or if a constrained answer begins without it.
    """
    marks = prompt.format.thinking
    wanted = bool(request.template_args.get("enable_thinking"))
    if marks is None or (constrained and not wanted and not prompt.opened):
        return None
    start, end = (
        tuple(model.tokenizer.encode(mark, add_special=False, parse_special=True))
        for mark in (marks.begin, marks.end)
    )
    inside = bool(prompt.opened)
    opens = constrained and not inside
    return engine.Thinking(start, end, inside, request.thinking_budget, opens)
