"""The draw of a token among candidates: the largest sum of logit and noise (`zinc.ops.noise`).

Generating noise costs more than a comparison, so most of many candidates are ruled out without it.
The sum of a candidate is at most its logit plus the largest noise of its group of ids, its ceiling.
A candidate whose ceiling is below the sum of another candidate cannot win.
"""

from __future__ import annotations

import numpy as np

from zinc.engine.sampling.candidates import Candidates, Doubles, Floats, Positions, largest
from zinc.ops.noise import GROUP_IDS, Draw, group_maxima, gumbel

_FEW = 256  # with at most this many candidates, all get noise
_FIRST_LOOK = 64  # candidates whose sums raise the bar, if more than _FEW reach it
_RESOLUTION = 1e-5  # relative rounding error of float32 sums


def draw_position(candidates: Candidates, draw: Draw) -> int:
    """Return the position of the drawn token. The earlier candidate wins a tie.

    At least one logit must be finite.
    """
    n = len(candidates)
    if n == 1:
        return 0
    if n <= _FEW:
        ids = np.arange(n) if candidates.ids is None else candidates.ids
        return int((candidates.logits + gumbel(draw, ids)).argmax())
    positions = _contenders(candidates, draw)
    return int(positions[_sums(candidates, positions, draw).argmax()])


def _contenders(candidates: Candidates, draw: Draw) -> Positions:
    """Return the ascending positions of the candidates that can win the draw."""
    logits = candidates.logits
    last = len(candidates) - 1 if candidates.ids is None else int(candidates.ids.max())
    ids, noise = group_maxima(draw, last // GROUP_IDS + 1)
    ceilings = logits + _of_groups(noise.astype(np.float32), candidates)
    peak = np.array([logits.argmax()])
    bar = float(_sums(candidates, peak, draw)[0])
    if candidates.ids is None:
        # The largest noise of a group is known, and so is the sum of the token that has it.
        inside = ids < len(candidates)
        bar = max(bar, float((logits[ids[inside]] + noise[inside]).max(initial=-np.inf)))
    left = _reaching(ceilings, bar)
    if left.size > _FEW:
        first = left[largest(ceilings[left], _FIRST_LOOK)]
        bar = max(bar, float(_sums(candidates, first, draw).max()))
        left = left[_reaching(ceilings[left], bar)]
    return left


def _of_groups(noise: Floats, candidates: Candidates) -> Floats:
    """Return the element of `noise` [groups] of each candidate's group, [n]."""
    if candidates.ids is None:
        return np.repeat(noise, GROUP_IDS)[: len(candidates)]
    return noise[candidates.ids // GROUP_IDS]


def _reaching(ceilings: Floats, bar: float) -> Positions:
    return np.flatnonzero(ceilings >= np.float32(bar - _RESOLUTION * (1 + abs(bar))))


def _sums(candidates: Candidates, positions: Positions, draw: Draw) -> Doubles:
    """Return the sums of logit and noise of the candidates at `positions`."""
    ids = positions if candidates.ids is None else candidates.ids[positions]
    sums: Doubles = candidates.logits[positions] + gumbel(draw, ids)
    return sums
