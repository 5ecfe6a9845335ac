"""Request fields of Anthropic's Messages API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from zinc.server.apis.anthropic.tools import AnthropicTool
from zinc.server.apis.shared.fields import (
    PingInterval,
    QueueFields,
    SamplingFields,
    StopField,
)
from zinc.server.http.fields import Fields, FirstError


class Block(Fields):
    """A block of content. Its members depend on its type."""

    type: str
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: Any = None
    is_error: bool | None = None


Blocks = Annotated[list[Block], FirstError()]


class AnthropicMessage(Fields):
    """A message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | Blocks


class ToolChoice(Fields):
    """Anthropic's `tool_choice`."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Fields):
    """Anthropic's `thinking`: whether the model reasons, and its token budget."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(None, ge=1)
    display: str | None = None


class OutputConfig(Fields):
    """Anthropic's `output_config`: effort of the reasoning, and output format."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: dict[str, Any] | None = None


class ContextManagement(Fields):
    """Anthropic's `context_management`."""

    edits: Annotated[list[dict[str, Any]], FirstError()] | None = None


class PromptFields(Fields):
    """The fields that determine the prompt; all fields of a request to count tokens."""

    messages: Annotated[list[AnthropicMessage], FirstError()]
    model: str | None = None
    system: str | Blocks | None = None
    tools: Annotated[list[AnthropicTool], FirstError()] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: dict[str, Any] | None = Field(
        None, description="no effect: prefixes are always cached"
    )
    mcp_servers: list[Any] | None = None
    context_management: ContextManagement | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class MessagesFields(PromptFields, SamplingFields, QueueFields):
    """A request to create a message."""

    max_tokens: int = Field(ge=1)
    stream: bool | None = None
    stop_sequences: StopField = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    inference_geo: str | None = None
    speed: str | None = None
    diagnostics: dict[str, Any] | None = None
    container: Any = None
    sse_ping_interval: PingInterval = None
