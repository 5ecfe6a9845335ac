"""Requests for chat completions: their fields, translated to a `ChatRequest`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from zinc.server.apis.openai.common import (
    NeutralFields,
    StreamOptions,
    check_count,
)
from zinc.server.apis.openai.messages import Messages, plain_messages
from zinc.server.apis.openai.prediction import Prediction
from zinc.server.apis.openai.tools import Tool, plain_tools, tool_use
from zinc.server.apis.shared.chat.request import ChatRequest
from zinc.server.apis.shared.fields import (
    MAX_ANSWERS,
    MAX_TOP_LOGPROBS,
    BiasField,
    ConstraintFields,
    LlamaFields,
    QueueFields,
    ResponseFormat,
    SamplingFields,
    StopField,
    Strings,
    biases,
    constraint_of,
    refuse,
    sampling_params,
    telemetry_of,
)
from zinc.server.errors import invalid
from zinc.server.http.fields import FirstError

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Verbosity = Literal["low", "medium", "high"]
# Chat templates know only the levels low, medium and high.
_LEVELS = {"minimal": "low", "xhigh": "high", "max": "high"}


class ThinkingFields(SamplingFields):
    """Fields for reasoning and for the chat template."""

    reasoning_effort: Effort | None = None
    enable_thinking: bool | None = None
    thinking_budget: int | None = Field(None, ge=0, description="maximum reasoning tokens")
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="variables for the chat template"
    )
    reasoning_format: str | None = None
    verbosity: Verbosity | None = Field(None, description="a chat template variable")
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class ChatFields(ThinkingFields, ConstraintFields, LlamaFields, NeutralFields, QueueFields):
    """A request for a chat completion."""

    messages: Messages
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=-1)
    max_completion_tokens: int | None = Field(None, ge=-1)
    n: int | None = None
    stop: StopField = None
    logit_bias: BiasField = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    tools: Annotated[list[Tool], FirstError()] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    store: bool | None = None
    prediction: Prediction | None = Field(
        None, description="text that the answer may repeat; drafts from it make it faster"
    )
    modalities: Strings | None = None
    audio: dict[str, Any] | None = None
    functions: list[Any] | None = None
    function_call: Any = None
    include_reasoning: bool | None = Field(
        None, description="false: leave reasoning_content out of the answer"
    )
    web_search_options: dict[str, Any] | None = None
    moderation: dict[str, Any] | None = None
    verbose: bool | None = Field(None, description="return the prompt as text in __verbose")


_REFUSED: dict[str, tuple[Any, str]] = {
    "modalities": (["text"], "only text can be generated"),
    "audio": (None, "only text can be generated"),
    "functions": ([], "it was replaced by tools"),
    "function_call": (None, "it was replaced by tool_choice"),
    "web_search_options": (None, "there is no search"),
    "moderation": (None, "there is no moderation"),
    "reasoning_format": ("auto", "reasoning is returned in reasoning_content"),
}


def template_arguments(fields: ThinkingFields) -> dict[str, Any]:
    """Return the variables for the chat template; `chat_template_kwargs` overrides other fields."""
    arguments: dict[str, Any] = {}
    if fields.reasoning_effort is not None:
        arguments["enable_thinking"] = fields.reasoning_effort != "none"
        if fields.reasoning_effort != "none":
            effort = fields.reasoning_effort
            arguments["reasoning_effort"] = _LEVELS.get(effort, effort)
    if fields.enable_thinking is not None:
        arguments["enable_thinking"] = fields.enable_thinking
    if fields.verbosity is not None:
        arguments["verbosity"] = fields.verbosity
    for name in ("add_generation_prompt", "continue_final_message"):
        if getattr(fields, name) is not None:
            arguments[name] = getattr(fields, name)
    return {**arguments, **(fields.chat_template_kwargs or {})}


def to_request(fields: ChatFields) -> ChatRequest:
    """Return the request as a `ChatRequest`. Raises ApiError."""
    if fields.reasoning_format in ("deepseek", "parsed"):
        fields.reasoning_format = None
    elif fields.reasoning_format == "hidden":
        fields.reasoning_format, fields.include_reasoning = None, False
    refuse(fields, _REFUSED)
    if fields.top_logprobs and not fields.logprobs:
        raise invalid("top_logprobs", "top_logprobs is given without logprobs", "", "set logprobs")
    name = "max_tokens" if fields.max_completion_tokens is None else "max_completion_tokens"
    tools = plain_tools(fields.tools)
    params = sampling_params(
        fields,
        max_tokens=getattr(fields, name),
        max_tokens_name=name,
        stop=fields.stop,
        logprobs=(fields.top_logprobs or 0) if fields.logprobs else None,
        logit_bias=biases(fields.logit_bias),
    )
    use = tool_use(fields.tool_choice, tools)
    return ChatRequest(
        messages=plain_messages(fields.messages),
        params=params,
        tools=use.tools,
        forced_tools=use.forced,
        one_call=fields.parallel_tool_calls is False,
        priority=fields.priority or 0,
        telemetry=telemetry_of(fields, fields.stream),
        template_args=template_arguments(fields),
        n=check_count(fields.n, "n", MAX_ANSWERS),
        constraint=constraint_of(fields.response_format, fields),
        thinking_budget=fields.thinking_budget,
        prediction=fields.prediction.text if fields.prediction else "",
    )
