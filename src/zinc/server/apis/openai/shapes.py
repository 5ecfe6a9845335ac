"""Shapes that OpenAI's endpoints share: messages, tools, usage, log-probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from zinc import __version__
from zinc.engine.sampling import Sampled
from zinc.engine.sequence import Timings
from zinc.server.apis.openai.response_tools import function_name, text_arguments, text_function
from zinc.server.apis.shared.fields import finite_logprob
from zinc.server.apis.shared.service import Shape
from zinc.server.apis.shared.tools import named_tool
from zinc.server.errors import invalid
from zinc.server.http.body import Fields, FirstError
from zinc.server.http.responses import event
from zinc.server.runtime.job import Progress
from zinc.tokenizer import Tokenizer

FINGERPRINT = f"build-zinc-{__version__}"  # clients of llama.cpp expect its b for "build"
DONE = b"data: [DONE]\n\n"

OPENAI = Shape(error_event=lambda error: event(error.openai()))


class ContentPart(Fields):
    """A part of a message; text is the only kind that is understood."""

    type: str
    text: str | None = None


class FunctionCall(Fields):
    name: str
    arguments: str | dict[str, Any] = ""


class CustomCall(Fields):
    name: str
    input: str = ""


class ToolCall(Fields):
    """A call of a function, or of a custom tool, which takes text."""

    id: str | None = None
    type: Literal["function", "custom"] = "function"
    function: FunctionCall | None = None
    custom: CustomCall | None = None


Content = str | Annotated[list[ContentPart], FirstError()] | None


class Message(Fields):
    """A message of a conversation. Further members are handed to the chat template."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], FirstError()] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


Messages = Annotated[list[Message], FirstError()]


class Function(Fields):
    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Custom(Fields):
    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str | None = None
    format: dict[str, Any] | None = None


class Tool(Fields):
    """A function, or a custom tool, which takes text."""

    type: Literal["function", "custom"]
    function: Function | None = None
    custom: Custom | None = None


class StreamOptions(Fields):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class NeutralFields(Fields):
    """Fields of OpenAI that say nothing about the answer: accounting, and hints to their fleet."""

    user: str | None = None
    metadata: dict[str, Any] | None = None
    client_metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None


def plain_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return the messages without members that are null; calls of custom tools become functions'.

    Raises ApiError for a message without content and a call without its tool.
    """
    plain = []
    for i, message in enumerate(messages):
        where = f"messages[{i}]"
        if message.content is None and message.role != "assistant":
            raise invalid(f"{where}.content", f"{where}.content is missing")
        row = message.model_dump(exclude_none=True)
        if message.tool_calls is not None:
            row["tool_calls"] = [
                _plain_call(call, f"{where}.tool_calls[{j}]")
                for j, call in enumerate(message.tool_calls)
            ]
        plain.append(row)
    return plain


def _plain_call(call: ToolCall, where: str) -> dict[str, Any]:
    if call.custom is not None and call.type == "custom":
        function = {"name": call.custom.name, "arguments": text_arguments(call.custom.input)}
        return {"id": call.id, "type": "function", "function": function}
    if call.function is None:
        raise invalid(f"{where}.{call.type}", f"{where}.{call.type} is missing")
    return call.model_dump(exclude_none=True)


def plain_tools(tools: Sequence[Tool] | None) -> list[dict[str, Any]] | None:
    """Return the tools as functions for the chat template, or None when there are none.

    Raises ApiError for a tool that has not what its type says.
    """
    return [_plain_tool(tool, f"tools[{i}]") for i, tool in enumerate(tools or ())] or None


def _plain_tool(tool: Tool, where: str) -> dict[str, Any]:
    if tool.type == "custom" and tool.custom is not None:
        custom = tool.custom
        function = text_function(custom.name, custom.description, custom.format)
        return {"type": "function", "function": function}
    if tool.type == "function" and tool.function is not None:
        return tool.model_dump(exclude_unset=True)
    raise invalid(f"{where}.{tool.type}", f"{where}.{tool.type} is missing")


def custom_names(tools: Sequence[Tool] | None) -> frozenset[str]:
    """Return the names of the custom tools, whose calls carry text."""
    return frozenset(t.custom.name for t in tools or () if t.type == "custom" and t.custom)


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of a request (None: none), and those of which the model has to call one."""

    tools: list[dict[str, Any]] | None
    forced: list[dict[str, Any]]


def tool_use(choice: object, tools: list[dict[str, Any]] | None) -> ToolUse:
    """Apply OpenAI's `tool_choice` to the tools. Raises ApiError when it is not valid.

    Of `allowed_tools` the model is shown the allowed ones alone.
    """
    if choice is None or choice == "auto":
        return ToolUse(tools, [])
    if choice == "none":
        return ToolUse(None, [])
    kind = choice.get("type") if isinstance(choice, Mapping) else choice
    if isinstance(choice, Mapping) and kind == "allowed_tools":
        allowed, mode = _allowed_tools(choice, tools)
        return ToolUse(allowed or None, allowed if mode == "required" else [])
    if not tools:
        raise invalid("tool_choice", "tool_choice asks for a call", "the request has no tools")
    if choice == "required":
        return ToolUse(tools, tools)
    if isinstance(choice, Mapping) and kind in ("function", "custom"):
        return ToolUse(tools, named_tool(tool_name(choice), tools))
    raise invalid(
        "tool_choice",
        "tool_choice is not valid",
        'it must be "auto", "none", "required" or an object that names functions',
    )


def _allowed_tools(
    choice: Mapping[str, Any], tools: list[dict[str, Any]] | None
) -> tuple[list[dict[str, Any]], str]:
    """Return the tools that `allowed_tools` names, in the order of the request, and its mode."""
    inner = choice.get("allowed_tools", choice)  # the responses API has no inner object
    mode = inner.get("mode") if isinstance(inner, Mapping) else None
    listed = inner.get("tools") if isinstance(inner, Mapping) else None
    if mode not in ("auto", "required") or not isinstance(listed, list):
        raise invalid(
            "tool_choice",
            "tool_choice is not valid",
            "allowed_tools has a mode, auto or required, and a list of tools",
        )
    names = set()
    for entry in listed:
        if not isinstance(entry, Mapping):
            raise invalid("tool_choice", "tool_choice is not valid", "a tool is an object")
        if entry.get("type") in ("function", "custom"):  # others run on OpenAI's servers
            (found,) = named_tool(tool_name(entry), tools)
            names.add(found["function"]["name"])
    allowed = [tool for tool in tools or () if tool["function"]["name"] in names]
    if mode == "required" and not allowed:
        raise invalid("tool_choice", "tool_choice asks for a call", "it allows no tool")
    return allowed, mode


def tool_name(entry: Mapping[str, Any]) -> object:
    """Return the name in a reference to a tool, in the shape of the chat or the responses API."""
    inner = entry.get(str(entry.get("type")))
    if isinstance(inner, Mapping):
        return inner.get("name")
    return function_name(entry) if "name" in entry else None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a request; its answers share one prompt."""

    prompt: int
    cached: int
    completion: int
    reasoning: int = 0

    @classmethod
    def of(cls, timings: Sequence[Timings], reasoning: int = 0) -> Usage:
        return cls(
            max(t.prompt_tokens for t in timings),
            max(t.cached_tokens for t in timings),
            sum(t.generated_tokens for t in timings),
            reasoning,
        )

    def openai(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning},
        }


def timings_object(t: Timings) -> dict[str, Any]:
    """Return times and speeds under the names of llama.cpp's server.

    The first token of an answer comes with the last step of its prompt, so its decode speed counts
    from the second token on.
    """
    n_steps = t.generated_tokens - 1
    run = t.prompt_tokens - t.cached_tokens
    prompt_ms, predicted_ms = t.prompt_seconds * 1000, t.generate_seconds * 1000
    return {
        "cache_n": t.cached_tokens,
        "prompt_n": run,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_ms / max(run, 1),
        "prompt_per_second": t.prompt_tokens_per_s,
        "predicted_n": t.generated_tokens,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": predicted_ms / n_steps if n_steps > 0 else 0.0,
        "predicted_per_second": t.generated_tokens_per_s,
        "shifted_n": t.shifted_tokens,
    }


def timings_member(timings: Timings | None) -> dict[str, Any]:
    """The member of a chunk, where a request asks for it in every one."""
    return {} if timings is None else {"timings": timings_object(timings)}


def progress_members(progress: Progress, with_timings: bool | None) -> dict[str, Any]:
    """What llama.cpp's server adds to a chunk before the first token."""
    t = progress.timings
    found = {
        "total": progress.n_prompt,
        "cache": t.cached_tokens,
        "processed": t.prompt_tokens,
        "time_ms": round(t.prompt_seconds * 1000),
    }
    return {"prompt_progress": found, **timings_member(t if with_timings else None)}


def token_logprob(tokenizer: Tokenizer, token: int, logprob: float | None) -> dict[str, Any]:
    piece = tokenizer.token_bytes(token)
    return {
        "token": piece.decode("utf-8", "replace"),
        "logprob": finite_logprob(logprob),
        "bytes": list(piece),
    }


def chat_logprobs(tokenizer: Tokenizer, tokens: Sequence[Sampled]) -> list[dict[str, Any]]:
    """`logprobs.content` of the chat API."""
    return [
        {
            **token_logprob(tokenizer, s.token, s.logprob),
            "top_logprobs": [token_logprob(tokenizer, t, p) for t, p in s.top_logprobs],
        }
        for s in tokens
    ]


def check_count(n: int | None, name: str, most: int) -> int:
    count = 1 if n is None else n
    if not 1 <= count <= most:
        raise invalid(name, f"{name} is {count}", f"it must lie between 1 and {most}")
    return count
