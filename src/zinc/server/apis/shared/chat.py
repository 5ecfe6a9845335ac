"""From a conversation to the events of its answers: what all chat APIs have in common.

    ChatRequest → template → token ids → Runner → events, tokens, and how each answer ended

The APIs translate their messages into OpenAI's shape before, and the events into theirs after.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from zinc.chat.events import Answer, CallArguments, CallEnd, CallStart, Content, Event
from zinc.chat.format import ChatFormat
from zinc.chat.messages import prepare
from zinc.chat.parser import TokenParser
from zinc.chat.template import is_variable
from zinc.core.errors import RequestError, TextTooLongError, UnsupportedError
from zinc.engine.constraint import Thinking
from zinc.engine.sampling import Sampled, SamplingParams
from zinc.engine.sequence import Timings
from zinc.server.apis.shared.fields import MAX_ANSWERS, Constraint, constraints, with_seed
from zinc.server.apis.shared.prompts import MAX_COUNTED_TOKENS
from zinc.server.apis.shared.service import Service, Shape, answer, client_of
from zinc.server.errors import ApiError, context_exceeded, invalid
from zinc.server.runtime.pool import LoadedModel
from zinc.server.runtime.runner import (
    ANYBODY,
    NO_TELEMETRY,
    Client,
    End,
    Generation,
    Job,
    Progress,
    Telemetry,
)
from zinc.server.runtime.tool_calls import grammar as forced_calls
from zinc.server.runtime.tool_calls.argument_check import check_available
from zinc.tokenizer.specials import SHIELD

MAX_ATTEMPTS = 3  # at a call that has to be checked
RETRY_TEMPERATURE = 0.7  # at least
_CALL_EVENTS = (CallStart, CallArguments, CallEnd)


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A conversation to be continued, in OpenAI's shape.

    With `forced_tools` an answer is a call of one of them. A last message of the assistant is the
    beginning of the answer. With `one_call` an answer ends after its first call. `thinking_budget`
    bounds the reasoning, in tokens. With `truncate` the oldest turns are left out when the prompt
    does not fit. `param` names the field that holds the messages, for errors.
    """

    messages: Sequence[Mapping[str, Any]]
    params: SamplingParams
    tools: Sequence[Mapping[str, Any]] | None = None
    forced_tools: Sequence[Mapping[str, Any]] = ()
    one_call: bool = False
    template_args: Mapping[str, Any] = field(default_factory=dict)
    n: int = 1
    constraint: Constraint | None = None
    thinking_budget: int | None = None
    priority: int = 0
    telemetry: Telemetry = NO_TELEMETRY
    truncate: bool = False
    param: str = "messages"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered conversation: its text, its token ids, and how the answer is to be read."""

    text: str
    ids: list[int]
    format: ChatFormat
    opened: str


@dataclass(frozen=True, slots=True)
class Finished:
    """How an answer ended. reason: "stop", "length" or "calls"."""

    reason: str
    stop: str | None
    timings: Timings
    reasoning_tokens: int


@dataclass(frozen=True, slots=True)
class Piece:
    """An event, and the tokens that content is made of; empty where it tells of the prompt."""

    event: Event
    tokens: tuple[Sampled, ...] = ()
    timings: Timings | None = None
    progress: Progress | None = None


@dataclass(slots=True)
class Collected:
    """A whole answer."""

    answer: Answer = field(default_factory=Answer)
    tokens: list[Sampled] = field(default_factory=list)
    end: Finished | None = None

    def add(self, item: Piece | Finished) -> None:
        if isinstance(item, Finished):
            self.end = item
            return
        self.tokens += item.tokens
        self.answer.add(item.event)

    @property
    def finished(self) -> Finished:
        if self.end is None:
            raise RuntimeError("the answer has no end")
        return self.end


@dataclass(frozen=True, slots=True)
class CallCheck:
    """The check of a complete answer's calls, and the way to generate the answer again.

    violation: why its calls, pairs of name and arguments, are not valid. again: starts the answer
    anew; the argument counts from 1.
    """

    violation: Callable[[Sequence[tuple[str, str]]], Awaitable[str | None]]
    again: Callable[[int], Awaitable[Generation]]


class ChatAnswer:
    """One answer on its way.

    With a `check`, its calls come once all of them are whole and valid. Reasoning streams as it is
    made, of the first attempt only.
    """

    def __init__(self, generation: Generation, check: CallCheck | None = None) -> None:
        self.generation = generation
        self._check = check

    def __aiter__(self) -> AsyncGenerator[Piece | Finished]:
        return self._pieces() if self._check is None else self._checked(self._check)

    async def _checked(self, check: CallCheck) -> AsyncGenerator[Piece | Finished]:
        why: str | None = None
        for attempt in range(MAX_ATTEMPTS):
            if attempt:
                self.generation = await check.again(attempt)
            held: list[Piece | Finished] = []
            async with aclosing(self._pieces()) as pieces:
                async for piece in pieces:
                    if isinstance(piece, Finished) or isinstance(piece.event, _CALL_EVENTS):
                        held.append(piece)
                    elif attempt == 0:
                        yield piece
            why = await check.violation(_whole_calls(held))
            if why is None:
                for piece in held:
                    yield piece
                return
        raise ApiError(
            500,
            f"the model wrote no valid call in {MAX_ATTEMPTS} attempts",
            f"in the last one, {why}",
            "simplify the tool's schema, or try again",
            code="invalid_tool_arguments",
        )

    async def _pieces(self) -> AsyncGenerator[Piece | Finished]:
        pending: list[Sampled] = []
        n_calls, reasoning_tokens = 0, 0
        async for item in self.generation:
            if isinstance(item, Progress):
                yield Piece(Content(""), progress=item)
                continue
            if not isinstance(item, End):
                reasoning_tokens += item.thinking
                # Log-probabilities are given for the content's tokens alone.
                pending = [] if item.thinking else [*pending, item.sampled]
            for event in item.events:
                tokens: tuple[Sampled, ...] = ()
                if isinstance(event, Content):
                    tokens, pending = tuple(pending), []
                elif isinstance(event, CallEnd):
                    n_calls += event.complete
                    pending = []
                yield Piece(event, tokens, item.timings)
            if isinstance(item, End):
                reason = "calls" if n_calls and item.reason == "stop" else item.reason
                yield Finished(reason, item.stop, item.timings, reasoning_tokens)

    def cancel(self) -> None:
        self.generation.cancel()

    async def collect(self) -> Collected:
        whole = Collected()
        async for item in self:
            whole.add(item)
        return whole


def _whole_calls(pieces: Sequence[Piece | Finished]) -> list[tuple[str, str]]:
    """Names and arguments of the calls that are complete."""
    calls = Answer.of(piece.event for piece in pieces if isinstance(piece, Piece)).calls
    return [(each.name, each.arguments) for each in calls if each.complete]


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


async def rendered(
    model: LoadedModel, request: ChatRequest, limit: int = MAX_COUNTED_TOKENS
) -> Prompt:
    """Return the prompt of a conversation; see `prompt_of`.

    A model renders few prompts at a time, so a template that meets its deadline again and again
    leaves threads and workers for other models.
    """
    async with model.rendering:
        return await asyncio.to_thread(prompt_of, model, request, limit)


def prompt_of(model: LoadedModel, request: ChatRequest, limit: int) -> Prompt:
    """Return the prompt of a conversation, cut to the context if the request asks for it.

    The oldest turns go first, then the oldest calls of the last turn; system messages and the last
    question stay. Raises ApiError, TemplateError, and TextTooLongError when the prompt has more
    than `limit` tokens.
    """
    if not request.truncate:
        return render(model, request, limit)
    answer = request.params.max_tokens or 1
    room = model.context - min(answer, model.context // 2)
    attempts = list(shorter(request.messages))

    def attempt(n: int) -> Prompt | None:
        """Return the prompt of the `n`th attempt, or None when it is too long."""
        try:
            prompt = render(model, replace(request, messages=attempts[n]), model.context)
        except TextTooLongError:
            return None
        return prompt if len(prompt.ids) <= room else None

    found = attempt(0)
    low, high = 1, len(attempts)
    while found is None and low < high:
        middle = (low + high) // 2
        if attempt(middle) is None:
            low = middle + 1
        else:
            high = middle
    if found is None and low < len(attempts):
        found = attempt(low)
    return found or render(model, replace(request, messages=attempts[-1]), limit)


def shorter(messages: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[Mapping[str, Any]]]:
    """Yield the messages, and then without more and more of their oldest turns."""
    yield messages
    roles = [message["role"] for message in messages]
    n_system = next((i for i, r in enumerate(roles) if r not in ("system", "developer")), 0)
    system = messages[:n_system]
    questions = [i for i, role in enumerate(roles) if role == "user" and i > n_system]
    for start in questions:
        yield [*system, *messages[start:]]
    last = questions[-1] if questions else n_system
    calls = [i for i, role in enumerate(roles) if role == "assistant" and i > last]
    for start in calls[1:]:
        yield [*system, messages[last], *messages[start:]]


def render(model: LoadedModel, request: ChatRequest, limit: int = MAX_COUNTED_TOKENS) -> Prompt:
    """Return the prompt of a conversation.

    Raises ApiError, TemplateError, and TextTooLongError when it has more than `limit` tokens.
    """
    arguments = _template_variables(request.template_args)
    style = model.chat_style(for_tools=bool(request.tools))
    tokenizer = model.tokenizer
    try:
        prepared = prepare(request.messages, style.traits)
    except (RequestError, UnsupportedError) as error:
        where = error.what.split(" ")[0]
        param = where if request.param == "messages" else request.param
        raise invalid(param, error.what.replace(where, param, 1), error.why, error.hint) from None
    continued = _is_continued(request, arguments, style.format)
    text = style.template.render_shielded(
        tokenizer, prepared, request.tools or None, arguments, continued
    )
    opened = "" if continued else style.format.opened(text)
    ids = tokenizer.encode_prompt(text, limit=limit)
    return Prompt(text.replace(SHIELD, ""), ids, style.format, opened)


_SWITCHES = ("enable_thinking", "add_generation_prompt", "continue_final_message")


def _template_variables(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request's variables for the chat template. Raises ApiError."""
    variables = {}
    for name, value in given.items():
        param = f"chat_template_kwargs.{name[:80]}"
        if not is_variable(name):
            raise invalid(param, f"{param} cannot be set", "it is not a variable for templates")
        if name in _SWITCHES:
            if value is None:
                continue
            if not isinstance(value, bool):
                raise invalid(param, f"{param} is {str(value)[:40]!r}", "it must be true or false")
        variables[name] = value
    return variables


def _is_continued(request: ChatRequest, arguments: dict[str, Any], format: ChatFormat) -> bool:
    """Return whether an answer continues the last message.

    Takes `continue_final_message` out of `arguments`; the default is to continue a message of the
    assistant that has text, as llama.cpp's server and Anthropic's API do. Raises ApiError.
    """
    if not request.messages:
        raise invalid(request.param, f"{request.param} is empty", "there is nothing to answer")
    asked = arguments.pop("continue_final_message", None)
    adds = arguments.get("add_generation_prompt")
    if asked and adds:
        raise invalid(
            "continue_final_message",
            "continue_final_message and add_generation_prompt are both true",
            "a prompt ends inside of the last message or after it",
        )
    if asked is False or (asked is None and adds is False):
        return False
    last = request.messages[-1]
    is_begun = last["role"] == "assistant" and not last.get("tool_calls") and last.get("content")
    if not is_begun:
        if asked:
            raise invalid(
                "continue_final_message",
                "there is no message to continue",
                "the last message must be the assistant's, with text and without calls",
            )
        return False
    if format.header is not None:
        raise invalid(
            request.param,
            "the last message is the assistant's",
            "this model's format has no way to continue one",
        )
    return True
