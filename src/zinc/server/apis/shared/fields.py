"""Request fields that several APIs share: sampling, stop strings, biases, output format.

Sampling fields that OpenAI and Anthropic do not define have the names of llama.cpp's server and are
accepted by every endpoint. A field that is not given has the default of `SamplingParams`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from zinc.core.dataclass import dataclass
from zinc.core.errors import RequestError, UnsupportedError
from zinc.engine import constraint as engine
from zinc.engine.sampling import SamplingParams
from zinc.grammar.kinds import Kind
from zinc.server.errors import invalid, unsupported
from zinc.server.http.fields import Fields, FirstError
from zinc.server.runtime.job import NO_TELEMETRY, Telemetry
from zinc.server.runtime.served_model import ServedModel

MAX_ANSWERS = 128
MAX_TOP_LOGPROBS = 20
_RANDOM_SEEDS = (-1, 0xFFFFFFFF)  # llama.cpp's clients send these for a random seed

Tokens = Annotated[list[int], FirstError()]
Strings = Annotated[list[str], FirstError()]
StopField = str | Annotated[Strings, Field(max_length=64)] | None
PingInterval = Annotated[
    int | None,
    Field(
        ge=-1,
        le=2**31 - 1,
        description="seconds of silence before a stream sends a ping; 0 or -1: never (default: 30)",
    ),
]
# `biases` checks the numbers and stops at the first that is wrong.
BiasField = dict[str, Any] | None


class SamplingFields(Fields):
    """Fields for sampling. `SamplingParams` documents their effect and their ranges."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: Strings | None = None
    samplers: Strings | None = None
    min_keep: int | None = None
    ignore_eos: bool | None = None
    speculate: bool | None = Field(
        default=None, description="false: verify no drafts; the answer is the same"
    )
    context_shift: int | None = Field(
        default=None,
        description="continue past the end of the context by dropping tokens after this many at "
        "the start (-1: the whole prompt); needs a token limit",
    )
    seed: int | None = None


class ConstraintFields(Fields):
    """Fields of llama.cpp and SGLang for the output format."""

    grammar: str | None = None
    json_schema: Any = None
    regex: str | None = Field(None, description="a pattern that the whole answer matches")


class LlamaFields(Fields):
    """Fields of llama.cpp's server that have no effect on the answer.

    Every endpoint accepts them, because its clients send them.
    """

    timings_per_token: bool | None = Field(
        None, description="report timings with every chunk of a stream"
    )
    return_progress: bool | None = Field(
        None, description="report the progress of the prompt in a stream"
    )
    cache_prompt: bool | None = Field(None, description="no effect: prefixes are always cached")
    id_slot: int | None = Field(None, description="no effect: there are no fixed slots")
    n_keep: int | None = Field(None, description="no effect: a prompt that is too long is refused")
    n_cache_reuse: int | None = None
    t_max_prompt_ms: int | None = Field(None, description="no effect: prompts have no time limit")
    sse_ping_interval: PingInterval = None


def telemetry_of(fields: LlamaFields, streamed: bool | None) -> Telemetry:
    """Return which further items the stream of an answer contains; none if it is not streamed."""
    if not streamed:
        return NO_TELEMETRY
    return Telemetry(bool(fields.timings_per_token), bool(fields.return_progress))


class LoraScale(Fields):
    """The scale of a LoRA adapter, by its id in GET /lora-adapters."""

    id: int
    scale: float


class QueueFields(Fields):
    """Fields for queueing, caching and adapters."""

    priority: int | None = Field(
        None, ge=-100, le=100, description="requests with higher priority run first (default: 0)"
    )
    cache_salt: str | None = Field(
        None,
        min_length=1,
        max_length=1024,
        description="share cached prefixes only between requests with the same salt",
    )
    lora: Annotated[list[LoraScale], FirstError()] | None = Field(
        None,
        description="scales of LoRA adapters; 0 for adapters that are not listed (default, and if "
        "empty: those of GET /lora-adapters)",
    )


class JsonSchemaFormat(Fields):
    """The JSON schema of OpenAI's `response_format`."""

    name: str | None = None
    description: str | None = None
    schema_: Any = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Fields):
    """OpenAI's `response_format`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None
    schema_: Any = Field(None, alias="schema")


@dataclass(frozen=True, slots=True)
class Constraint:
    """The format that an answer must follow.

    source: a schema, grammar or pattern, depending on `kind`. param: the request field that asks
    for it, named in errors.
    """

    kind: Kind
    source: Any
    param: str


def constraint_of(
    response_format: ResponseFormat | None, extra: ConstraintFields | None = None
) -> Constraint | None:
    """Return the constraint that a request asks for, or None.

    Raises ApiError if it asks for several, or if a schema is missing.
    """
    found: list[Constraint] = []
    if response_format is not None and response_format.type != "text":
        if response_format.type == "json_object":
            schema = response_format.schema_
            kind: Kind = "json_object" if schema is None else "json_schema"
            found.append(Constraint(kind, schema, "response_format"))
        else:
            given = response_format.json_schema
            schema = response_format.schema_ if given is None else given.schema_
            if schema is None:
                param = "response_format.json_schema.schema"
                raise invalid(param, f"{param} is missing", "the type is json_schema")
            found.append(Constraint("json_schema", schema, "response_format"))
    if extra is not None and extra.json_schema is not None:
        found.append(Constraint("json_schema", extra.json_schema, "json_schema"))
    if extra is not None and extra.grammar:
        found.append(Constraint("grammar", extra.grammar, "grammar"))
    if extra is not None and extra.regex:
        found.append(Constraint("regex", extra.regex, "regex"))
    if len(found) > 1:
        raise invalid(
            found[1].param,
            f"{found[0].param} and {found[1].param} are both given",
            "an answer can follow only one of them",
        )
    return found[0] if found else None


def sampling_params(
    fields: SamplingFields,
    *,
    max_tokens: int | None,
    max_tokens_name: str = "max_tokens",
    stop: str | Sequence[str] | None = None,
    logprobs: int | None = None,
    logit_bias: Mapping[int, float] | None = None,
    stop_name: str = "stop",
) -> SamplingParams:
    """Return the parameters of the sampler.

    max_tokens_name, stop_name: names of these fields in the API. Raises ApiError 400 that names the
    field that is out of range.
    """
    given: dict[str, Any] = {
        name: getattr(fields, name)
        for name in SamplingFields.model_fields
        if getattr(fields, name) is not None
    }
    if given.get("seed") in _RANDOM_SEEDS:
        del given["seed"]
    for name in ("samplers", "dry_sequence_breakers"):
        if name in given:
            given[name] = tuple(given[name])
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    try:
        return SamplingParams(
            max_tokens=None if max_tokens == -1 else max_tokens,
            stop=stops,
            logprobs=logprobs,
            logit_bias=logit_bias or {},
            **given,
        )
    except RequestError as error:
        own = error.argument
        param = {"max_tokens": max_tokens_name, "stop": stop_name}.get(own, own)
        raise invalid(param, error.what.replace(own, param, 1), error.why) from None


def biases(value: Mapping[str, Any] | None) -> dict[int, float]:
    """Return OpenAI's `logit_bias`, an object with token ids as keys, by token id.

    Raises ApiError.
    """
    found: dict[int, float] = {}
    for key, bias in (value or {}).items():
        if not (key.isascii() and key.isdecimal() and len(key) < 10):
            raise invalid(
                "logit_bias", f"logit_bias has the key {key[:40]!r}", "keys are token ids"
            )
        if isinstance(bias, bool) or not isinstance(bias, int | float):
            name = f"logit_bias.{key}"
            raise invalid(name, f"{name} is not valid", "a bias is a number")
        found[int(key)] = float(bias)
    return found


def with_seed(params: SamplingParams, index: int) -> SamplingParams:
    """Return the parameters of a request's answer number `index`: the seed plus `index`."""
    if index == 0 or params.seed is None:
        return params
    seed = params.seed + index
    return replace(params, seed=seed if seed < 2**64 else index)


def constraints(
    model: ServedModel, constraint: Constraint | None, n: int
) -> list[engine.Constraint | None]:
    """Return a new constraint object of the engine for each of `n` answers, or None for each.

    This is slow the first time for a model. Raises ApiError if the constraint is not valid or not
    supported.
    """
    if constraint is None:
        return [None] * n
    try:
        grammar = model.llm.constraint(constraint.kind, constraint.source)
        return [grammar.start() for _ in range(n)]
    except (RequestError, UnsupportedError) as error:
        raise invalid(constraint.param, error.what, error.why, error.hint) from None


def finite_logprob(value: float | None) -> float:
    """Return a log-probability that JSON can represent: at least -9999, as OpenAI returns it."""
    return max(value, -9999.0) if value is not None and not math.isnan(value) else -9999.0


def refuse(fields: Fields, reasons: Mapping[str, tuple[Any, str]]) -> None:
    """Refuse fields that an API defines and the server does not support. Raises ApiError.

    reasons: by field name, a value that is accepted because it has no effect, and the reason.
    """
    for name, (neutral, why) in reasons.items():
        value = getattr(fields, name)
        if value is not None and value != neutral:
            raise unsupported(name, why)
