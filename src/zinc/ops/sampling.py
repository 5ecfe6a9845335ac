"""Drawing tokens on the device: top-k, top-p, min-p and temperature, in this order, and a draw.

With it the token of one step feeds the next without a look from the host. The chain is that of
llama.cpp's samplers of these names; the host's `engine.sampling.short` says the same, for chains of
any k. Decisions are taken from the same random number, so that both draw the same token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from zinc.ops.cases import Case
from zinc.ops.graph import Node
from zinc.ops.operands import rows
from zinc.ops.registry import Attrs, Cost, Phase, op
from zinc.ops.step import DRAW, Draws, Step
from zinc.ops.values import FloatArray

MOST_CANDIDATES = 64  # the largest k
MASS_RESOLUTION = 1e-6  # a mass so near to its target counts as equal to it


def draws_of(rows: Sequence[tuple[int, int, float, float, float, float]]) -> Draws:
    """DRAW [rows] of tuples in the order of its fields."""
    return np.array(list(rows), DRAW)


def _cost(node: Node) -> Cost:
    logits = node.rows("logits")
    return Cost(row_bytes=4 * logits.cols, row_flops=logits.cols)


def _cases() -> Iterator[Case]:
    for n_vocab in (50, 2048, 5003, 140_000):
        chains = [
            (k, min_keep, top_p, min_p, temperature, point)
            for k, min_keep, top_p, min_p, temperature in (
                (1, 0, 1.0, 0.0, 1.0),
                (64, 0, 1.0, 0.0, 1.7),
                (40, 0, 0.95, 0.05, 0.8),
                (13, 0, 0.6, 0.0, 1.0),
                (20, 7, 0.1, 0.9, 2.5),
            )
            for point in (0.0, 0.31, 0.77, 1 - 2.0**-24)
        ]
        case = Case(f"{n_vocab}", len(chains), draws=draws_of(chains))
        yield case.returns(case.graph.sample(case.graph.select_rows(case.rows(n_vocab, 3.0))))
    tied = Case(
        "tied", 6, draws=draws_of([(k, 0, 1.0, 0.0, 1.0, 0.9) for k in (1, 2, 3, 5, 9, 64)])
    )
    logits = np.full((6, 300), -50, np.float32)
    logits[:, [7, 40, 41, 90, 250, 299]] = [1.0, 2.0, 2.0, 2.0, -3.0, 1.0]
    x = tied.graph.embed(tied.given(logits))
    yield tied.returns(tied.graph.sample(tied.graph.select_rows(x)))


@op(rows("logits"), cost=_cost, cases=_cases, phase=Phase.SAMPLING, optional=True)
def sample(step: Step, attrs: Attrs, logits: FloatArray) -> Sequence[FloatArray]:
    """For each row of logits [outputs, vocab] the token that `step.draws` gives it and the row's
    largest logit: [outputs, 2], zeros for a row that is not drawn.

    The k likeliest tokens stay, of equals those of the lowest ids; of them the fewest likeliest
    that have a share of top_p, and those at least min_p times as likely as the likeliest, but not
    fewer than min_keep. One is drawn by its share at the temperature: the first whose running sum
    exceeds `point` of the whole. Of a row whose largest logit is no finite number it is the first
    that has it. Tokens are float32, exact up to 2^24.
    """
    found = np.zeros((len(logits), 2), np.float32)
    if step.draws is not None:
        for row, draw, out in zip(logits, step.draws, found, strict=True):
            if draw["k"] > 0:
                out[:] = _draw(row, draw), row.max()
    return [found]


def _draw(row: FloatArray, draw: np.void) -> int:
    best = int(row.argmax())  # the first NaN, if there is one
    if not np.isfinite(row[best]):
        return best
    order = np.lexsort((np.arange(row.size), -row))
    order = order[row[order] > -np.inf][: draw["k"]]
    kept, least = row[order].astype(np.float64), max(int(draw["min_keep"]), 1)
    n = kept.size
    if draw["top_p"] < 1:
        mass = np.exp(kept - kept[0]).cumsum()
        reached = int((mass < mass[-1] * draw["top_p"] * (1 - MASS_RESOLUTION)).sum()) + 1
        n = min(n, max(reached, least))
    if draw["min_p"] > 0:
        likely = int((kept >= kept[0] + np.log(float(draw["min_p"]))).sum())
        n = min(n, max(likely, least))
    shares = np.exp((kept[:n] - kept[0]) / draw["temperature"]).cumsum()
    return int(order[min(int((shares <= draw["point"] * shares[-1]).sum()), n - 1)])
