"""Request fields of /v1/responses."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from zinc.server.apis.openai.chat_request import Effort, ThinkingFields, Verbosity
from zinc.server.apis.openai.common import NeutralFields, StreamOptions
from zinc.server.apis.openai.responses.tools import ResponseTool
from zinc.server.apis.shared.fields import (
    MAX_TOP_LOGPROBS,
    ConstraintFields,
    LlamaFields,
    QueueFields,
    StopField,
    Strings,
)
from zinc.server.http.fields import Fields, FirstError


class Reasoning(Fields):
    """OpenAI's `reasoning` object, with the members that OpenRouter adds."""

    effort: Effort | None = None
    enabled: bool | None = None
    max_tokens: int | None = Field(None, ge=0, description="maximum reasoning tokens")
    summary: str | None = None
    generate_summary: str | None = None


class TextFormat(Fields):
    """The output format of a response."""

    type: Literal["text", "json_object", "json_schema"]
    schema_: Any = Field(None, alias="schema")


class TextConfig(Fields):
    """OpenAI's `text`: output format and verbosity."""

    format: TextFormat | None = None
    verbosity: Verbosity | None = None


class ResponseFields(ThinkingFields, ConstraintFields, LlamaFields, NeutralFields, QueueFields):
    """A request for a response."""

    input: str | Annotated[list[dict[str, Any]], FirstError()]
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    tools: Annotated[list[ResponseTool], FirstError()] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: TextConfig | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    include: Strings | None = None
    truncation: str | None = None
    max_tool_calls: int | None = Field(None, description="no effect: no tools run on the server")
    stop: StopField = None
    background: bool | None = None
    conversation: Any = None
    prompt: Any = None
    context_management: list[Any] | None = None
    moderation: dict[str, Any] | None = None
    image: dict[str, Any] | None = None
