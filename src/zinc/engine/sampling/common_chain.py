"""The common chain on several rows at once: top-k, top-p, min-p, temperature, sample.

After top-k a row is a few dozen numbers, and the overhead of a numpy call exceeds the computation.
So rows with these samplers in this order are sampled together. Every operation runs along a row, so
the result of a row does not depend on the others. A single row is left to `truncation`, which
implements the same samplers for one row and in any order; tests compare the two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from zinc.core.dataclass import dataclass
from zinc.engine.sampling import truncation
from zinc.engine.sampling.candidates import Candidates
from zinc.engine.sampling.draw import draw_position
from zinc.engine.sampling.params import SamplingParams
from zinc.engine.sampling.truncation import MASS_RESOLUTION
from zinc.ops.noise import Draw, gumbel, gumbel_rows

ORDER = ("top_k", "top_p", "min_p", "temperature")
MOST = 256


@dataclass(frozen=True, slots=True)
class CommonChain:
    """Settings of the common chain. top_p 1, min_p 0 and temperature 1 are neutral."""

    k: int
    top_p: float
    min_p: float
    temperature: float
    min_keep: int

    @classmethod
    def of(cls, params: SamplingParams, active: Sequence[str]) -> CommonChain | None:
        """Return the common chain of the `active` samplers, or None if they form another chain."""
        in_order = [name for name in ORDER if name in active]
        if list(active) != in_order or not active or active[0] != "top_k":
            return None
        if params.greedy or params.mirostat or params.top_k > MOST:
            return None
        return cls(
            params.top_k,
            params.top_p if "top_p" in active else 1.0,
            params.min_p if "min_p" in active else 0.0,
            params.temperature if "temperature" in active else 1.0,
            params.min_keep,
        )

    def sample(self, row: Candidates, draw: Draw) -> int:
        """Sample a token of one row, with the rounding of `sample_common`."""
        left = truncation.top_p(row.top(self.k), self.top_p, self.min_keep)
        left = truncation.min_p(left, self.min_p, self.min_keep)
        left = truncation.temperature(left, self.temperature)
        return left.token(draw_position(left, draw))

    def draws_first(self, likely: Candidates, draw: Draw) -> bool:
        """Return whether the first of `likely` is drawn, whichever of the others are allowed.

        likely: the most likely tokens, at least k if there are as many, most likely first. False
        if that depends on tokens beyond them.
        """
        logits = likely.logits
        if self.min_keep > 1:
            return False
        mass = np.exp(logits[: self.k] - logits[0]).sum(dtype=np.float64)
        if self.top_p < 1 and mass * self.top_p < 1 - MASS_RESOLUTION:
            return True  # top-p keeps no other: fewer candidates have less mass
        if self.min_p <= 0:
            return False
        n = int(np.count_nonzero(logits >= logits[0] + np.float32(math.log(self.min_p))))
        if n == len(likely) > 1:
            return False
        tempered = logits[:n] / np.float32(self.temperature)
        ids = np.array([likely.token(i) for i in range(n)])
        return n == 1 or not (tempered + gumbel(draw, ids)).argmax()


def sample_common(
    chains: Sequence[CommonChain], rows: Sequence[Candidates], draws: Sequence[Draw]
) -> list[int]:
    """Sample a token of each row. draws: seed and index of each row's token.

    Each row must have a finite logit.
    """
    if len(rows) == 1:
        return [chains[0].sample(rows[0], draws[0])]
    tops = [row.top(chain.k) for chain, row in zip(chains, rows, strict=True)]
    sizes = np.array([len(top) for top in tops])
    width = int(sizes.max())
    logits = np.full((len(rows), width), -np.inf, np.float32)
    ids = np.zeros((len(rows), width), np.int64)
    for i, top in enumerate(tops):
        logits[i, : len(top)] = top.logits
        ids[i, : len(top)] = np.arange(len(top)) if top.ids is None else top.ids
    min_keep = np.array([max(chain.min_keep, 1) for chain in chains])
    n_kept = sizes
    if any(chain.top_p < 1 for chain in chains):
        mass = np.exp(logits - logits[:, :1]).cumsum(axis=1, dtype=np.float64)
        target = mass[:, -1] * np.array([c.top_p for c in chains]) * (1 - MASS_RESOLUTION)
        reached = (mass < target[:, None]).sum(axis=1) + 1
        enough = np.where([c.top_p < 1 for c in chains], reached, sizes)
        n_kept = np.minimum(n_kept, np.maximum(enough, min_keep))
    if any(chain.min_p > 0 for chain in chains):
        least = [math.log(c.min_p) if c.min_p > 0 else -math.inf for c in chains]
        threshold = logits[:, 0] + np.array(least, np.float32)
        likely = (logits >= threshold[:, None]).sum(axis=1)
        n_kept = np.minimum(n_kept, np.maximum(likely, min_keep))
    inside = np.arange(width) < n_kept[:, None]
    temperatures = np.array([c.temperature for c in chains], np.float32)[:, None]
    sums = np.where(inside, logits / temperatures, -np.inf).astype(np.float64)
    inside[n_kept == 1] = False
    which, _ = np.nonzero(inside)
    sums[inside] += gumbel_rows(draws, which, ids[inside])
    return [top.token(at) for top, at in zip(tops, sums.argmax(axis=1).tolist(), strict=True)]
