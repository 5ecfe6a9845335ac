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
from zinc.server.http.body import FirstError


class NativeFields(SamplingFields, ConstraintFields, LlamaFields, QueueFields):
    """A completion by llama.cpp's API."""

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
        description="ends the answer before a further line that is indented by less",
    )
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    post_sampling_probs: bool | None = Field(
        None, description="`n_probs` reports the probabilities that tokens were drawn with"
    )
    lora: list[Any] | None = None
    image_data: list[Any] | None = None


class InfillFields(NativeFields):
    """A gap to be filled."""

    prompt: str = Field("", description="how the text in the gap begins")
    input_prefix: str = Field("", description="the text before the gap")
    input_suffix: str = Field("", description="the text behind it")
    input_extra: Annotated[list[Chunk], FirstError()] | None = Field(
        None, description="pieces of other files, the most important last"
    )
