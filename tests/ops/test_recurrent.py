"""The reference ops with recurrent state: the chunkwise form against the recurrence."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from zinc.ops import OPS
from zinc.ops.cases import Case
from zinc.ops.node import Node
from zinc.ops.recurrent import DeltaShape, delta_case, delta_rule_in_chunks
from zinc.ops.recurrent_state import CHUNK, StateView
from zinc.ops.registry import Reference
from zinc.ops.ssm import ssm_scan_in_chunks
from zinc.ops.step import Step
from zinc.ops.values import RecurrentState, Value, Weight

PLAIN = OPS["delta_rule"].reference
NAMES = ("delta_rule", "ssm_scan", "selective_scan", "causal_conv", "token_shift", "wkv7")
CASES = [case for name in NAMES for case in OPS[name].cases()]
# Cases with the recurrence and the chunkwise form of their op.
FORMS = [
    (case, OPS[name].reference, in_chunks)
    for name, in_chunks in (("delta_rule", delta_rule_in_chunks), ("ssm_scan", ssm_scan_in_chunks))
    for case in OPS[name].cases()
]
LONG = delta_case("long", DeltaShape(2, 4, 32, 16), (3 * CHUNK + 11,), decay_rate=0.05)


def steps(lengths: Sequence[int], cut: int) -> list[tuple[Step, np.ndarray]]:
    """Return steps of at most `cut` tokens a sequence, and the rows of the case in each step."""
    starts = np.concatenate([[0], np.cumsum(lengths)])
    result = []
    for at in range(0, max(lengths), cut):
        ends = [min(n, at + cut) for n in lengths]
        # The sequences of a step are in another order than their slots.
        running = [s for s, end in enumerate(ends) if at < end][::-1]
        counts = [ends[s] - at for s in running]
        rows = np.concatenate([starts[s] + np.arange(at, ends[s]) for s in running])
        result.append((_step(running, counts, at), rows))
    return result


def _step(slots: Sequence[int], counts: Sequence[int], position: int) -> Step:
    n = sum(counts)
    return Step(
        ids=np.zeros(n, np.int32),
        positions=np.concatenate([position + np.arange(c, dtype=np.int32) for c in counts]),
        sequence=np.repeat(np.arange(len(slots), dtype=np.int32), counts),
        output_rows=np.arange(n, dtype=np.int32),
        seq_start=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        state_slot=np.array(slots, np.int32),
    )


def run(case: Case, reference: Reference, cut: int = 1 << 20, seed: int = 0) -> np.ndarray:
    """Return the output of the op of a case, run in steps of at most `cut` tokens.

    State slots are filled with noise first.
    """
    node = next(n for n in case.graph.nodes if n.op in NAMES)
    view = StateView(np.zeros((0, 0), np.float32))
    inputs = []
    for x in node.inputs:
        match x:
            case Value():
                inputs.append(case.tensors[_table(case, x).name])
            case Weight():
                inputs.append(case.tensors[x.name])
            case None:
                inputs.append(None)
            case RecurrentState():
                noise = np.random.default_rng(seed).standard_normal((len(case.sequences), x.floats))
                view.slots = noise.astype(np.float32)
                inputs.append(view)
    y = np.full((case.n_tokens, node.outputs[0].cols), np.nan, np.float32)
    for step, rows in steps(case.sequences, cut):
        operands = zip(inputs, node.inputs, strict=True)
        part = [x[rows] if isinstance(of, Value) else x for x, of in operands]
        named = OPS[node.op].signature.named(part)
        (y[rows],) = reference(step, node.attrs, **named)
    assert np.isfinite(view.slots).all()
    return y


def _table(case: Case, value: Value) -> Weight:
    """Return the table from which the rows of a value are embedded."""
    node: Node = next(n for n in case.graph.nodes if value in n.outputs)
    return node.weight("table")


def error(got: np.ndarray, want: np.ndarray) -> float:
    """Return the largest error relative to the largest wanted value."""
    return float(np.abs(got - want).max() / np.abs(want).max())


@pytest.mark.alike(18)
@pytest.mark.parametrize(("case", "plain", "in_chunks"), FORMS)
@pytest.mark.parametrize("cut", [1, 7, CHUNK, 1 << 20])
def test_the_chunkwise_form_equals_the_recurrence(
    case: Case, plain: Reference, in_chunks: Reference, cut: int
) -> None:
    assert error(run(case, in_chunks, cut), run(case, plain)) < 2e-6


@pytest.mark.alike(24)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("cut", [1, 2, 13])
def test_the_result_does_not_depend_on_how_a_prompt_was_cut(case: Case, cut: int) -> None:
    op = next(n.op for n in case.graph.nodes if n.op in NAMES)
    reference: Callable[..., Sequence[np.ndarray]] = OPS[op].reference
    assert error(run(case, reference, cut), run(case, reference)) < 2e-6


@pytest.mark.parametrize("reference", [PLAIN, delta_rule_in_chunks])
def test_a_new_sequence_ignores_old_contents_of_its_slot(reference: Reference) -> None:
    np.testing.assert_array_equal(run(LONG, reference, seed=1), run(LONG, reference, seed=2))


def test_a_state_that_never_decays_remembers_every_key() -> None:
    """With b = 1, orthonormal keys and no decay, the state stores each value under its key."""
    n = 8
    shape = DeltaShape(1, 1, n, 3)
    keys, values = np.eye(n, dtype=np.float32), np.arange(3 * n, dtype=np.float32).reshape(n, 3)
    view = StateView(np.zeros((1, shape.state_floats), np.float32))
    attrs = {"n_k_heads": 1, "n_v_heads": 1, "k_dim": n, "v_dim": 3, "grouped": 0}

    def ask(queries: np.ndarray, beta: float, position: int) -> np.ndarray:
        v = values if beta > 0 else np.zeros_like(values)
        gates = np.full((n, 1), beta, np.float32), np.zeros(1, np.float32)
        qkv = np.concatenate([queries, keys, v], axis=1)
        step = _step([0], [n], position)
        inputs = [qkv, gates[0], gates[0], gates[1], gates[1], view]
        return OPS["delta_rule"].run(step, inputs, attrs)[0]

    ask(keys, 100.0, 0)
    recalled = ask(keys[::-1], -100.0, n)  # b = 0, so the state does not change
    np.testing.assert_allclose(recalled, values[::-1] / np.sqrt(n), rtol=1e-5)


def test_decay_without_overflow() -> None:
    case = delta_case("huge", DeltaShape(1, 2, 16, 16), (40,), decay_rate=1e4)
    for weight in list(case.tensors):
        if case.tensors[weight].shape == (40, 2):
            case.tensors[weight] *= 1e4
    for reference in (PLAIN, delta_rule_in_chunks):
        assert np.isfinite(run(case, reference)).all()
