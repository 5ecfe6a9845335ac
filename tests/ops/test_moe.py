"""Reference ops of experts against a loop over tokens, and routers against their definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zinc.ops import OPS
from zinc.ops.cases import Case
from zinc.ops.moe import SIGMOID, SOFTMAX, SOFTMAX_CHOSEN, SPARSE_MIXER
from zinc.ops.step import Step

STEP: Step = Case("any", 1).step(64)
ROUTER = {"renormalise": 0, "scale": 1.0, "n_groups": 1, "top_groups": 1, "group_top": 1}


def run(op: str, *inputs, **attrs) -> list[np.ndarray]:
    return list(OPS[op].run(STEP, inputs, attrs))


def route(logits, bias=None, **attrs) -> tuple[np.ndarray, np.ndarray]:
    (routes,) = run("route", np.array(logits, np.float32), bias, **{**ROUTER, **attrs})
    ids, weights = np.split(routes, 2, axis=1)
    return ids.astype(int), weights


def test_softmax_weights_are_shares_of_all_experts():
    logits = np.log([[1.0, 4.0, 2.0, 3.0]])
    ids, weights = route(logits, scoring=SOFTMAX, top_k=2)
    assert ids.tolist() == [[1, 3]]
    np.testing.assert_allclose(weights, [[0.4, 0.3]], rtol=1e-6)
    _, weights = route(logits, scoring=SOFTMAX, top_k=2, renormalise=1, scale=2.0)
    np.testing.assert_allclose(weights, [[8 / 7, 6 / 7]], rtol=1e-6)


def test_softmax_over_the_chosen():
    _, weights = route(np.log([[1.0, 4.0, 2.0, 3.0]]), scoring=SOFTMAX_CHOSEN, top_k=2)
    np.testing.assert_allclose(weights, [[4 / 7, 3 / 7]], rtol=1e-6)


def test_a_sparse_mixer_compares_experts_of_nearly_equal_score():
    """The first expert's rival is within 2% of its score; the second one's rivals are not."""
    ids, weights = route([[1.0, 3.0, 3.05, 1.01, -9.0]], scoring=SPARSE_MIXER, top_k=2)
    assert ids.tolist() == [[2, 1]]
    np.testing.assert_allclose(weights, [[1 / (1 + np.exp(-0.05)), 1.0]], rtol=1e-6)


def test_bias_moves_the_choice_and_not_the_weights():
    bias = np.array([10.0, 0.0, 0.0], np.float32)
    ids, weights = route([[-1.0, 1.0, 2.0]], bias, scoring=SIGMOID, top_k=2)
    assert ids.tolist() == [[0, 2]]
    np.testing.assert_allclose(weights, 1 / (1 + np.exp([[1.0, -2.0]])), rtol=1e-6)


def test_groups_rank_by_their_largest_or_by_their_two_largest():
    logits = [[5.0, -9.0, 4.0, 3.0, 1.0, 0.0]]  # groups of two with maxima 5, 4 and 1
    groups = {"n_groups": 3, "top_groups": 1, "scoring": SOFTMAX_CHOSEN, "top_k": 2}
    assert route(logits, group_top=1, **groups)[0].tolist() == [[0, 1]]
    assert route(logits, group_top=2, **groups)[0].tolist() == [[2, 3]]
    # Negative scores are still better than those of an excluded group.
    low = [[-1.0, -2.0, -8.0, -9.0]]
    assert route(low, **{**groups, "n_groups": 2}, group_top=2)[0].tolist() == [[0, 1]]


def test_of_equal_scores_the_first_expert_wins():
    ids, _ = route(np.zeros((3, 7)), scoring=SOFTMAX, top_k=3)
    assert ids.tolist() == [[0, 1, 2]] * 3


@settings(max_examples=40, deadline=None)
@given(
    n_tokens=st.integers(1, 9),
    n_experts=st.integers(1, 12),
    seed=st.integers(0, 99),
    clamped=st.booleans(),
    data=st.data(),
)
def test_experts_agree_with_a_loop_over_tokens(n_tokens, n_experts, seed, clamped, data):
    top_k = data.draw(st.integers(1, n_experts))
    hidden, ff = 6, 5
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    x, residual = normal(n_tokens, hidden), normal(n_tokens, hidden)
    w_gate, w_up = normal(n_experts, ff, hidden), normal(n_experts, ff, hidden)
    w_down = normal(n_experts, hidden, ff)
    b_gate, b_up = normal(n_experts * ff), normal(n_experts * ff)
    b_down, scale = normal(n_experts * hidden), normal(n_experts)
    attrs = {"activation": 3, "alpha": 1.702, "limit": 0.5} if clamped else {"activation": 0}

    logits = normal(n_tokens, n_experts)
    (routes,) = run("route", logits, None, **ROUTER, scoring=SOFTMAX, top_k=top_k)
    order, starts = run("group_experts", routes, n_experts=n_experts)
    assert starts.shape == (1, n_experts + 1)
    assert sorted(order.reshape(-1)) == list(range(n_tokens * top_k))
    (h,) = run("moe_glu", x, order, starts, w_gate, w_up, b_gate, b_up, **attrs)
    (y,) = run("moe_down", h, order, starts, routes, w_down, b_down, scale, residual)

    def sigmoid(v: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-v))

    for t in range(n_tokens):
        expected = residual[t].astype(np.float64)
        for rank in range(top_k):
            e, weight = int(routes[t, rank]), routes[t, top_k + rank]
            g = w_gate[e] @ x[t] + b_gate[e * ff :][:ff]
            u = w_up[e] @ x[t] + b_up[e * ff :][:ff]
            if clamped:
                g, u = np.minimum(g, 0.5), np.clip(u, -0.5, 0.5)
                mid = g * sigmoid(1.702 * g) * (u + 1)
            else:
                mid = g * sigmoid(g) * u
            out = w_down[e] @ mid * scale[e] + b_down[e * hidden :][:hidden]
            expected = expected + weight * out
        np.testing.assert_allclose(y[t], expected, rtol=2e-5, atol=2e-5)


def test_decode_costs_the_chosen_experts_and_a_prompt_all_of_them():
    case = next(c for c in OPS["moe_glu"].cases() if c.name == "F32-1")
    node = next(n for n in case.graph.nodes if n.op == "moe_glu")
    cost = OPS["moe_glu"].cost(node)
    plane_bytes = 2 * 256 * 256 * 4
    assert cost.bytes(1) - cost.row_bytes == 2 * plane_bytes
    assert cost.bytes(100) - 100 * cost.row_bytes == 6 * plane_bytes
    assert cost.flops(3) == 3 * 2 * 2 * 2 * 256 * 256


@pytest.mark.parametrize("n_heads", [1, 3])
def test_head_linear_is_a_block_diagonal_product(n_heads):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((4, n_heads * 8)).astype(np.float32)
    weight = rng.standard_normal((n_heads, 5, 8)).astype(np.float32)
    (y,) = run("head_linear", x, weight, n_heads=n_heads)
    (flat,) = run("head_linear", x, weight.reshape(-1, 8), n_heads=n_heads)
    expected = [weight[h] @ x[:, h * 8 : h * 8 + 8].T for h in range(n_heads)]
    np.testing.assert_allclose(y, np.concatenate(expected).T, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(y, flat)


def test_concat_heads_keeps_heads_together():
    a, b = np.array([[1, 2, 3, 4]], np.float32), np.array([[5, 6]], np.float32)
    (y,) = run("concat_heads", a, b, n_heads=2)
    assert y.tolist() == [[1, 2, 5, 3, 4, 6]]


def test_gate_broadcasts_one_column():
    x, g = np.array([[2.0, 4.0], [1.0, 1.0]], np.float32), np.array([[0.0], [-80.0]], np.float32)
    (y,) = run("gate", x, g)
    np.testing.assert_allclose(y, [[1.0, 2.0], [0.0, 0.0]], atol=1e-30)
