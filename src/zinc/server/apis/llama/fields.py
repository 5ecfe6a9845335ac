"""Request fields of completions by llama.cpp's server."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from zinc.server.apis.shared import prompts
from zinc.server.apis.shared.fields import (
    MAX_TOP_LOGPROBS,
    ConstraintFields,
    LlamaFields,
    QueueFields,
    SamplingFields,
    StopField,
    Strings,
)
from zinc.server.apis.shared.infill import Chunk
from zinc.server.http.fields import FirstError


class NativeFields(SamplingFields, ConstraintFields, LlamaFields, QueueFields):
    """A request for a completion."""

    prompt: prompts.Prompt
    model: str | None = None
    stream: bool | None = None
    n_predict: int | None = Field(None, ge=-1)
    max_tokens: int | None = Field(None, ge=-1)
    n_cmpl: int | None = None
    stop: StopField = None
    logit_bias: dict[str, Any] | list[Any] | None = None
    n_probs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    return_tokens: bool | None = None
    t_max_predict_ms: int | None = None
    response_fields: Strings | None = None
    n_indent: int | None = Field(
        None,
        ge=0,
        le=1000,
        description="end the answer before a new line that is indented by less",
    )
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    post_sampling_probs: bool | None = Field(
        None, description="`n_probs` returns probabilities after sampling filters"
    )
    image_data: list[Any] | None = None


class InfillFields(NativeFields):
    """A request to fill a gap in a text."""

    prompt: str = Field("", description="the beginning of the text in the gap")
    input_prefix: str = Field("", description="the text before the gap")
    input_suffix: str = Field("", description="the text after the gap")
    input_extra: Annotated[list[Chunk], FirstError()] | None = Field(
        None, description="pieces of other files, the most important last"
    )
