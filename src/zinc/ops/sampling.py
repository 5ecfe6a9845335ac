"""Sampling on the device: penalties, top-k, top-p, min-p and temperature, in this order.

With it the token of one step is the input of the next, without a round trip to the host. The chain
is llama.cpp's for samplers of these names. `zinc.engine.sampling.common_chain` implements it on the
host, for any k. Host and device draw the same token for the same seed and index, unless two sums
of logit and noise are equal up to the rounding of float32: the host adds them in float64.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from zinc.ops.cases import Case
from zinc.ops.node import Node
from zinc.ops.noise import Draw, gumbel
from zinc.ops.operands import rows
from zinc.ops.penalties import MOST_PENALIZED, RowPenalties, StepPenalties
from zinc.ops.registry import Attrs, Cost, Phase, op
from zinc.ops.step import MOST_BANNED, SAMPLE_PARAMS, SampleParams, SampleParamsArray, Step
from zinc.ops.values import FloatArray

SAMPLED_COLS = 2  # columns of the output
MOST_CANDIDATES = 64  # the largest k
_RECORD = struct.Struct(f"<iifffIQI{MOST_BANNED}I")  # an element of SAMPLE_PARAMS
_NO_BANS = (0,) * MOST_BANNED
assert _RECORD.size == SAMPLE_PARAMS.itemsize
MASS_RESOLUTION = 1e-6  # a mass so near to its target counts as equal to it


def pack_sample_params(rows: Sequence[SampleParams]) -> SampleParamsArray:
    """Return `rows` as a read-only array SAMPLE_PARAMS [rows]."""
    # Every step calls this, and numpy converts tuples more slowly.
    records = [
        _RECORD.pack(*row[:7], len(row.banned), *row.banned, *_NO_BANS[len(row.banned) :])
        for row in rows
    ]
    return np.frombuffer(b"".join(records), SAMPLE_PARAMS)


def sampling_step(step: Step, rows: Sequence[SampleParams]) -> Step:
    """Return `step` with its output rows sampled as `rows` say."""
    return replace(
        step,
        sample_params=pack_sample_params(rows),
        penalties=StepPenalties.of([row.penalties for row in rows]),
    )


def _cost(node: Node) -> Cost:
    logits = node.rows("logits")
    return Cost(row_bytes=4 * logits.cols, row_flops=logits.cols)


def _cases() -> Iterator[Case]:
    for n_vocab in (50, 2048, 5003, 140_000):
        chains = [
            SampleParams(k, min_keep, top_p, min_p, temperature, index, seed)
            for k, min_keep, top_p, min_p, temperature in (
                (1, 0, 1.0, 0.0, 1.0),
                (64, 0, 1.0, 0.0, 1.7),
                (40, 0, 0.95, 0.05, 0.8),
                (13, 0, 0.6, 0.0, 1.0),
                (20, 7, 0.1, 0.9, 2.5),
            )
            for index, seed in ((0, 0), (1, 0), (70_000, 2**64 - 1), (3, 2**40 + 5))
        ]
        case = Case(f"{n_vocab}", len(chains), sample_params=pack_sample_params(chains))
        yield case.returns(case.graph.sample(case.graph.select_rows(case.rows(n_vocab, 3.0))))
    tied = Case(
        "tied",
        6,
        sample_params=pack_sample_params([SampleParams(k, seed=k) for k in (1, 2, 3, 5, 9, 64)]),
    )
    logits = np.full((6, 300), -50, np.float32)
    logits[:, [7, 40, 41, 90, 250, 299]] = [1.0, 2.0, 2.0, 2.0, -3.0, 1.0]
    x = tied.graph.embed(tied.given(logits))
    yield tied.returns(tied.graph.sample(tied.graph.select_rows(x)))
    # Threads of a kernel read every 256th logit: one has all the best, 64 have all, all have some,
    # few have any. The last workgroup has fewer logits than candidates are wanted.
    n = 2 * 8192 + 6
    strided, crowded, rising, few = (np.linspace(-9, 9, n, dtype=np.float32) for _ in range(4))
    strided[::256] += 20
    crowded[np.arange(n) % 256 < 64] += 20
    few[np.arange(n) % 7001 != 3] = -np.inf
    ordered = Case(
        "ordered",
        10,
        sample_params=pack_sample_params([SampleParams(k, seed=k) for k in (1, 64) * 5]),
    )
    logits = np.repeat([strided, crowded, rising, rising[::-1], few], 2, axis=0)
    x = ordered.graph.embed(ordered.given(logits))
    yield ordered.returns(ordered.graph.sample(ordered.graph.select_rows(x)))
    for cols in (300, n):
        bans = ((), (cols - 1,), tuple(range(cols - MOST_BANNED, cols)), (0, cols // 2, cols - 1))
        chains = [SampleParams(k, seed=k, banned=ban) for ban in bans for k in (1, 40)]
        banned = Case(f"banned-{cols}", 8, sample_params=pack_sample_params(chains))
        x = banned.graph.embed(banned.given(np.tile(rising[:cols], (8, 1))))
        yield banned.returns(banned.graph.sample(banned.graph.select_rows(x)))
    yield from map(_penalties_case, (300, n))


def _penalties_case(cols: int) -> Case:
    """Return rows of `cols` logits with penalties on none to most tokens, also the most likely."""
    rng = np.random.default_rng(cols)
    logits = rng.normal(0, 3, (12, cols)).astype(np.float32)
    chains = []
    for i, row in enumerate(logits):
        settings = [(1.3, 0.0, 0.0), (1.0, 1.5, 0.0), (0.7, -0.25, 0.3), (1.1, 1.5, 0.1)][i % 4]
        size = min((0, 1, 5, 300, MOST_PENALIZED, 64)[i % 6], cols)
        tokens = row.argsort()[::-1][:size]  # the most likely ones
        counts = np.stack([tokens, rng.integers(0, 4, size)], axis=1).astype(np.uint32)
        # The input token of row i is i. It is in the window of some rows.
        counts[-1:, 0] = i if i % 2 and i not in tokens else counts[-1:, 0]
        penalties = None if i == 6 else RowPenalties(*settings, counts, counts_input=i % 3 > 0)
        banned = (int(tokens[0]),) if i == 8 else ()
        chains.append(SampleParams(1 if i < 6 else 40, seed=i, banned=banned, penalties=penalties))
    case = Case(
        f"penalties-{cols}",
        len(chains),
        sample_params=pack_sample_params(chains),
        penalties=StepPenalties.of([chain.penalties for chain in chains]),
    )
    x = case.graph.embed(case.given(logits))
    return case.returns(case.graph.sample(case.graph.select_rows(x)))


@op(rows("logits", overwritten=True), cost=_cost, cases=_cases, phase=Phase.SAMPLING, optional=True)
def sample(step: Step, attrs: Attrs, logits: FloatArray) -> Sequence[FloatArray]:
    """Sample a token from each row of logits [outputs, vocab] as `step.sample_params` say.

    Returns float32 [outputs, 2]: the token (exact up to 2^24) and the largest logit of the row, or
    zeros for a row with k = 0. `step.penalties` rewrite the logits first, and banned tokens count
    as tokens whose logit is minus infinity. The k most likely tokens are candidates; the lower id
    wins a tie.
    top_p keeps the fewest candidates whose probabilities reach that sum, min_p the candidates that
    are at least min_p times as likely as the best; both keep at least min_keep. The sampled token
    has the largest sum of logit / temperature and noise. If the largest logit is not finite, the
    first token that has it is returned.
    """
    found = np.zeros((len(logits), 2), np.float32)
    if step.sample_params is not None:
        for i, (row, params, out) in enumerate(zip(logits, step.sample_params, found, strict=True)):
            if params["k"] > 0:
                allowed = row.copy()
                if step.penalties is not None:
                    step.penalties.apply(i, allowed, int(step.ids[step.output_rows[i]]))
                allowed[params["banned"][: params["n_banned"]]] = -np.inf
                out[:] = _sample_row(allowed, params), allowed.max()
    return [found]


def _sample_row(row: FloatArray, params: np.void) -> int:
    best = int(row.argmax())  # the first NaN, if there is one
    if not np.isfinite(row[best]):
        return best
    order = np.lexsort((np.arange(row.size), -row))
    order = order[row[order] > -np.inf][: params["k"]]
    kept, least = row[order].astype(np.float64), max(int(params["min_keep"]), 1)
    n = kept.size
    if params["top_p"] < 1:
        mass = np.exp(kept - kept[0]).cumsum()
        reached = int((mass < mass[-1] * params["top_p"] * (1 - MASS_RESOLUTION)).sum()) + 1
        n = min(n, max(reached, least))
    if params["min_p"] > 0:
        likely = int((kept >= kept[0] + np.log(float(params["min_p"]))).sum())
        n = min(n, max(likely, least))
    noise = gumbel(Draw(int(params["seed"]), int(params["token_index"])), order[:n])
    return int(order[(row[order[:n]] / params["temperature"] + noise).argmax()])
