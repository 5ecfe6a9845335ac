"""Starting the answers of a chat."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from zinc.chat.format import ChatFormat
from zinc.chat.parser import TokenParser
from zinc.core.errors import TextTooLongError
from zinc.engine.constraint import Thinking
from zinc.server.apis.shared.chat.answer import CallCheck, ChatAnswer
from zinc.server.apis.shared.chat.prompt import Prompt, rendered
from zinc.server.apis.shared.chat.request import ChatRequest
from zinc.server.apis.shared.fields import MAX_ANSWERS, Constraint, constraints, with_seed
from zinc.server.apis.shared.service import Service, Shape, answer, client_of
from zinc.server.errors import context_exceeded
from zinc.server.runtime.job import ANYBODY, Client, Job
from zinc.server.runtime.loaded_model import LoadedModel
from zinc.server.runtime.runner import Generation
from zinc.server.runtime.tool_calls import grammar as forced_calls
from zinc.server.runtime.tool_calls.argument_check import check_available

RETRY_TEMPERATURE = 0.7  # at least


async def answer_chat(
    service: Service,
    request: Request,
    name: str | None,
    asked: ChatRequest,
    whole: Callable[[LoadedModel, Sequence[ChatAnswer]], Awaitable[Any]],
    events: Callable[[LoadedModel, Sequence[ChatAnswer]], AsyncGenerator[bytes]] | None,
    shape: Shape,
    ping_interval_s: float | None = None,
) -> Response:
    """Return the response to a conversation, by the model called `name`; see `service.answer`."""
    client = client_of(service, request)

    async def begin(model: LoadedModel) -> list[ChatAnswer]:
        return await start(model, asked, client)

    return await answer(service, request, name, begin, whole, events, shape, ping_interval_s)


async def start(
    model: LoadedModel, request: ChatRequest, client: Client = ANYBODY
) -> list[ChatAnswer]:
    """Queues the answers that a request asks for.

    Raises ApiError: 400 for what cannot be done, context_length_exceeded, 429 when busy.
    """
    model.runner.check_room(request.n)
    try:
        prompt = await rendered(model, request, model.context)
    except TextTooLongError as error:
        raise context_exceeded(
            error.n_tokens, model.context, request.param, at_least=not error.is_exact
        ) from None
    if len(prompt.ids) >= model.context:
        raise context_exceeded(len(prompt.ids), model.context, request.param)
    if request.thinking_budget is not None and prompt.format.thinking is None:
        # A bound on reasoning that there is not is kept; clients send one to every model.
        model.note("its chat format marks no reasoning, so thinking budgets have no effect")

    def reader() -> TokenParser:
        return TokenParser(
            model.tokenizer, prompt.format, request.tools, prompt.opened, request.params.stop
        )

    forced = await asyncio.to_thread(_forced, model, request, prompt.format)
    if forced is not None:
        constraint: Constraint | None = forced.constraint
    else:
        constraint = await asyncio.to_thread(_form, model, request, prompt.format)
    thinking = _thinking(model, request, prompt, constraint is not None)
    held = await asyncio.to_thread(constraints, model, constraint, request.n)
    breakers = await asyncio.to_thread(model.llm.dry_breakers, request.params)
    jobs = [
        Job(
            prompt.ids,
            with_seed(request.params, i),
            reader,
            thinking,
            held[i],
            one_call=request.one_call,
            priority=request.priority,
            dry_breakers=breakers,
            telemetry=request.telemetry,
        )
        for i in range(request.n)
    ]
    generations = model.runner.submit(jobs, client)
    if forced is None or not forced.unheld:
        return [ChatAnswer(generation) for generation in generations]
    return [
        ChatAnswer(generation, _check(model, forced, job, client))
        for generation, job in zip(generations, jobs, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Forced:
    """A constraint to calls of tools, and the schemas that it does not hold in full, by tool."""

    constraint: Constraint
    unheld: Mapping[str, Any]


def _forced(model: LoadedModel, request: ChatRequest, format: ChatFormat) -> _Forced | None:
    """Return the constraint to the calls that a request demands, or None. Raises ApiError.

    A demanded call goes before the form of the answer, which text has and calls have not.
    """
    if not request.forced_tools:
        return None
    several = not request.one_call and len(request.forced_tools) == len(request.tools or ())
    found = forced_calls.grammar(format, model.tokenizer, request.forced_tools, several)
    for name, keywords in found.dropped.items():
        check_available(name, keywords[0])
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") or {}
               for tool in request.forced_tools}  # fmt: skip
    return _Forced(
        Constraint("rules", found.source, "tool_choice"),
        {name: schemas[name] for name in found.dropped},
    )


def _check(model: LoadedModel, forced: _Forced, job: Job, client: Client) -> CallCheck:
    async def violation(calls: Sequence[tuple[str, str]]) -> str | None:
        return await model.arguments.first_violation(calls, forced.unheld)

    async def again(attempt: int) -> Generation:
        held = await asyncio.to_thread(constraints, model, forced.constraint, 1)
        params = with_seed(job.params, attempt * MAX_ANSWERS)
        # A greedy answer would be the same again.
        params = replace(params, temperature=max(params.temperature, RETRY_TEMPERATURE))
        (generation,) = model.runner.submit(
            [replace(job, params=params, constraint=held[0])], client
        )
        return generation

    return CallCheck(violation, again)


def _form(model: LoadedModel, request: ChatRequest, format: ChatFormat) -> Constraint | None:
    """Return the form of an answer that need not be a call, or None. Raises ApiError.

    With tools and a JSON form the answer is calls or JSON, as the model chooses.
    """
    form = request.constraint
    is_json = form is not None and form.kind in ("json_object", "json_schema")
    if form is None or not is_json or not request.tools or not format.has_calls:
        return form
    schema = {"type": "object"} if form.kind == "json_object" else form.source
    source = forced_calls.calls_or_json(
        format, model.tokenizer, request.tools, not request.one_call, schema, form.param
    )
    return Constraint("rules", source, form.param)


def _thinking(
    model: LoadedModel, request: ChatRequest, prompt: Prompt, constrained: bool
) -> Thinking | None:
    """Where the engine finds the reasoning, in token ids; a constraint holds from its end on."""
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
    return Thinking(start, end, inside, request.thinking_budget, opens)
