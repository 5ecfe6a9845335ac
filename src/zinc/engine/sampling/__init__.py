"""Sampling: from one row of logits to one token.

`params` holds the settings of a request, `candidates` the tokens that may still be sampled.
`truncation`, `penalties` and `dry` are the samplers; `chain` runs them in order and reports
logprobs, and `draw` samples one of the remaining tokens. Names and semantics of the samplers are
llama.cpp's, so settings carry over. No sampler sorts a whole vocabulary to find a few likely
tokens.
"""

from zinc.engine.sampling.chain import Sampled, Sampler, check_peak, sample_rows
from zinc.engine.sampling.dry import breaker_sequences
from zinc.engine.sampling.params import DEFAULT_SAMPLERS, SamplingParams
from zinc.engine.sampling.recommended import recommended

__all__ = [
    "DEFAULT_SAMPLERS",
    "Sampled",
    "Sampler",
    "SamplingParams",
    "breaker_sequences",
    "check_peak",
    "recommended",
    "sample_rows",
]
