"""Samplers that remove unlikely tokens, and temperature: `Candidates` → `Candidates`.

Each is a plain function, tested against a reference that sorts everything. Weights are float32,
their sums float64. A mass within 1e-6 of its target counts as equal, which is the precision of the
weights, so 0.4 + 0.3 reaches a top-p of 0.7. A token at -inf is never a candidate.
"""

from __future__ import annotations

import math

import numpy as np

from zinc.engine.sampling.candidates import Candidates, Floats, largest

MASS_RESOLUTION = 1e-6

_FIRST_LOOK = 256  # candidates ranked before the first look at their mass
_GROWTH = 8  # factor for each further look


def top_k(candidates: Candidates, k: int) -> Candidates:
    """Keep the k most likely tokens (Fan et al. 2018, arXiv:1805.04833); k <= 0 is off."""
    return candidates if k <= 0 else candidates.top(k)


def top_p(candidates: Candidates, p: float, min_keep: int = 0) -> Candidates:
    """Keep the fewest most likely tokens with a mass of p.

    Holtzman et al. 2019, arXiv:1904.09751.
    """
    if p >= 1:
        return candidates
    weights = candidates.weights()
    if candidates.ordered:
        mass = weights.cumsum(dtype=np.float64)
        enough = int(mass.searchsorted(p * mass[-1] * (1 - MASS_RESOLUTION))) + 1
        return candidates.head(max(enough, min_keep, 1))
    target = p * weights.sum(dtype=np.float64) * (1 - MASS_RESOLUTION)
    first = max(_FIRST_LOOK, min_keep)
    while True:
        ranking = candidates.ranking(first)
        enough = _reach(weights[ranking], target)
        if enough <= ranking.size or ranking.size < first:
            return candidates.take(ranking[: max(enough, min_keep, 1)], ordered=True)
        first *= _GROWTH


def min_p(candidates: Candidates, p: float, min_keep: int = 0) -> Candidates:
    """Keep tokens at least p times as likely as the best (Nguyen et al. 2024, arXiv:2407.01082).

    No probabilities are needed: in logits, the threshold is peak + ln p.
    """
    if p <= 0:
        return candidates
    threshold = candidates.peak() + np.float32(math.log(p))
    if candidates.ordered:
        n = int(np.count_nonzero(candidates.logits >= threshold))
        return candidates.head(max(n, min_keep, 1))
    positions = np.flatnonzero(candidates.logits >= threshold)
    if positions.size < max(min_keep, 1):
        return candidates.top(max(min_keep, 1))
    return candidates.take(positions, ordered=candidates.ordered)


def typical_p(candidates: Candidates, p: float, min_keep: int = 0) -> Candidates:
    """Keep the fewest tokens with a mass above p whose surprise is nearest to the entropy.

    Meister et al. 2022, arXiv:2202.00666. The earlier candidate wins a tie.
    """
    if p >= 1:
        return candidates
    weights = candidates.weights()
    total = weights.sum(dtype=np.float64)
    # The logarithm of a probability of 0 is replaced by 0, since 0 · ln 0 is 0 in an entropy.
    log_p = candidates.logits - candidates.peak() - np.float32(np.log(total))
    possible = weights > 0
    entropy = -np.vdot(weights, np.where(possible, log_p, 0)) / total
    nearness = np.where(possible, -np.abs(log_p + np.float32(entropy)), -np.inf)
    target = p * total * (1 + MASS_RESOLUTION)
    first = max(_FIRST_LOOK, min_keep)
    while True:
        nearest = largest(nearness, first)
        enough = _reach(weights[nearest], target)
        if enough <= nearest.size or nearest.size < first:
            kept = np.sort(nearest[: max(enough, min_keep, 1)])
            return candidates.take(kept, ordered=candidates.ordered)
        first *= _GROWTH


def top_n_sigma(candidates: Candidates, n: float) -> Candidates:
    """Keep tokens within n standard deviations of the largest logit.

    Tang et al. 2024, arXiv:2411.07641. The deviation is that of the finite logits; n <= 0 is off.
    """
    if n <= 0 or len(candidates) <= 1:
        return candidates
    logits = candidates.logits
    finite = logits if logits.min() > -np.inf else logits[logits > -np.inf]
    deviation = finite.std(dtype=np.float64)
    threshold = np.float32(candidates.peak() - n * deviation)
    return candidates.take(np.flatnonzero(logits >= threshold), ordered=candidates.ordered)


def xtc(candidates: Candidates, threshold: float, min_keep: int = 0) -> Candidates:
    """Remove all tokens of at least this probability except the least likely of them.

    "Exclude top choices": at most 1 / threshold tokens qualify. The caller decides at random
    whether a step does this. Nothing is removed if fewer than min_keep tokens would be left.
    """
    if threshold > 0.5 or len(candidates) < 2:
        return candidates
    weights = candidates.weights()
    share = np.float32(threshold * weights.sum(dtype=np.float64) * (1 - MASS_RESOLUTION))
    likely = np.flatnonzero((weights >= share) & (weights > 0))
    if likely.size < 2 or len(candidates) - (likely.size - 1) < min_keep:
        return candidates
    likely = likely[np.argsort(-candidates.logits[likely], kind="stable")]
    kept = np.ones(len(candidates), np.bool_)
    kept[likely[:-1]] = False
    return candidates.take(np.flatnonzero(kept), ordered=candidates.ordered)


def temperature(candidates: Candidates, t: float) -> Candidates:
    """Divide the logits by t > 0: below 1 sharpens the distribution, above 1 flattens it."""
    if t == 1:
        return candidates
    return Candidates(candidates.logits / np.float32(t), candidates.ids, candidates.ordered)


def surprise_cut(candidates: Candidates, limit_bits: float) -> Candidates:
    """Keep tokens whose surprise -log2(probability) is at most `limit`.

    The most likely token is always kept.
    """
    total = candidates.weights().sum(dtype=np.float64)
    threshold = candidates.peak() + np.float32(np.log(total) - limit_bits * np.log(2))
    positions = np.flatnonzero(candidates.logits >= threshold)
    if positions.size == 0:
        return candidates.top(1)
    return candidates.take(positions, ordered=candidates.ordered)


def _reach(weights: Floats, target: float) -> int:
    """Return how many leading weights sum to `target`; n + 1 if all do not."""
    return int(np.searchsorted(np.cumsum(weights, dtype=np.float64), target)) + 1
