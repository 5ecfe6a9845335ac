"""Sampling: from one row of logits to one token.

`params` says what a request asked for, `candidates` holds the tokens still in the running,
`truncation`, `penalties` and `dry` are the samplers, and `chain` strings them together, draws and
reports logprobs. The names and semantics of the samplers are those of llama.cpp, so settings
carry over; nothing here ever sorts a whole vocabulary to find a few likely tokens.
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
