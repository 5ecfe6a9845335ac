"""Graph -> Plan: fuse, choose formats and kernels, place in memory. What is printed runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from zinc.backends.api import Kernels, Launch, Operand, Plan, Ref
from zinc.core.errors import UnsupportedError
from zinc.ops.graph import Act, Dim, Graph, Input, Node, Value, Weight
from zinc.ops.registry import OPS
from zinc.plan import memory, passes

DRAWN_COLS = 2  # of the op `sample`


def make_plan(
    graph: Graph,
    backend: Kernels,
    *,
    max_tokens: int,
    max_outputs: int,
    max_sequences: int = 64,
    fuse: bool = True,
    draws: bool = False,
) -> Plan:
    """Plans `graph` for steps of at most so many tokens, output rows and sequences.

    draws: its output are logits, from which a backend that can is to draw tokens itself.

    Raises UnsupportedError when the backend lacks a kernel for an op or a block format.
    """
    assert graph.output is not None
    output = graph.output

    def activation(weight: Weight) -> Act:
        return backend.activation(weight.type)

    nodes: list[Node] = list(graph.nodes)
    if fuse:
        nodes = passes.fuse_residual(nodes, output)
        nodes = passes.fuse_glu(nodes, output, activation)
        nodes = passes.fuse_siblings(nodes, output, activation)
        nodes = passes.fuse_rope_store(nodes, output)
    next_id = 1 + max(v.id for node in nodes for v in node.outputs)
    nodes = passes.choose_activations(nodes, output, activation, backend.stores, next_id)
    passes.check(nodes, output)
    nodes, views = passes.resolve_views(nodes)

    rows = {
        Dim.TOKENS: max_tokens,
        Dim.OUTPUTS: max_outputs,
        Dim.SEQUENCES: max_sequences,
        Dim.CONSTANT: 1,
    }
    arena = memory.assign(nodes, output, rows, backend.row_bytes, views)

    def ref(value: Value) -> Ref:
        view = views.get(value.id)
        base, first = (value, 0) if view is None else (view.base, view.first)
        stride = memory.stride(base, backend.row_bytes)
        offset = arena.offsets[base.id] + 4 * first
        return Ref(base.id, value.dim, value.cols, value.act, offset, stride, first, value.runs)

    launches = tuple(_lower(node, ref, backend) for node in nodes)
    plan = Plan(launches, ref(output), arena.n_bytes, max_tokens, max_outputs)
    return _with_draws(plan, output) if draws and backend.supports("sample") else plan


def _with_draws(plan: Plan, logits: Value) -> Plan:
    """The plan with a launch that draws tokens, behind all else in the arena: the next step reads
    them when it has begun to overwrite the rest."""
    id = 1 + max(ref.id for launch in plan.launches for ref in launch.outputs)
    tokens = Value(id, Dim.OUTPUTS, DRAWN_COLS)
    node = Node("sample", (logits,), (tokens,), label="sampling")
    offset, stride = -(-plan.arena_bytes // memory.ALIGNMENT) * memory.ALIGNMENT, 4 * DRAWN_COLS
    drawn = Ref(id, Dim.OUTPUTS, DRAWN_COLS, Act.F32, offset, stride)
    launch = Launch(
        "sample", Dim.OUTPUTS, (plan.output,), (drawn,), (), OPS["sample"].cost(node), node.label
    )
    arena_bytes = offset + plan.max_outputs * stride
    launches = (*plan.launches, launch)
    return replace(plan, launches=launches, drawn=drawn, arena_bytes=arena_bytes)


def _lower(node: Node, ref: Callable[[Value], Ref], backend: Kernels) -> Launch:
    if not backend.supports(node.op):
        raise UnsupportedError(
            f"the backend {backend.name} cannot run {node.label or 'this model'}",
            f"it has no kernel {node.op}",
            "choose another backend with --backend",
        )

    def operand(x: Input) -> Operand:
        return ref(x) if isinstance(x, Value) else x

    return Launch(
        kernel=node.op,
        dim=_dim(node),
        inputs=tuple(operand(x) for x in node.inputs),
        outputs=tuple(ref(v) for v in node.outputs),
        attrs=tuple(sorted(node.attrs.items())),
        cost=OPS[node.op].cost(node),
        label=node.label,
    )


def _dim(node: Node) -> Dim:
    values: Sequence[Value] = [
        *node.outputs,
        *(v for v in node.inputs if isinstance(v, Value)),
    ]
    return values[0].dim if values else Dim.TOKENS
