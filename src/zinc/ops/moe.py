"""Mixture of experts: the choice of experts for each token, and their matrix products.

A layer is four launches. `route` selects top_k experts for each token, which take a slot each: slot
token * top_k + rank. `group_experts` sorts the slots by expert (a counting sort). `moe_glu` and
`moe_down` are matrix products that process one expert after another, so prefill reads the weights
of each expert once, and decode reads only those of the selected experts.

    routes  [tokens, 2 top_k]   top_k expert ids, best first, then their weights
    order   [tokens, top_k]     slots sorted by expert, then by slot
    starts  [1, experts + 1]    index in `order` of the first slot of each expert
    h       [tokens, top_k ff]  columns [r ff, (r + 1) ff) are the run of rank r; a block of a
                                quantised format never spans two runs

Ids and slots are stored as float32, which is exact: they stay far below 2^24.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from zinc.ops.cases import WEIGHT_TYPES, Case
from zinc.ops.costs import elementwise_cost, weight_bytes
from zinc.ops.elementwise import Float64Array, activate, sigmoid
from zinc.ops.node import Node
from zinc.ops.operands import matrix, rows, vector
from zinc.ops.registry import Attrs, ColumnSum, Cost, Division, Phase, op
from zinc.ops.step import IntArray, Step
from zinc.ops.values import ActivationFn, FloatArray, Value, Weight
from zinc.quant.blocks import BLOCKS, GGMLType

# Scoring functions of a router: softmax over all experts; sigmoid of each score; softmax over the
# chosen experts; for each chosen expert, softmax over the experts with a score close to its own.
SOFTMAX, SIGMOID, SOFTMAX_CHOSEN, SPARSE_MIXER = range(4)
NEARLY = 0.02  # relative difference of scores up to which SPARSE_MIXER compares experts


def _softmax(x: Float64Array) -> Float64Array:
    e: Float64Array = np.exp(x - x.max(axis=1, keepdims=True))
    total: Float64Array = e.sum(axis=1, keepdims=True)
    return e / total


def _best(scores: Float64Array, count: int) -> IntArray:
    """Return the columns of the `count` largest of each row, best first; ties by column."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :count].astype(np.int32)


def _among_near(scores: Float64Array, ids: IntArray) -> Float64Array:
    """Return the weight of each chosen expert `ids` among those whose score nearly equals its own.

    The experts that rank before it are left out (Liu et al. 2024, GRIN, section 2.2).
    """
    left, weights = scores.copy(), []
    for chosen in ids.T[:, :, None]:
        best = np.take_along_axis(scores, chosen, axis=1)
        is_near = best - left <= NEARLY * np.maximum(np.abs(left), best)
        weights.append(1 / np.where(is_near, np.exp(left - best), 0.0).sum(axis=1))
        np.put_along_axis(left, chosen, -np.inf, axis=1)
    return np.stack(weights, axis=1)


def _route_cases() -> Iterator[Case]:
    for name, n_experts, top_k, bias, attrs in (
        ("softmax", 64, 8, False, {"scoring": SOFTMAX, "renormalise": True}),
        ("softmax-scaled", 60, 4, False, {"scoring": SOFTMAX, "scale": 16.0}),
        ("chosen", 32, 4, False, {"scoring": SOFTMAX_CHOSEN}),
        ("sparse-mixer", 16, 2, False, {"scoring": SPARSE_MIXER}),
        ("sigmoid", 128, 8, True, {"scoring": SIGMOID, "renormalise": True, "scale": 2.5}),
        ("max-of-group", 48, 6, False, {"scoring": SOFTMAX, "n_groups": 8, "top_groups": 3}),
        (
            "sum-of-two",
            32,
            6,
            True,
            {"scoring": SIGMOID, "n_groups": 4, "top_groups": 2, "group_top": 2},
        ),
    ):
        case = Case(name, n_tokens=23)
        logits = case.rows(n_experts, scale=2.0)
        routes = case.graph.route(
            logits,
            case.vector(n_experts) if bias else None,
            top_k=top_k,
            **attrs,
        )
        yield case.returns(routes)
    near = Case("sparse-mixer-near", n_tokens=5)
    steps = np.array([1, 0.99, 0.985, 0.7, -1, 0.972, 0.5, 0.995], np.float32)
    scales = np.array([3, 1, 40, -2, 0], np.float32)
    logits = near.graph.embed(near.given(np.outer(scales, steps)))
    yield near.returns(near.graph.route(logits, None, top_k=3, scoring=SPARSE_MIXER))
    # Equal scores, and scores that differ in the last bit of a float32.
    tied = Case("tied", n_tokens=6)
    scores = np.tile(np.array([1, 2, 2, 0.5, 2, 1, 2, 1], np.float32), (6, 5))
    scores[1::2, 17] = np.nextafter(np.float32(2), np.float32(3))
    logits = tied.graph.embed(tied.given(scores))
    yield tied.returns(tied.graph.route(logits, None, top_k=6, scoring=SOFTMAX_CHOSEN))


@op(
    rows("logits"),
    vector("bias", optional=True),
    cost=elementwise_cost,
    cases=_route_cases,
    phase=Phase.MOE,
    row_wise=True,
    discrete=True,
)
def route(
    step: Step, attrs: Attrs, logits: FloatArray, bias: FloatArray | None
) -> Sequence[FloatArray]:
    """Return the expert ids and weights of each token, from router logits [tokens, experts].

    `scoring` says how scores follow from logits: 0 softmax, 1 sigmoid, 2 none (softmax over the
    chosen), 3 none (`_among_near`, without groups). A bias [experts] changes the choice and not the
    weights (DeepSeek-AI 2024, DeepSeek-V3, 2.1.2). With n_groups > 1, experts compete only within
    the `top_groups` best groups; the score of a group is the sum of its `group_top` best experts (1
    in DeepSeek-V2, 2 in V3). `renormalise` divides the weights by their sum; then they are
    multiplied by `scale`.
    """
    scoring, top_k, n_groups = int(attrs["scoring"]), int(attrs["top_k"]), int(attrs["n_groups"])
    scores = logits.astype(np.float64)
    if scoring == SOFTMAX:
        scores = _softmax(scores)
    elif scoring == SIGMOID:
        scores = sigmoid(scores)
    choice = scores if bias is None else scores + bias
    if n_groups > 1:
        groups = choice.reshape(len(choice), n_groups, choice.shape[1] // n_groups)
        totals = np.sort(groups, axis=2)[:, :, -int(attrs["group_top"]) :].sum(axis=2)
        masked = np.full_like(groups, -np.inf)
        token = np.arange(len(choice))[:, None]
        kept = _best(totals, int(attrs["top_groups"]))
        masked[token, kept] = groups[token, kept]
        choice = masked.reshape(choice.shape)
    ids = _best(choice, top_k)
    weights = np.take_along_axis(scores, ids, axis=1)
    if scoring == SOFTMAX_CHOSEN:
        weights = _softmax(weights)
    elif scoring == SPARSE_MIXER:
        weights = _among_near(scores, ids)
    if attrs["renormalise"]:
        weights = weights / (weights.sum(axis=1, keepdims=True) + 1e-20)
    weights = weights * float(attrs["scale"])
    return [np.concatenate([ids, weights], axis=1).astype(np.float32)]


def _group_cases() -> Iterator[Case]:
    for n_tokens, n_experts, top_k in ((1, 16, 4), (37, 8, 2)):
        case = Case(f"{n_tokens}x{n_experts}", n_tokens=n_tokens)
        routes = case.graph.route(case.rows(n_experts), None, top_k=top_k, scoring=SOFTMAX)
        order, _ = case.graph.group_experts(routes, n_experts=n_experts)
        yield case.returns(order)


@op(
    rows("routes"),
    cost=elementwise_cost,
    cases=_group_cases,
    tolerance=0.0,
    phase=Phase.MOE,
    row_wise=True,  # the slots are those of the selected rows
)
def group_experts(step: Step, attrs: Attrs, routes: FloatArray) -> Sequence[FloatArray]:
    """Return the slots sorted by expert, and the index of each expert's first slot."""
    top_k = routes.shape[1] // 2
    ids = routes[:, :top_k].astype(np.int32).reshape(-1)
    order = np.argsort(ids, kind="stable").reshape(-1, top_k)
    counts = np.bincount(ids, minlength=int(attrs["n_experts"]))
    starts = np.concatenate([[0], np.cumsum(counts)])[None, :]
    return [order.astype(np.float32), starts.astype(np.float32)]


def _runs(order: FloatArray, starts: FloatArray) -> Iterator[tuple[int, IntArray]]:
    """Yield each chosen expert and its slots."""
    slots, bounds = order.reshape(-1).astype(np.int32), starts[0].astype(np.int32)
    for expert in range(len(bounds) - 1):
        if bounds[expert] < bounds[expert + 1]:
            yield expert, slots[bounds[expert] : bounds[expert + 1]]


def _cost(node: Node) -> Cost:
    """Return the cost of a product with experts: each chosen expert is read once.

    At most one expert for each slot is chosen.
    """
    order = node.rows("order")
    weights = [w for w in node.inputs if isinstance(w, Weight) and not w.is_vector]
    read = [v.cols for v in node.inputs if isinstance(v, Value)]
    return Cost(
        row_bytes=4 * (sum(read) + sum(v.cols for v in node.outputs)),
        row_flops=order.cols * sum(2 * w.rows * w.cols for w in weights),
        expert_bytes=sum(weight_bytes(w) // w.planes for w in weights),
        experts_per_row=order.cols,
        n_experts=weights[0].planes,
    )


def _expert_case(
    name: str,
    n_tokens: int,
    type: GGMLType,
    *,
    n_experts: int = 6,
    top_k: int = 2,
    width: int = 256,
    clamped: bool = False,
    gated: bool = True,
    down: bool = False,
) -> Case:
    hidden = ff = width
    case = Case(name, n_tokens=n_tokens)
    g, x = case.graph, case.rows(hidden)
    routes = g.route(case.rows(n_experts), None, top_k=top_k, scoring=SOFTMAX, renormalise=True)
    order, starts = g.group_experts(routes, n_experts=n_experts)
    bias = [case.vector(n_experts * ff) if clamped else None for _ in range(2)]
    gate, up = (case.experts(n_experts, ff, hidden, type, hidden**-0.5) for _ in range(2))
    given: dict[str, Any] = {"activation": ActivationFn.SILU}
    if clamped:
        given = {"activation": ActivationFn.CLAMPED_SWIGLU, "alpha": 1.702, "limit": 7.0}
    if not gated:
        given = {"activation": ActivationFn.GELU}
    h = g.moe_glu(x, order, starts, gate, up if gated else None, bias[0], bias[1], **given)
    if not down:
        return case.returns(h)
    w_down = case.experts(n_experts, hidden, ff, type, ff**-0.5)
    b_down = case.vector(n_experts * hidden) if clamped else None
    scale = case.vector(n_experts) if clamped else None
    y = g.moe_down(h, order, starts, routes, w_down, b_down, scale)
    return case.returns(g.add(y, x) if clamped else y)


def _division(node: Node) -> Division:
    """Return the division by the columns of each expert."""
    gate = node.weight("gate")
    biases = (gate.rows,) * gate.planes
    return Division(
        gate.rows,
        whole=frozenset({"x", "order", "starts"}),
        sections={"gate_bias": biases, "up_bias": biases},
    )


def _glu_cases() -> Iterator[Case]:
    for type in WEIGHT_TYPES:
        for n_tokens in (1, 29):
            yield _expert_case(f"{BLOCKS[type].name}-{n_tokens}", n_tokens, type)
    yield _expert_case("clamped", 5, GGMLType.F32, clamped=True)
    for n_tokens in (1, 29):
        yield _expert_case(f"ungated-{n_tokens}", n_tokens, GGMLType.Q4_K, gated=False)
    yield _expert_case("ungated-down", 29, GGMLType.Q8_0, gated=False, down=True)


@op(
    rows("x", weight_format=True),
    rows("order"),
    rows("starts"),
    matrix("gate"),
    matrix("up", optional=True),
    vector("gate_bias", optional=True),
    vector("up_bias", optional=True),
    cost=_cost,
    cases=_glu_cases,
    phase=Phase.MOE,
    row_wise=True,
    stores_formats=True,
    division=_division,
)
def moe_glu(
    step: Step,
    attrs: Attrs,
    x: FloatArray,
    order: FloatArray,
    starts: FloatArray,
    gate: FloatArray,
    up: FloatArray | None,
    gate_bias: FloatArray | None,
    up_bias: FloatArray | None,
) -> Sequence[FloatArray]:
    """Return h[slot] = activation(x[token] @ gate[e].T + b) * (x[token] @ up[e].T + b).

    e is the expert of the slot. Without `up`, the second factor is 1. gate and up are
    [experts, ff, hidden]; biases are flat, [experts * ff].
    """
    top_k, ff = order.shape[1], gate.shape[1]
    h = np.empty((order.size, ff), dtype=np.float32)
    for e, slots in _runs(order, starts):
        chosen = x[slots // top_k]
        gates = chosen @ gate[e].T
        ups = np.ones_like(gates) if up is None else chosen @ up[e].T
        if gate_bias is not None:
            gates = gates + gate_bias.reshape(-1, ff)[e]
        if up_bias is not None:
            ups = ups + up_bias.reshape(-1, ff)[e]
        h[slots] = activate(int(attrs["activation"]), gates, ups, attrs)
    return [h.reshape(len(x), top_k * ff)]


def _down_cases() -> Iterator[Case]:
    for type in WEIGHT_TYPES:
        for n_tokens in (1, 29):
            yield _expert_case(f"{BLOCKS[type].name}-{n_tokens}", n_tokens, type, down=True)
    yield _expert_case("clamped", 5, GGMLType.F32, clamped=True, down=True)
    yield _expert_case("all", 2, GGMLType.F32, n_experts=256, top_k=256, width=32, down=True)


@op(
    rows("h", weight_format=True),
    rows("order"),
    rows("starts"),
    rows("routes"),
    matrix("down"),
    vector("bias", optional=True),
    vector("scale", optional=True),
    rows("residual", optional=True, residual=True, in_place=True),
    cost=_cost,
    cases=_down_cases,
    phase=Phase.MOE,
    row_wise=True,
    sums=ColumnSum("h", "down", once=frozenset({"bias"})),
)
def moe_down(
    step: Step,
    attrs: Attrs,
    h: FloatArray,
    order: FloatArray,
    starts: FloatArray,
    routes: FloatArray,
    down: FloatArray,
    bias: FloatArray | None,
    scale: FloatArray | None,
    residual: FloatArray | None,
) -> Sequence[FloatArray]:
    """Return the sum over ranks of weight * (scale[e] * h[slot] @ down[e].T + b[e]), plus residual.

    down is [experts, hidden, ff], the bias flat [experts * hidden], scale [experts]. A kernel may
    add the experts of a token in the order of their ids: that needs no temporary memory, and the
    order does not depend on other tokens.
    """
    top_k, hidden, ff = order.shape[1], down.shape[1], down.shape[2]
    slot_rows = h.reshape(-1, ff)
    weights = routes[:, top_k:].reshape(-1, 1)
    y = np.zeros((len(h), hidden), dtype=np.float64)
    for e, slots in _runs(order, starts):
        out = slot_rows[slots] @ down[e].T
        if scale is not None:
            out = out * scale[e]
        if bias is not None:
            out = out + bias.reshape(-1, hidden)[e]
        y[slots // top_k] += weights[slots] * out
    mixed: FloatArray = y.astype(np.float32)
    return [mixed if residual is None else mixed + residual]
