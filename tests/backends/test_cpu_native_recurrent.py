"""CPU kernels of Gated DeltaNet at every SIMD level.

Each is compared with float64 numpy, written here as the recurrence of the definition. Slots and
outputs are NaN first, which shows values that are read too early or never written. A prompt gives
the same bits however it is divided into steps, whatever shares a step and with any number of
threads.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from backends.levels import OF_KERNELS
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from zinc.backends import api
from zinc.backends.api import CacheLayout, TensorData
from zinc.core.errors import UnsupportedError
from zinc.ops.recurrent import DeltaShape, delta_case
from zinc.plan.planner import make_plan

_cpu = pytest.importorskip("zinc.backends.cpu._cpu")

Floats = NDArray[Any]
CHUNK = 16  # positions of a chunk of the delta rule

pytestmark = pytest.mark.parametrize("level", OF_KERNELS)


def normal(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def vector(x: Floats) -> Any:
    return _cpu.pack_vector(np.ascontiguousarray(x, np.float32))


def ints(values: Sequence[int]) -> NDArray[np.int32]:
    return np.asarray(values, np.int32)


def relative_error(got: Floats, want: Floats) -> float:
    return float(np.abs(got - want).max() / np.abs(want).max())


def sigmoid(x: Floats) -> Floats:
    return 1 / (1 + np.exp(-x.astype(np.float64)))


@dataclass
class Op:
    """One launch over rows: arrays `rows` [n, cols], then `rest`, then a state if there is one."""

    name: str
    rows: list[Floats]
    rest: list[Any]
    attrs: dict[str, float]
    cols: int
    floats: int = 0
    aliased: bool = False

    def run(
        self,
        level: str,
        steps: Sequence[Sequence[tuple[int, range]]],
        *,
        format: str = "f32",
        threads: int = 2,
        slots: int = 0,
    ) -> Stepped:
        """Run `steps` of (slot, rows) parts. The position of a row is its index in its slot.

        `rows` of a part index the arrays of rows. Slots start as NaN.
        """
        most = max(sum(len(part) for _, part in step) for step in steps)
        specs, size = [], 0
        for dtype, cols in [("f32", x.shape[1]) for x in self.rows] + [(format, self.cols)]:
            stride = _cpu.row_bytes(dtype, cols) + 64
            specs.append((dtype, cols, size, stride))
            size += -(-most * stride // 64) * 64
        out = specs[0] if self.aliased else specs[-1]
        program = _cpu.Program(_cpu.Pool(threads), level, size)
        n_slots = slots or 1 + max(slot for step in steps for slot, _ in step)
        state = _cpu.StateLayer(n_slots, self.floats) if self.floats else None
        if state is not None:
            state.view()[:] = np.nan
        states = [state] if state is not None else []
        program.add(self.name, "tokens", 0, [*specs[:-1], *self.rest, *states], [out], self.attrs)
        done = Counter[int]()
        result = Stepped(state)
        for step in steps:
            program.bytes_view(0, size)[:] = 0xFF  # NaN
            index = np.concatenate([np.arange(r.start, r.stop) for _, r in step]).astype(int)
            for x, spec in zip(self.rows, specs, strict=False):
                program.view(spec[2], len(index), spec[1], spec[3])[:] = x[index]
            counts = [len(part) for _, part in step]
            positions = [
                np.arange(done[s], done[s] + n) for (s, _), n in zip(step, counts, strict=True)
            ]
            program.step(
                ints([0] * len(index)),
                np.concatenate(positions).astype(np.int32),
                np.repeat(np.arange(len(step), dtype=np.int32), counts),
                ints([]),
                ints([0, *itertools.accumulate(counts)]),
                ints([slot for slot, _ in step]),
                [],
            )
            for slot, part in step:
                done[slot] += len(part)
            for i, row in enumerate(index):
                n_bytes = 4 * self.cols if out[0] == "f32" else _cpu.row_bytes(format, self.cols)
                result.bytes[int(row)] = program.bytes_view(out[2] + i * out[3], n_bytes).copy()
        return result


@dataclass
class Stepped:
    """The bytes of each output row, and the final state."""

    state: Any
    bytes: dict[int, NDArray[np.uint8]] = field(default_factory=dict)

    @property
    def rows(self) -> Floats:
        return np.stack([self.bytes[i].view(np.float32) for i in sorted(self.bytes)])


def whole(lengths: Sequence[int]) -> list[tuple[int, range]]:
    """Return one step with all rows of each sequence. Sequence i has slot i."""
    starts = [0, *itertools.accumulate(lengths)]
    return [(i, range(starts[i], starts[i] + n)) for i, n in enumerate(lengths)]


def cut(lengths: Sequence[int], cuts: Callable[[int], int]) -> list[list[tuple[int, range]]]:
    """Return steps of cuts(0), cuts(1), ... tokens of each sequence, the last sequence first."""
    steps: list[list[tuple[int, range]]] = []
    at = [(i, part.start, part.stop) for i, part in whole(lengths)]
    for number in itertools.count():
        if not at:
            return steps
        n = cuts(number)
        steps.append([(i, range(a, min(b, a + n))) for i, a, b in reversed(at)])
        at = [(i, a + n, b) for i, a, b in at if a + n < b]
    raise AssertionError


# -- causal_conv -----------------------------------------------------------------------------------


def conv_op(
    lengths: Sequence[int], cols: int, taps: int, *, bias: bool = False, silu: bool = True
) -> tuple[Op, Floats]:
    """Return the launch and its wanted output."""
    x, weight = normal(0, sum(lengths), cols), normal(1, cols, taps)
    added = normal(2, cols) * bias
    want = np.empty(x.shape)
    for _, part in whole(lengths):
        line = np.concatenate([np.zeros((taps - 1, cols)), x[part.start : part.stop]])
        for t in range(len(part)):
            total = sum(line[t + i] * weight[:, i].astype(np.float64) for i in range(taps))
            total = total + added
            want[part.start + t] = total * sigmoid(np.asarray(total)) if silu else total
    rest = [vector(weight.reshape(-1)), vector(added) if bias else None]
    op = Op("causal_conv", [x], rest, {"taps": taps, "silu": silu}, cols)
    op.floats = (taps - 1) * cols
    return op, want


@pytest.mark.parametrize("aliased", [False, True])
@pytest.mark.parametrize(("cols", "taps"), [(6, 2), (64, 4), (90, 4), (700, 3), (4200, 4), (33, 9)])
def test_causal_conv(level: str, cols: int, taps: int, aliased: bool) -> None:
    lengths = (5, 1, 40, 2)
    op, want = conv_op(lengths, cols, taps)
    op.aliased = aliased
    got = op.run(level, [whole(lengths)])
    assert relative_error(got.rows, want) < 1e-6
    state = got.state.view().reshape(len(lengths), taps - 1, cols)
    np.testing.assert_array_equal(state[2], op.rows[0][46 - (taps - 1) : 46])
    np.testing.assert_array_equal(state[1][-1], op.rows[0][5])
    assert (state[1][:-1] == 0).all()


@pytest.mark.parametrize("silu", [False, True])
def test_causal_conv_with_a_bias(level: str, silu: bool) -> None:
    op, want = conv_op((5, 1, 40), 90, 3, bias=True, silu=silu)
    assert relative_error(op.run(level, [whole((5, 1, 40))]).rows, want) < 1e-6


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("size", [1, 2, 3, 17])
def test_causal_conv_does_not_depend_on_cuts(level: str, size: int, threads: int) -> None:
    lengths = (30, 1, 9)
    op, want = conv_op(lengths, 130, 4)
    op.aliased = True
    got = op.run(level, cut(lengths, lambda _: size), threads=threads).rows
    assert relative_error(got, want) < 1e-6
    np.testing.assert_array_equal(got, op.run(level, [whole(lengths)]).rows)


# -- delta_rule ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Heads:
    n_k: int = 2
    n_v: int = 4
    k_dim: int = 32
    v_dim: int = 32
    grouped: bool = False
    per_channel: bool = False
    floor: float = 0.0

    @property
    def channels(self) -> int:
        return self.k_dim if self.per_channel else 1

    @property
    def floats(self) -> int:
        rows = self.k_dim + self.v_dim + self.channels
        return self.n_v * (self.k_dim * self.v_dim + CHUNK * rows)

    def key_head(self, head: int) -> int:
        return head // (self.n_v // self.n_k) if self.grouped else head % self.n_k


def delta_op(lengths: Sequence[int], h: Heads, decay_rate: float = 0.2) -> Op:
    n = sum(lengths)
    qkv = normal(0, n, 2 * h.n_k * h.k_dim + h.n_v * h.v_dim)
    alpha, beta = 2 * normal(1, n, h.n_v * h.channels), 2 * normal(2, n, h.n_v)
    a, bias = -decay_rate * np.exp(normal(3, h.n_v)), normal(4, h.n_v * h.channels)
    attrs: dict[str, float] = {
        "n_k_heads": h.n_k,
        "n_v_heads": h.n_v,
        "k_dim": h.k_dim,
        "v_dim": h.v_dim,
        "per_channel": int(h.per_channel),
        "floor": h.floor,
    }
    return Op(
        "delta_rule",
        [qkv, alpha, beta],
        [vector(a), vector(bias)],
        {**attrs, "grouped": int(h.grouped)},
        h.n_v * h.v_dim,
        h.floats,
    )


def recurrence(op: Op, h: Heads, lengths: Sequence[int], decay_rate: float = 0.2) -> Floats:
    """Return the output by the definition, in float64."""
    qkv, alpha, beta = (x.astype(np.float64) for x in op.rows)
    a, bias = -decay_rate * np.exp(normal(3, h.n_v)), normal(4, h.n_v * h.channels)
    out = np.empty((len(qkv), h.n_v, h.v_dim))
    x, a = (alpha + bias).reshape(len(qkv), h.n_v, h.channels), a.astype(np.float32)[:, None]
    g = np.exp(h.floor * sigmoid(a * x) if h.floor else a * np.logaddexp(0, x))
    for _, part in whole(lengths):
        S = np.zeros((h.n_v, h.k_dim, h.v_dim))
        for t, head in itertools.product(part, range(h.n_v)):
            q, k, v = np.split(qkv[t], [h.n_k * h.k_dim, 2 * h.n_k * h.k_dim])
            at = h.key_head(head) * h.k_dim
            q, k = (x[at : at + h.k_dim] for x in (q, k))
            q, k = (x / np.sqrt((x * x).sum() + 1e-6) for x in (q, k))
            v = v[head * h.v_dim : (head + 1) * h.v_dim]
            S[head] *= g[t, head][:, None]
            d = sigmoid(beta[t, head]) * (v - k @ S[head])
            S[head] += np.outer(k, d)
            out[t, head] = q @ S[head] / np.sqrt(h.k_dim)
    return out.reshape(len(qkv), -1)


SHAPES = [
    Heads(),
    Heads(n_v=2, k_dim=128, v_dim=128),
    Heads(n_k=1, n_v=3, k_dim=20, v_dim=48),
    Heads(n_k=2, n_v=6, k_dim=33, v_dim=16, grouped=True),
    Heads(n_k=1, n_v=1, k_dim=64, v_dim=208),
    Heads(n_k=1, n_v=2, k_dim=128, v_dim=128, per_channel=True),
    Heads(n_k=2, n_v=4, k_dim=33, v_dim=48, per_channel=True, floor=-5.0),
]


@pytest.mark.parametrize("h", SHAPES, ids=str)
def test_delta_rule(level: str, h: Heads) -> None:
    lengths = (1, 70, 16, 33)
    op = delta_op(lengths, h)
    got = op.run(level, [whole(lengths)]).rows
    assert relative_error(got, recurrence(op, h, lengths)) < 1e-5


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("decay_rate", [1e-4, 3.0, 100.0])
def test_delta_rule_that_forgets_slowly_or_at_once(
    level: str, decay_rate: float, per_channel: bool
) -> None:
    h, lengths = Heads(per_channel=per_channel), (200,)
    op = delta_op(lengths, h, decay_rate)
    got = op.run(level, [whole(lengths)]).rows
    assert relative_error(got, recurrence(op, h, lengths, decay_rate)) < 2e-5


def test_delta_rule_of_extreme_gates(level: str) -> None:
    h, lengths = Heads(), (40,)
    op = delta_op(lengths, h)
    op.rows[1] *= 1e6
    op.rows[2] *= 1e6
    with np.errstate(over="ignore"):
        want = recurrence(op, h, lengths)
    assert relative_error(op.run(level, [whole(lengths)]).rows, want) < 1e-5


@pytest.mark.parametrize("size", [1, 2, 7, 15, 16, 17, 40])
def test_delta_rule_does_not_depend_on_cuts(level: str, size: int) -> None:
    lengths = (70, 3, 33)
    for heads in (Heads(), Heads(per_channel=True)):
        op = delta_op(lengths, heads)
        want = op.run(level, [whole(lengths)]).rows
        for threads in (1, 3):
            got = op.run(level, cut(lengths, lambda _: size), threads=threads)
            np.testing.assert_array_equal(got.rows, want)


@settings(max_examples=15, deadline=None)
@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=12), alone=st.integers(0, 1))
def test_delta_rule_does_not_depend_on_cuts_or_other_sequences(
    level: str, sizes: list[int], alone: int
) -> None:
    lengths = (90, 25)
    op = delta_op(lengths, Heads(n_k=1, n_v=2, k_dim=16, v_dim=16))
    together = op.run(level, cut(lengths, lambda i: sizes[i % len(sizes)])).rows
    part = whole(lengths)[alone][1]
    single = op.run(level, [[(0, part)]]).rows
    np.testing.assert_array_equal(single, together[part.start : part.stop])


def test_the_matrices_change_only_at_the_end_of_a_chunk(level: str) -> None:
    """Decode reads S and does not write it, so a row can be run again until its chunk is full."""
    h = Heads()
    op = delta_op((2 * CHUNK,), h)

    def matrices(n: int) -> Floats:
        state = op.run(level, cut((n,), lambda _: 1)).state
        slot: Floats = state.view()[0].reshape(h.n_v, -1)
        return slot[:, : h.k_dim * h.v_dim].copy()

    np.testing.assert_array_equal(matrices(CHUNK + 1), matrices(CHUNK))
    np.testing.assert_array_equal(matrices(2 * CHUNK - 1), matrices(CHUNK))
    assert (matrices(2 * CHUNK) != matrices(CHUNK)).any()


# -- gate and gated_norm ---------------------------------------------------------------------------


def rows_op(name: str, cols: int, *, gate_cols: int | None = None, n: int = 9) -> Op:
    x, z = 2 * normal(0, n, cols), 3 * normal(1, n, gate_cols or cols)
    if name == "gate":
        return Op("gate", [x, z], [], {}, cols)
    group = 32 if cols % 32 == 0 else cols
    return Op(
        "gated_norm",
        [x, z],
        [vector(normal(2, group))],
        {"eps": 1e-6, "gate_first": 0, "group": group},
        cols,
    )


@pytest.mark.parametrize("aliased", [False, True])
@pytest.mark.parametrize(
    ("cols", "gate_cols"), [(64, 64), (64, 1), (33, 33), (7, 1), (9000, 1), (66, 3), (9000, 9)]
)
def test_gate(level: str, cols: int, gate_cols: int, aliased: bool) -> None:
    op = rows_op("gate", cols, gate_cols=gate_cols)
    op.aliased = aliased
    x, g = op.rows
    want = x * np.repeat(sigmoid(g), cols // gate_cols, axis=1)
    assert relative_error(op.run(level, [whole((9,))]).rows, want) < 1e-6


@pytest.mark.parametrize("cols", [7, 33, 64, 256, 4096])
def test_gated_norm(level: str, cols: int) -> None:
    op = rows_op("gated_norm", cols)
    group = int(op.attrs["group"])
    x, z = op.rows
    runs = x.astype(np.float64).reshape(-1, group)
    normed = runs / np.sqrt((runs**2).mean(axis=1, keepdims=True) + 1e-6) * normal(2, group)
    want = normed.reshape(x.shape) * z * sigmoid(z)
    for aliased in (False, True):
        op.aliased = aliased
        assert relative_error(op.run(level, [whole((9,))]).rows, want) < 1e-6


@pytest.mark.parametrize("format", ["q8_32", "q8_256", "q15_32"])
@pytest.mark.parametrize("name", ["gate", "gated_norm"])
def test_gates_can_quantise_their_output(level: str, name: str, format: str) -> None:
    op = rows_op(name, 544)
    floats = op.run(level, [whole((9,))]).rows
    want = Op("quantize", [floats], [], {}, 544).run(level, [whole((9,))], format=format)
    got = op.run(level, [whole((9,))], format=format)
    for i in range(9):
        np.testing.assert_array_equal(got.bytes[i], want.bytes[i])


# -- errors ----------------------------------------------------------------------------------------


def refused(level: str, op: Op, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        op.run(level, [[(0, range(3))]])


def test_bad_operands_of_causal_conv(level: str) -> None:
    op, _ = conv_op((3,), 32, 4)

    def with_taps(taps: float) -> Op:
        return Op(**{**vars(op), "attrs": op.attrs | {"taps": taps}})

    refused(level, with_taps(3), "weight has 128 values, not 96")
    refused(level, with_taps(2.5), "taps must be a whole number")
    refused(level, with_taps(1), "taps must be a whole number from 2")
    refused(level, Op(**{**vars(op), "floats": 95}), "the state must hold 3 rows of x")
    refused(level, Op(**{**vars(op), "floats": 0}), "takes 4 inputs and 1 outputs, not 3 and 1")
    refused(level, Op(**{**vars(op), "cols": 16}), "y has 16 columns, not 32")


def test_bad_operands_of_delta_rule(level: str) -> None:
    h = Heads()
    op = delta_op((3,), h)

    def changed(**attrs: float) -> Op:
        return Op(**{**vars(op), "attrs": op.attrs | attrs})

    refused(level, changed(n_k_heads=3), "multiple of the key heads")
    refused(level, changed(n_k_heads=0), "n_k_heads must be a whole number from 1")
    refused(level, changed(v_dim=24), "v_dim must be a multiple of 16")
    refused(level, changed(k_dim=1e9), "k_dim must be a whole number from 1")
    refused(level, changed(k_dim=16), "qkv has 256 columns, not 192")
    refused(level, Op(**{**vars(op), "floats": h.floats - 1}), f"must hold {h.floats} floats")
    refused(level, Op(**{**vars(op), "rest": [op.rest[0], vector(normal(0, 5))]}), "bias has 5")
    refused(level, Op(**{**vars(op), "cols": 64}), "o has 64 columns, not 128")


def test_a_model_with_heads_of_an_unsupported_size_is_refused(level: str) -> None:
    case = delta_case("odd", DeltaShape(1, 2, 16, 24), (3,))
    backend = api.create("cpu", options={"level": level})
    plan = make_plan(case.graph, backend, max_tokens=3, max_outputs=3)
    for w in plan.weights:
        data = case.tensors[w.name].reshape(-1).view(np.uint8)
        backend.upload(w, TensorData(w.type, w.shape, data))
    cache = backend.allocate(plan.states, CacheLayout(16, (1,)))
    with pytest.raises(UnsupportedError, match="delta_rule: v_dim must be a multiple of 16"):
        backend.prepare(plan, cache)


def test_bad_operands_of_gates(level: str) -> None:
    refused(level, rows_op("gate", 64, gate_cols=24), "the columns of g must divide those of x")
    op = rows_op("gated_norm", 64)
    refused(
        level,
        Op(**{**vars(op), "attrs": {"eps": 1e-6, "gate_first": 0, "group": 48}}),
        "must divide",
    )
    refused(
        level,
        Op(**{**vars(op), "attrs": {"eps": 1e-6, "gate_first": 0, "group": 64}}),
        "weight has 32 values",
    )


def test_a_missing_state_slot_is_an_error(level: str) -> None:
    op, _ = conv_op((3,), 32, 4)
    with pytest.raises(ValueError, match="no such state slot"):
        op.run(level, [[(2, range(3))]], slots=2)
