"""Sampled tokens, and the log-probabilities of the most likely tokens beside them."""

from __future__ import annotations

import math

import numpy as np

from zinc.core.dataclass import dataclass
from zinc.engine.sampling.candidates import Candidates, Floats, largest


@dataclass(frozen=True, slots=True)
class Sampled:
    """A sampled token, with natural logarithms of probabilities.

    Probabilities are the model's own, before any sampler. With `post_sampling_probs` they are the
    probabilities after all samplers. logprob: None unless the request asked for logprobs.
    top_logprobs: (token, logprob) of the most likely tokens, most likely first, as many as the
    request asked for.
    """

    token: int
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()


def log_probabilities(logits: Floats, token: int, top: int) -> Sampled:
    """Return `token` and the `top` most likely tokens with their log-probabilities.

    logits: [n_vocab].
    """
    peak = logits.max()
    log_total = float(peak) + math.log(np.exp(logits - peak).sum(dtype=np.float64))
    return Sampled(
        token,
        float(logits[token]) - log_total,
        tuple((int(i), float(logits[i]) - log_total) for i in largest(logits, top)),
    )


def final_probabilities(candidates: Candidates, token: int, top: int) -> Sampled:
    """Return `token` and the `top` most likely of the candidates that it was sampled from.

    Candidates whose weight underflows to 0 cannot be sampled and are left out.
    """
    weights = candidates.weights()
    total = math.log(weights.sum(dtype=np.float64))

    def logprob(position: int) -> float:
        return math.log(weights[position]) - total

    position = token if candidates.ids is None else int((candidates.ids == token).argmax())
    likeliest = [int(at) for at in candidates.ranking(top) if weights[at] > 0]
    return Sampled(
        token, logprob(position), tuple((candidates.token(at), logprob(at)) for at in likeliest)
    )
