"""Ops whose recurrent state is rolled back: every case, against `ref` and bit by bit.

The op runs accepted rows and rejected ones after them in each step, with the layout of `rollback`.
The accepted rows must be those of a run without either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from random import Random

import effort
import numpy as np
import pytest
from backends.levels import OF_KERNELS
from cuda_emulator import emulated
from ops.vulkan_cases import REPEATED
from present import computing

from zinc.backends import api
from zinc.backends.api import Backend, CacheLayout, Program, TensorData
from zinc.ops import OPS
from zinc.ops.cases import Case
from zinc.ops.convolution import conv_case
from zinc.ops.graph import Graph
from zinc.ops.recurrent import DeltaShape, delta_case
from zinc.ops.recurrent_state import CHUNK
from zinc.ops.step import Step
from zinc.plan.planner import make_plan
from zinc.plan.rollback import rollback_graph

TOLERANCE = 1e-4
# Rows of a step: up to two chunks of accepted rows, and the rejected ones, for four sequences.
MAX_TOKENS = 4 * 3 * CHUNK


EMULATED = "emulated CUDA"
GPUS = [name for name in computing() if name != "cpu"] + [EMULATED] * bool(emulated.COMPILER)
KERNELS = [*OF_KERNELS, *GPUS]
ODD_KEYS = "one head"  # a case whose keys GPUs cannot run

CASES = [
    *(case for op in OPS.values() if op.rollback for case in op.cases()),
    conv_case("700x9", 700, 9, lengths=(40, 30)),
    conv_case("33x2", 33, 2, lengths=(40, 30)),
    delta_case(ODD_KEYS, DeltaShape(1, 1, 20, 48), (75, 1), decay_rate=0.1),
]


def create(name: str) -> Backend:
    if name == EMULATED:
        return emulated.backend(batch_invariant=True)
    if name in GPUS:
        return api.create(name, options={"batch_invariant": "true"})
    return api.create(name) if name == "ref" else api.create("cpu", 2, {"level": name})


def on_backends(names: Iterable[str]) -> pytest.MarkDecorator:
    """Run a test with each case on the backends that can run it."""
    runs = [
        pytest.param(case, name, marks=pytest.mark.every if is_slow(case, name) else ())
        for case, name in product(CASES, names)
        if case.name != ODD_KEYS or name not in GPUS
    ]
    return pytest.mark.parametrize(("case", "name"), runs, ids=lambda x: getattr(x, "name", x))


def is_slow(case: Case, name: str) -> bool:
    if name == EMULATED:
        return case.name not in ("grouped", "48x4")
    return name in GPUS and case.name in REPEATED


def program_of(case: Case, graph: Graph, backend: Backend) -> Program:
    plan = make_plan(graph, backend, max_tokens=MAX_TOKENS, max_outputs=MAX_TOKENS)
    for w in plan.weights:
        backend.upload(w, TensorData(w.type, w.shape, case.data(w)))
    layout = CacheLayout(16, (1,), state_slots=len(case.sequences) + 1)
    cache = backend.allocate(plan.states, layout)
    for slot in range(layout.state_slots):  # values that are read too early show as NaN
        views = cache.state_views(slot)
        for view in views:
            view[...] = 0xFF
        cache.put_state(slot, views)
    return backend.prepare(plan, cache)


def step_of(parts: list[tuple[int, int, list[int]]]) -> Step:
    """Return the step of parts (slot, first position, ids); each id is a row of the case."""
    counts = [len(ids) for _, _, ids in parts]
    positions = [np.arange(at, at + len(ids)) for _, at, ids in parts]
    return Step(
        ids=np.concatenate([ids for _, _, ids in parts]).astype(np.int32),
        positions=np.concatenate(positions).astype(np.int32),
        sequence=np.repeat(np.arange(len(parts), dtype=np.int32), counts),
        output_rows=np.arange(sum(counts), dtype=np.int32),
        seq_start=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        state_slot=np.array([slot for slot, _, _ in parts], np.int32),
        tables=(np.zeros((len(parts), 1), np.int32),),
    )


def texts_of(case: Case) -> Iterator[list[int]]:
    starts = np.concatenate([[0], np.cumsum(case.sequences)]).tolist()
    for i, n in enumerate(case.sequences):
        yield list(range(starts[i], starts[i] + n))


def plain(case: Case, backend: Backend) -> np.ndarray:
    """Return the output rows of the case, run token by token without rollback."""
    program = program_of(case, case.graph, backend)
    rows: list[np.ndarray] = []
    for slot, ids in enumerate(texts_of(case)):
        for at, id in enumerate(ids):
            rows.append(program.step(step_of([(slot, at, [id])]))[0].copy())
    return np.array(rows)


def speculated(case: Case, backend: Backend, seed: int, rollback: int = CHUNK) -> np.ndarray:
    """Return the same rows from random steps with up to `rollback` rejected rows each."""
    random = Random(seed)
    program = program_of(case, rollback_graph(case.graph, rollback), backend)
    texts, done = list(texts_of(case)), [0] * len(case.sequences)
    found = np.full((case.n_tokens, 0), np.nan, np.float32)
    while running := [i for i, n in enumerate(done) if n < len(texts[i])]:
        parts, kept = [], []
        for i in random.sample(running, len(running)):
            left = texts[i][done[i] :]
            ahead = left[: random.choice((1, 1, 3, CHUNK, 2 * CHUNK))]
            tail = random.choices(range(case.n_tokens), k=random.randint(0, rollback))
            parts.append((i, done[i], [*ahead, *tail]))
            kept.append((i, ahead))
        logits = program.step(step_of(parts))
        if not found.size:
            found = np.full((case.n_tokens, logits.shape[1]), np.nan, np.float32)
        at = 0
        for (i, ahead), (_, _, ids) in zip(kept, parts, strict=True):
            found[ahead] = logits[at : at + len(ahead)]
            done[i] += len(ahead)
            at += len(ids)
    return found


@pytest.mark.alike(24)
@on_backends(["ref", *KERNELS])
def test_rejected_rows_change_no_bit(case: Case, name: str) -> None:
    want = plain(case, create(name))
    rows = (CHUNK, CHUNK, 8, 1) if effort.EVERY else (CHUNK,) if name in GPUS else (CHUNK, 8)
    for seed, rollback in enumerate(rows):
        got = speculated(case, create(name), seed, rollback)
        if name == "ref":  # its plain form is the recurrence; numpy splits products by their sizes
            assert np.abs(got - want).max() <= TOLERANCE * np.abs(want).max()
        else:
            np.testing.assert_array_equal(got, want)


@pytest.mark.alike(24)
@on_backends(KERNELS)
def test_kernels_with_rollback_agree_with_the_reference(case: Case, name: str) -> None:
    got, want = (speculated(case, create(backend), 5) for backend in (name, "ref"))
    assert np.linalg.norm(got - want) <= TOLERANCE * np.linalg.norm(want)


@pytest.mark.parametrize("name", OF_KERNELS)
def test_kernels_and_the_reference_keep_the_same_slots(name: str) -> None:
    """After the same steps, the valid parts of a slot agree: S, k, d and g of both halves."""
    case = delta_case("slots", DeltaShape(2, 4, 32, 32), (48,), decay_rate=0.1)
    slots = []
    for backend in (create(name), create("ref")):
        program = program_of(case, rollback_graph(case.graph), backend)
        program.step(step_of([(0, 0, list(range(32 + 5)))]))
        slots.append(program._cache.state_views(0)[0].view(np.float32).reshape(2, 4, -1))
    kernel, reference = slots
    matrix, keys = 32 * 32, 32 * CHUNK
    for half, n in ((0, 5), (1, CHUNK)):
        np.testing.assert_allclose(
            kernel[half, :, :matrix], reference[half, :, :matrix], rtol=1e-4, atol=1e-5
        )
        k, k_wanted = (x[half, :, matrix:][:, :keys].reshape(4, 32, CHUNK)[:, :, :n] for x in slots)
        np.testing.assert_allclose(k, k_wanted, rtol=1e-4, atol=1e-5)
