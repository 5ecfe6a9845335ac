"""Entries of the op registry: operands by name, written state, and no lists of ops elsewhere."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

import zinc
from zinc.backends import api
from zinc.backends.api import CacheLayout, TensorData
from zinc.backends.ref import RefBackend, RefProgram
from zinc.engine.load.self_test import BLOCK_TOKENS, bind_case
from zinc.ops import OPS
from zinc.ops.cases import Case
from zinc.ops.header import header
from zinc.ops.operands import Signature, cache, matrix, rows, vector
from zinc.ops.registry import Op, op
from zinc.ops.values import KVState, RecurrentState
from zinc.plan import passes
from zinc.plan.planner import make_plan
from zinc.quant.blocks import GGMLType
from zinc.testing.parity import every_case

SOURCE = Path(zinc.__file__).parent
NAMES = frozenset(OPS)
STATEFUL = [
    (op, case)
    for op, case in every_case()
    if any(isinstance(x, KVState | RecurrentState) for n in case.graph.nodes for x in n.inputs)
]


# -- sets of op names --------------------------------------------------------------------------


def named_together(tree: ast.AST) -> Iterator[tuple[int, set[str]]]:
    """Yield the line and the op names of each expression that lists two ops or more.

    A name of the module that is assigned one op counts as that op.
    """
    names = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and strings([node.value])
    }

    def strings_of(expressions: Iterable[ast.expr | None]) -> set[str]:
        return strings([names.get(x.id, x) if isinstance(x, ast.Name) else x for x in expressions])

    for node in ast.walk(tree):
        listed: Sequence[ast.expr | None] = ()
        match node:
            case ast.Set(elts=elements) | ast.List(elts=elements) | ast.Tuple(elts=elements):
                listed = elements
            case ast.Dict(keys=keys, values=values):
                for found in (strings_of(keys), strings_of(values)):
                    if len(found) > 1:
                        yield node.lineno, found
                continue
            case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="split")):
                if len(found := NAMES & set(text.split())) > 1:
                    yield node.lineno, found
                continue
            case ast.Call(func=ast.Name(id="dict"), keywords=keywords):
                listed = [ast.Constant(keyword.arg) for keyword in keywords]
            case ast.Call(args=arguments, keywords=keywords):
                listed = [*arguments, *(keyword.value for keyword in keywords)]
            case ast.BoolOp(values=values):
                compared: dict[str, list[ast.expr]] = {}
                for x in values:
                    if isinstance(x, ast.Compare):
                        compared.setdefault(ast.dump(x.left), []).extend(x.comparators)
                listed = max(compared.values(), key=len, default=[])
            case ast.MatchOr(patterns=patterns):
                listed = [p.value for p in patterns if isinstance(p, ast.MatchValue)]
            case ast.ClassDef(body=body):
                listed = [x.value for x in body if isinstance(x, ast.Assign | ast.AnnAssign)]
        if len(found := strings_of(listed)) > 1:
            yield node.lineno, found


def strings(expressions: Sequence[ast.expr | None]) -> set[str]:
    """Return the op names among the expressions."""
    values = (x.value for x in expressions if isinstance(x, ast.Constant))
    return {value for value in values if isinstance(value, str)} & NAMES


@pytest.mark.parametrize(
    "text",
    [
        '{"linear", "rope"}',
        'frozenset(("linear", "rope"))',
        '["linear", "rope", "other"]',
        '{"linear": 3, "rope": 0}',
        '"linear rope".split()',
        'node.op == "linear" or node.op == "rope"',
        'node.op != "linear" and node.op != "rope"',
        'match op:\n case "linear" | "rope": pass',
        'class Fused(StrEnum):\n A = "linear"\n B = "rope"',
        'pair("linear", "rope")',
        'pair(first="linear", second="rope")',
        "dict(linear=3, rope=0)",
        'A = "linear"\nB = "rope"\nFUSED = {A, B}',
    ],
)
def test_a_list_of_ops_is_found_however_it_is_written(text: str) -> None:
    assert [found for _, found in named_together(ast.parse(text))] == [{"linear", "rope"}]


@pytest.mark.parametrize(
    "text",
    [
        '{"linear"}',
        '{"linear": "linear"}',
        '("linear", "tensor")',
        'first.op == "linear" and second.op == "rope"',
    ],
)
def test_one_op_among_other_strings_is_not_a_list_of_ops(text: str) -> None:
    assert list(named_together(ast.parse(text))) == []


def test_only_zinc_ops_lists_ops() -> None:
    """Properties of ops belong in their entries, which every other part of zinc asks."""
    offences = [
        f"{path.relative_to(SOURCE)}:{line} lists the ops {', '.join(sorted(found))}"
        for path in sorted(SOURCE.rglob("*.py"))
        if SOURCE / "ops" not in path.parents
        # Parsing takes time: a list needs two names in the text.
        if len(NAMES & set(re.findall(r"\w+", text := path.read_text("utf-8")))) > 1
        for line, found in named_together(ast.parse(text))
    ]
    assert offences == []


# -- operands ----------------------------------------------------------------------------------


def test_operands_of_a_repeated_group_are_found_by_part() -> None:
    signature = Signature(
        (rows("x"), matrix("weight", repeated=True), vector("bias", repeated=True, optional=True))
    )
    assert [signature.index("weight", part) for part in range(3)] == [1, 3, 5]
    assert signature.named(["x", "w0", "b0", "w1", None]) == {
        "x": "x",
        "weight": ["w0", "w1"],
        "bias": ["b0", None],
    }
    with pytest.raises(KeyError, match="no operand scale among x, weight, bias"):
        signature.index("scale")
    with pytest.raises(ValueError, match="longer"):
        signature.named(["x", "w0", "b0", "w1"])


def test_a_reference_takes_the_operands_that_it_declares() -> None:
    def renamed(step: object, attrs: object, y: np.ndarray) -> Sequence[np.ndarray]:
        return [y]

    with pytest.raises(AssertionError, match=r"renamed must take \['step', 'attrs', 'x'\]"):
        op(rows("x"), cost=lambda node: None, cases=lambda: iter(()))(renamed)  # type: ignore[arg-type,return-value]
    assert "renamed" not in OPS


@pytest.mark.parametrize("change", ["missing", "wrong"])
def test_a_node_without_the_operands_of_its_op_is_rejected(change: str) -> None:
    case = Case("broken")
    x = case.rows(32)
    case.returns(case.graph.linear(x, case.matrix(32, 32)))
    at = next(i for i, node in enumerate(case.graph.nodes) if node.op == "linear")
    other = None if change == "missing" else x
    case.graph.nodes[at] = case.graph.nodes[at].with_input("weight", other)
    with pytest.raises(AssertionError, match="lacks weight" if other is None else "is rows, not"):
        passes.check(case.graph.nodes, case.graph.output)


def test_the_header_of_cpp_constants_is_up_to_date() -> None:
    path = SOURCE / "backends" / "cpu" / "native" / "operands.h"
    assert path.read_text() == header(), "run the command in the header's first lines"


@pytest.mark.parametrize("type", [GGMLType.F32, GGMLType.Q6_K, GGMLType.IQ2_XS])
def test_data_of_a_case_does_not_depend_on_when_it_is_read(type: GGMLType) -> None:
    def case(reads: bool) -> Case:
        made = Case("read")
        first = made.matrix(4, 256, type)
        if reads:
            made.data(first)
        made.given(made.rng.standard_normal(3).astype(np.float32))
        made.vector(5)
        return made

    late, early = case(reads=False), case(reads=True)
    for name in late.tensors:
        np.testing.assert_array_equal(late.tensors[name], early.tensors[name])
    for name in late.blocks:
        np.testing.assert_array_equal(late.blocks[name], early.blocks[name])
    assert {*late.tensors, *late.blocks} == {*early.tensors, *early.blocks} == {"w0", "w1", "w2"}


# -- written state -----------------------------------------------------------------------------


class Watched(RefProgram):
    """A program of `ref` that records launches which change state without declaring it."""

    undeclared: list[str]

    def run(self, step: object, first: int, last: int) -> None:
        for i in range(first, last):
            launch = self.plan.launches[i]
            before = self.held()
            super().run(step, i, i + 1)  # type: ignore[arg-type]
            declared = OPS[launch.kernel].signature.declared(launch.inputs)
            may = {x.name for operand, x in declared if operand.written and x is not None}
            after = self.held()
            changed = {name for name in before if not np.array_equal(before[name], after[name])}
            self.undeclared += [launch.kernel] if changed - may else []

    def held(self) -> Mapping[str, np.ndarray]:
        found = {
            name: np.concatenate([x.k.ravel(), x.v.ravel()])
            for name, x in self._cache.layers.items()
        }
        return found | {name: x.slots.copy() for name, x in self._cache.recurrent.items()}


def undeclared_writes(case: Case) -> list[str]:
    """Return the kernels of the case that change state without saying so."""
    backend = RefBackend()
    n = case.max_tokens
    plan = make_plan(case.graph, backend, max_tokens=n, max_outputs=n)
    program = bind_case(backend, case, plan, case.step(BLOCK_TOKENS))
    assert isinstance(program, RefProgram)
    watched = Watched(plan, program._weights, program._cache)
    watched.undeclared = []
    watched.step(case.step(BLOCK_TOKENS))
    return watched.undeclared


@pytest.mark.alike(25)
@pytest.mark.parametrize(("op", "case"), STATEFUL, ids=[f"{o.name}-{c.name}" for o, c in STATEFUL])
def test_ops_write_only_the_state_that_they_declare(op: Op, case: Case) -> None:
    assert undeclared_writes(case) == []


@pytest.mark.parametrize(("op", "case"), STATEFUL, ids=[f"{o.name}-{c.name}" for o, c in STATEFUL])
def test_cpu_kernels_write_state_only_where_their_op_declares_it(op: Op, case: Case) -> None:
    backend = api.create("cpu", threads=1)
    n, step = case.max_tokens, case.step(BLOCK_TOKENS)
    plan = make_plan(case.graph, backend, max_tokens=n, max_outputs=n)
    for w in plan.weights:
        backend.upload(w, TensorData(w.type, w.shape, case.data(w)))
    n_blocks = max(1, step.tables[0].size)
    layout = CacheLayout(BLOCK_TOKENS, (n_blocks,), state_slots=step.n_sequences)
    held = backend.allocate(plan.states, layout)
    program = backend.prepare(plan, held)

    def contents() -> list[bytes]:
        blocks = [view for block in range(n_blocks) for view in held.block_views(0, block)]
        slots = [view for slot in range(step.n_sequences) for view in held.state_views(slot)]
        return [view.tobytes() for view in (*blocks, *slots)]

    for i, launch in enumerate(plan.launches):
        before = contents()
        program.run(step, i, i + 1)
        declared = OPS[launch.kernel].signature.declared(launch.inputs)
        writes = any(operand.written and x is not None for operand, x in declared)
        assert (contents() != before) is writes, launch.kernel


def test_an_undeclared_write_of_state_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    op = OPS["rope_store"]
    silent = [cache(x.name, optional=True) if x.written else x for x in op.signature.operands]
    monkeypatch.setitem(OPS, op.name, _with_signature(op, Signature(tuple(silent))))
    case = next(case for _, case in STATEFUL if "attention" in {n.op for n in case.graph.nodes})
    assert undeclared_writes(case) == ["rope_store"]


def _with_signature(op: Op, signature: Signature) -> Op:
    return Op(op.name, op.reference, signature, op.cost, op.tolerance, op.doc, op.cases, op.phase)
