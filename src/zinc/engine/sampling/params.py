"""Sampling settings of a request: one frozen value, checked when it is made.

Defaults are llama.cpp's, so a request without settings samples from the same distribution there. A
value out of range is refused, never clamped, so a client that sends top_p=95 learns of its mistake.
This module does not import numpy, so a command line can read the defaults quickly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import NamedTuple

from zinc.core.dataclass import dataclass
from zinc.core.errors import RequestError

DEFAULT_SAMPLERS = (
    "penalties",
    "dry",
    "top_n_sigma",
    "top_k",
    "typ_p",
    "top_p",
    "min_p",
    "xtc",
    "temperature",
)

GREEDY_BELOW = 1e-6
"""Below this temperature logits / T leaves float32; clients send 1e-7 to mean 0."""

MAX_BREAKER_CHARACTERS = 40
MAX_BREAKERS = 32  # each takes a walk over the vocabulary
MAX_STOP_CHARACTERS = 4096  # of all strings together: each character is a state of the matcher


class _Range(NamedTuple):
    """A closed interval, and how an error states it."""

    low: float
    high: float
    text: str
    whole: bool = False


_COUNT = _Range(0, math.inf, "a whole number from 0", whole=True)
_WINDOW = _Range(-1, math.inf, "a number of tokens, 0 (off) or -1 (all)", whole=True)
_SHARE = _Range(0, 1, "between 0 and 1")
# The bounds of 1e6 keep every product with a logit well inside float32.
_ANY = _Range(-1e6, 1e6, "between -1e6 and 1e6")
_NOT_NEGATIVE = _Range(0, 1e6, "between 0 and 1e6")

_RANGES = {
    "temperature": _Range(0, 1e6, "between 0 (greedy) and 1e6"),
    "top_k": _Range(-1, math.inf, "a whole number from 1, or 0 or -1 (off)", whole=True),
    "top_p": _SHARE,
    "min_p": _SHARE,
    "typical_p": _SHARE,
    "top_n_sigma": _ANY,
    "xtc_probability": _SHARE,
    "xtc_threshold": _SHARE,
    "mirostat_tau": _NOT_NEGATIVE,
    "mirostat_eta": _NOT_NEGATIVE,
    "repeat_penalty": _Range(1e-3, 1e3, "between 0.001 and 1000 (1 is off)"),
    "repeat_last_n": _WINDOW,
    "presence_penalty": _ANY,
    "frequency_penalty": _ANY,
    "dry_multiplier": _NOT_NEGATIVE,
    "dry_base": _NOT_NEGATIVE,
    "dry_allowed_length": _COUNT,
    "dry_penalty_last_n": _WINDOW,
    "min_keep": _COUNT,
}

_OPTIONAL_RANGES = {
    "max_tokens": _COUNT,
    "logprobs": _COUNT,
    "context_shift": _Range(-1, math.inf, "a number of tokens, or -1 (the prompt)", whole=True),
    "seed": _Range(-(2**63), 2**64 - 1, "a whole number of 64 bits", whole=True),
}


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample tokens and when to stop. Raises RequestError for a value out of range.

    A field at its neutral value switches its sampler off: temperature 0 (then decoding is greedy
    and nothing is truncated), top_k 0 or -1, top_p 1, min_p 0, typical_p 1, top_n_sigma <= 0,
    xtc_probability 0, repeat_penalty 1, presence_penalty and frequency_penalty 0, dry_multiplier 0,
    dry_base < 1.

    samplers: their order; samplers that are left out do not run. mirostat: 2 replaces the
    truncation, so only penalties, dry and temperature run beside it. repeat_last_n,
    dry_penalty_last_n: tokens of prompt and answer to look at; -1 is all. logit_bias: added to the
    logits first; -inf bans a token. logprobs: report the log-probability of the sampled token and
    of this many most likely ones. They are the model's own, or with `post_sampling_probs` those
    after all samplers. seed: None chooses one at random. stop: a string, or several, that end the
    answer and are not part of it. speculate: enable speculative decoding, which changes the
    speed of the answer and no token. context_shift: let an answer of `max_tokens`
    continue beyond the context, by dropping the older half of what follows the first
    `context_shift` tokens (-1: the prompt). None ends the answer there.
    """

    max_tokens: int | None = None
    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop: str | Sequence[str] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    post_sampling_probs: bool = False
    speculate: bool = True
    context_shift: int | None = None
    samplers: tuple[str, ...] = DEFAULT_SAMPLERS
    min_keep: int = 0

    def __post_init__(self) -> None:
        for name, allowed in _RANGES.items():
            _check_number(name, getattr(self, name), allowed)
        for name, allowed in _OPTIONAL_RANGES.items():
            if getattr(self, name) is not None:
                _check_number(name, getattr(self, name), allowed)
        if self.mirostat not in (0, 2) or isinstance(self.mirostat, bool):
            raise _refused("mirostat", self.mirostat, "0 (off) or 2")
        for name in ("ignore_eos", "post_sampling_probs", "speculate"):
            if not isinstance(getattr(self, name), bool):
                raise _refused(name, getattr(self, name), "true or false")
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        for name in ("stop", "dry_sequence_breakers", "samplers"):
            object.__setattr__(self, name, _strings(name, getattr(self, name)))
        if sum(map(len, self.stop)) > MAX_STOP_CHARACTERS:
            allowed_text = f"strings of at most {MAX_STOP_CHARACTERS:,} characters in all"
            raise _refused("stop", self.stop, allowed_text)
        if len(self.dry_sequence_breakers) > MAX_BREAKERS:
            allowed_text = f"at most {MAX_BREAKERS} strings"
            raise _refused("dry_sequence_breakers", self.dry_sequence_breakers, allowed_text)
        for breaker in self.dry_sequence_breakers:
            if len(breaker) > MAX_BREAKER_CHARACTERS:
                allowed_text = f"strings of at most {MAX_BREAKER_CHARACTERS} characters"
                raise _refused("dry_sequence_breakers", breaker, allowed_text)
        _check_samplers(self.samplers)
        object.__setattr__(self, "logit_bias", _biases(self.logit_bias))

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken without sampling."""
        return self.temperature < GREEDY_BELOW


def _refused(name: str, value: object, allowed: str) -> RequestError:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    argument = name.partition("[")[0]
    return RequestError(f"{name} is {shown}", f"it must be {allowed}", argument=argument)


def _check_number(name: str, value: object, allowed: _Range) -> None:
    kinds = (int,) if allowed.whole else (int, float)
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise _refused(name, value, allowed.text)
    # Written so that NaN fails; an int may be too large for a float, so it is not converted.
    finite = isinstance(value, int) or math.isfinite(value)
    if not (finite and allowed.low <= value <= allowed.high):
        raise _refused(name, value, allowed.text)


def _strings(name: str, value: object) -> tuple[str, ...]:
    # A bare string is also a sequence of strings, and is not meant as one.
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise _refused(name, value, "a list of strings")
    for item in value:
        if not isinstance(item, str) or not item:
            raise _refused(name, item, "a list of strings that are not empty")
    return tuple(value)


def _check_samplers(samplers: tuple[str, ...]) -> None:
    for name in samplers:
        if name not in DEFAULT_SAMPLERS:
            raise _refused("samplers", name, "names out of " + ", ".join(DEFAULT_SAMPLERS))
    if len(set(samplers)) < len(samplers):
        raise _refused("samplers", samplers, "names that are all different")


def _biases(value: object) -> dict[int, float]:
    """Return a copy, so that later changes of the caller's mapping have no effect."""
    if not isinstance(value, Mapping):
        raise _refused("logit_bias", value, "a mapping of token ids to numbers")
    for token, bias in value.items():
        if not isinstance(token, int) or isinstance(token, bool) or token < 0:
            raise _refused("logit_bias", token, "a mapping whose keys are token ids")
        banned = bias == -math.inf
        if not banned:
            _check_number(f"logit_bias[{token}]", bias, _BIAS)
    return {token: float(bias) for token, bias in value.items()}


_BIAS = _Range(-1e9, 1e9, "between -1e9 and 1e9, or -inf (banned)")
