"""Sampling: from one row of logits to one token.

`params` holds the settings of a request, `candidates` the tokens that may still be sampled.
`truncation`, `penalties` and `dry` are the samplers; `sampler` runs them in order, `draw` samples
one of the remaining tokens, and `logprobs` reports probabilities. Names and semantics of the
samplers are llama.cpp's, so settings carry over. No sampler sorts a whole vocabulary to find a few
likely tokens.
"""

from zinc.engine.sampling.dry import breaker_sequences
from zinc.engine.sampling.logprobs import Sampled
from zinc.engine.sampling.params import DEFAULT_SAMPLERS, SamplingParams
from zinc.engine.sampling.recommended import recommended
from zinc.engine.sampling.sampler import Sampler, check_peak, sample_rows

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
