"""Fields that several APIs share: sampling, stop strings, bias, output format; and what they mean.

Sampling fields that OpenAI and Anthropic do not define are accepted on every endpoint under the
names that llama.cpp's server gives them. A field that is not given keeps the default of
`SamplingParams`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from zinc.core.errors import RequestError, UnsupportedError
from zinc.engine import constraint as engine
from zinc.engine.sampling import SamplingParams
from zinc.grammar.kinds import Kind
from zinc.server.errors import invalid, unsupported
from zinc.server.http.body import Fields, FirstError
from zinc.server.runtime.job import NO_TELEMETRY, Telemetry
from zinc.server.runtime.loaded_model import LoadedModel

MAX_ANSWERS = 128
MAX_TOP_LOGPROBS = 20
_RANDOM_SEEDS = (-1, 0xFFFFFFFF)  # what llama.cpp's clients send for "a new one each time"

Tokens = Annotated[list[int], FirstError()]
Strings = Annotated[list[str], FirstError()]
StopField = str | Annotated[Strings, Field(max_length=64)] | None
PingInterval = Annotated[
    int | None,
    Field(
        ge=-1,
        le=2**31 - 1,
        description="seconds of silence after which a stream sends a ping; 0 or -1: never "
        "(default: 30)",
    ),
]
# The numbers are checked by `biases`, which stops at the first that is wrong.
BiasField = dict[str, Any] | None


class SamplingFields(Fields):
    """How tokens are drawn; see `SamplingParams` for what each does and may be."""

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
    context_shift: int | None = Field(
        default=None,
        description="goes on past the context, with so many tokens of its beginning (-1: the "
        "prompt) and the latest of the rest; needs a limit of tokens",
    )
    seed: int | None = None


class ConstraintFields(Fields):
    """Fields of llama.cpp and SGLang for the form of the answer."""

    grammar: str | None = None
    json_schema: Any = None
    regex: str | None = Field(None, description="the whole answer matches it")


class LlamaFields(Fields):
    """Fields of llama.cpp's server that say how it works and not what it answers: accepted
    everywhere, because its clients send them, and without effect on the answer."""

    timings_per_token: bool | None = Field(
        None, description="timings come with every chunk of a stream, and not only the last"
    )
    return_progress: bool | None = Field(
        None, description="a stream tells how far the prompt is, before its first token"
    )
    cache_prompt: bool | None = Field(None, description="prefixes are always looked up")
    id_slot: int | None = Field(None, description="a request runs wherever there is room")
    n_keep: int | None = Field(None, description="a prompt that is too long is refused")
    n_cache_reuse: int | None = None
    t_max_prompt_ms: int | None = Field(None, description="prompts run to their end")
    sse_ping_interval: PingInterval = None


def telemetry_of(fields: LlamaFields, streamed: bool | None) -> Telemetry:
    """What the answer's stream tells beside its tokens, if there is one."""
    if not streamed:
        return NO_TELEMETRY
    return Telemetry(bool(fields.timings_per_token), bool(fields.return_progress))


class QueueFields(Fields):
    """How a request stands among others."""

    priority: int | None = Field(
        None, ge=-100, le=100, description="requests of higher priority go first (default: 0)"
    )
    cache_salt: str | None = Field(
        None,
        min_length=1,
        max_length=1024,
        description="cached prefixes are shared only between requests with the same salt",
    )


class JsonSchemaFormat(Fields):
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
    """What every answer has to look like."""

    kind: Kind
    source: Any
    param: str


def constraint_of(
    response_format: ResponseFormat | None, extra: ConstraintFields | None = None
) -> Constraint | None:
    """The constraint a request asks for. Raises ApiError when it asks for two, or for half."""
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
    """The parameters of the sampler. Raises ApiError 400 that names the field out of range."""
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
        own = error.what.split(" ")[0].split("[")[0]
        param = {"max_tokens": max_tokens_name, "stop": stop_name}.get(own, own)
        raise invalid(param, error.what.replace(own, param, 1), error.why) from None


def biases(value: Mapping[str, Any] | None) -> dict[int, float]:
    """OpenAI's `logit_bias`: a mapping of token ids, as JSON keys, to numbers."""
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
    """The parameters of the `index`th answer of a request: a given seed counts up."""
    if index == 0 or params.seed is None:
        return params
    seed = params.seed + index
    return replace(params, seed=seed if seed < 2**64 else index)


def constraints(
    model: LoadedModel, constraint: Constraint | None, n: int
) -> list[engine.Constraint | None]:
    """What holds each of `n` answers to a constraint. Slow the first time for a model.

    Raises ApiError when the constraint cannot be understood or followed.
    """
    if constraint is None:
        return [None] * n
    try:
        grammar = model.llm.constraint(constraint.kind, constraint.source)
        return [grammar.start() for _ in range(n)]
    except (RequestError, UnsupportedError) as error:
        raise invalid(constraint.param, error.what, error.why, error.hint) from None


def finite_logprob(value: float | None) -> float:
    """A log-probability that JSON can carry; OpenAI writes -9999 for what is next to impossible."""
    return max(value, -9999.0) if value is not None and not math.isnan(value) else -9999.0


def refuse(fields: Fields, reasons: Mapping[str, tuple[Any, str]]) -> None:
    """Refuses fields that are defined and not honoured, unless they have their neutral value.

    `reasons` gives that value and the reason, by field.
    """
    for name, (neutral, why) in reasons.items():
        value = getattr(fields, name)
        if value is not None and value != neutral:
            raise unsupported(name, why)
