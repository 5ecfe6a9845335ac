"""POST /v1/chat/completions: OpenAI's chat API.

https://platform.openai.com/docs/api-reference/chat. Reasoning is separate from the content, in
`reasoning_content`: the name that DeepSeek introduced and most clients know.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from zinc.chat.events import CallArguments, CallEnd, CallStart, Content, Reasoning
from zinc.engine.sampling import Sampled
from zinc.server.apis.openai.chat_request import ChatFields, to_request
from zinc.server.apis.openai.common import (
    DONE,
    OPENAI,
    Members,
    no_members,
    response_head,
)
from zinc.server.apis.openai.custom_tools import text_of
from zinc.server.apis.openai.tools import custom_names
from zinc.server.apis.openai.usage import (
    Usage,
    chat_logprobs,
    progress_members,
    timings_member,
    timings_object,
)
from zinc.server.apis.shared.chat.answer import ChatAnswer, Collected, Finished, Piece
from zinc.server.apis.shared.chat.request import ChatRequest
from zinc.server.apis.shared.chat.start import answer_chat, count_prompt_tokens
from zinc.server.apis.shared.service import Service, read_fields, record_answers
from zinc.server.errors import unsupported
from zinc.server.http.responses import JSONResponse, event, merge
from zinc.server.runtime.served_model import ServedModel

FINISH = {"stop": "stop", "length": "length", "calls": "tool_calls"}


async def count_tokens(service: Service, request: Request) -> Response:
    """Answer with the number of prompt tokens of a conversation, as llama.cpp's server does."""
    fields = await read_fields(service, request, ChatFields)
    n_tokens = await count_prompt_tokens(service, fields.model, to_request(fields))
    return JSONResponse({"object": "response.input_tokens", "input_tokens": n_tokens})


async def chat_completions(
    service: Service, request: Request, members: Members = no_members
) -> Response:
    """Continue a conversation. members: further members of the answer."""
    fields = await read_fields(service, request, ChatFields)
    chat_request = to_request(fields)
    if fields.stream_options is not None and not fields.stream:
        raise unsupported("stream_options", "the answer is not streamed", "set stream")
    reply = _Reply(request, fields, chat_request, members)
    return await answer_chat(
        service,
        request,
        fields.model,
        chat_request,
        reply.whole,
        reply.events if fields.stream else None,
        OPENAI,
        fields.sse_ping_interval,
    )


class _Reply:
    """The reply to a chat request, whole or streamed.

    members: further members of the reply, from the model and the ends of its answers.
    """

    def __init__(
        self, request: Request, fields: ChatFields, chat_request: ChatRequest, members: Members
    ) -> None:
        self._request, self._fields, self._chat_request = request, fields, chat_request
        self._members = members
        self._custom = custom_names(fields.tools)
        self._hides_reasoning = fields.include_reasoning is False
        self._head = response_head("chatcmpl")

    async def whole(self, model: ServedModel, answers: Sequence[ChatAnswer]) -> dict[str, Any]:
        """Return the body of the response, once all answers have ended."""
        found = [await each.collect() for each in answers]
        ends = [each.finished for each in found]
        self._record(ends)
        return {
            **self._head,
            "object": "chat.completion",
            "model": model.name,
            "choices": [
                _choice(model, self._chat_request, i, each, self._custom, self._hides_reasoning)
                for i, each in enumerate(found)
            ],
            "usage": _usage(ends).openai(),
            "timings": timings_object(ends[0].timings),
            **self._verbose(model, answers),
            **self._members(model, ends),
        }

    async def events(
        self, model: ServedModel, answers: Sequence[ChatAnswer]
    ) -> AsyncGenerator[bytes]:
        """Yield the events of the stream."""
        fields = self._fields
        with_usage = bool(fields.stream_options and fields.stream_options.include_usage)
        shared = {**self._head, "object": "chat.completion.chunk", "model": model.name}
        if with_usage:
            shared["usage"] = None

        def chunk(
            index: int,
            delta: dict[str, Any],
            tokens: Sequence[Sampled] = (),
            finish: str | None = None,
            **more: object,
        ) -> bytes:
            logprobs = _logprobs(model, self._chat_request, tokens) if tokens else None
            choice = {
                "index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish
            }  # fmt: skip
            return event({**shared, "choices": [choice], **more})

        for index in range(len(answers)):
            more = self._verbose(model, answers) if index == 0 else {}
            yield chunk(index, {"role": "assistant", "content": None}, **more)
        ends: list[Finished] = []
        deltas = [Deltas(self._custom, self._hides_reasoning) for _ in answers]
        async for index, item in merge([aiter(each) for each in answers]):
            if isinstance(item, Finished):
                ends.append(item)
                timings = timings_object(item.timings)
                more = self._members(model, [item])
                yield chunk(index, {}, finish=FINISH[item.reason], timings=timings, **more)
            elif item.progress is not None:
                yield chunk(index, {}, **progress_members(item.progress, fields.timings_per_token))
            elif (delta := deltas[index].of(item)) is not None:
                yield chunk(index, delta, item.tokens, **timings_member(item.timings))
        self._record(ends)
        if with_usage:
            timings = timings_object(ends[0].timings)
            usage = {"usage": _usage(ends).openai(), "timings": timings}
            yield event({**shared, "choices": [], **usage})
        yield DONE

    def _verbose(self, model: ServedModel, answers: Sequence[ChatAnswer]) -> dict[str, Any]:
        """Return the member `__verbose` with the prompt as text, if the request asks for it."""
        if not self._fields.verbose:
            return {}
        prompt = model.tokenizer.decode(answers[0].generation.job.ids, skip_special=False)
        return {"__verbose": {"prompt": prompt}}

    def _record(self, ends: Sequence[Finished]) -> None:
        record_answers(self._request, [(end.reason, end.timings) for end in ends])


def _usage(ends: Sequence[Finished]) -> Usage:
    return Usage.of([end.timings for end in ends], sum(end.reasoning_tokens for end in ends))


class Deltas:
    """Converter of one answer's events to the deltas of its chunks.

    custom: names of custom tools, whose input is sent when it is complete.
    """

    def __init__(self, custom: frozenset[str], hides_reasoning: bool) -> None:
        self._custom = custom
        self._hides_reasoning = hides_reasoning
        self._inputs: dict[int, str] = {}  # by call: the arguments of a custom tool so far

    def of(self, piece: Piece) -> dict[str, Any] | None:
        """Return the delta of a piece, or None if it has none."""
        match piece.event:
            case Content(text):
                return {"content": text}
            case Reasoning(text):
                return None if self._hides_reasoning else {"reasoning_content": text}
            case CallStart(index, id, name) if name in self._custom:
                self._inputs[index] = ""
                tool = {"name": name, "input": ""}
                call = {"index": index, "id": id, "type": "custom", "custom": tool}
                return {"tool_calls": [call]}
            case CallStart(index, id, name):
                function = {"name": name, "arguments": ""}
                call = {"index": index, "id": id, "type": "function", "function": function}
                return {"tool_calls": [call]}
            case CallArguments(index, text) if index in self._inputs:
                self._inputs[index] += text
                return None
            case CallArguments(index, text):
                return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
            case CallEnd(index) if index in self._inputs:
                text = text_of(self._inputs[index])
                return {"tool_calls": [{"index": index, "custom": {"input": text}}]}
            case _:
                return None


def _logprobs(
    model: ServedModel, chat_request: ChatRequest, tokens: Sequence[Sampled]
) -> dict[str, Any] | None:
    if chat_request.params.logprobs is None:
        return None
    return {"content": chat_logprobs(model.tokenizer, tokens), "refusal": None}


def _choice(
    model: ServedModel,
    chat_request: ChatRequest,
    index: int,
    found: Collected,
    custom: frozenset[str],
    hides_reasoning: bool,
) -> dict[str, Any]:
    message = found.answer.message()
    if hides_reasoning:
        message.pop("reasoning_content", None)
    for call in message.get("tool_calls", ()):
        function = call["function"]
        if function["name"] in custom:
            del call["function"]
            text = text_of(function["arguments"])
            call |= {"type": "custom", "custom": {"name": function["name"], "input": text}}
    return {
        "index": index,
        "message": {**message, "refusal": None},
        "logprobs": _logprobs(model, chat_request, found.tokens),
        "finish_reason": FINISH[found.finished.reason],
    }
