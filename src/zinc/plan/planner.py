"""The planner: it fuses the nodes of a graph, chooses formats, assigns memory and makes a plan.

The plan that `zinc plan` prints is the object that a backend runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from types import MappingProxyType

from zinc.backends.api import Kernels, SplitDevices
from zinc.backends.plans import (
    NO_OUTPUT,
    Launch,
    Operand,
    Plan,
    Ref,
)
from zinc.core.errors import UnsupportedError
from zinc.core.rounding import round_up
from zinc.ops.graph import Graph
from zinc.ops.node import Node
from zinc.ops.registry import OPS
from zinc.ops.sampling import SAMPLED_COLS
from zinc.ops.values import Dim, Input, RowFormat, Value, Weight
from zinc.plan import memory, passes, split, tensor_split
from zinc.plan.adapters import Adapters, add_adapters, targets
from zinc.plan.alternatives import add_alternatives, held_inputs
from zinc.plan.rope_store import fuse_rope_store
from zinc.plan.row_formats import choose_row_formats


def make_plan(
    graph: Graph,
    backend: Kernels,
    *,
    max_tokens: int,
    max_outputs: int,
    max_sequences: int = 64,
    fuse: bool = True,
    samples: bool = False,
    adapters: Adapters = (),
) -> Plan:
    """Return a plan of `graph` for steps of at most `max_tokens` tokens and `max_outputs` outputs.

    max_sequences: most sequences in a step. fuse: whether to fuse nodes. samples: the output of the
    graph is logits, from which the backend samples tokens if it has a kernel for it. adapters: LoRA
    adapters that sequences of a step may use. For a backend of several devices the plan is a
    SplitPlan, and the device that computes the logits samples.

    Raises UnsupportedError if the backend lacks a kernel for an op or a block format.
    """
    assert graph.output is not None
    exchanges = graph.given is not None or graph.hidden is not None
    if exchanges and not backend.capabilities.host_rows:
        raise UnsupportedError(
            f"the backend {backend.name} cannot draft tokens with the model's own NextN block",
            "its programs do not exchange hidden rows with the host",
            "choose another way to draft, or another backend with {backend}",
        )
    rows = {
        Dim.TOKENS: max_tokens,
        Dim.OUTPUTS: max_outputs,
        Dim.SEQUENCES: max_sequences,
        Dim.CONSTANT: 1,
    }
    if backend.split is None:
        nodes = _with_host_rows(graph.nodes, graph.given, graph.hidden)
        next_id = 1 + max(v.id for node in nodes for v in node.outputs)
        part = _part(nodes, graph.output, backend, rows, fuse, next_id, adapters)
        plan = part.plan
        if samples and backend.supports("sample"):
            made = (ref.id for launch in plan.launches for ref in launch.outputs)
            plan = _with_sampling(plan, graph.output, 1 + max(made))
        return plan
    lists, final = _divided(graph, backend.split)
    next_id = 1 + max(v.id for nodes in lists for node in nodes for v in node.outputs)
    parts = []
    for device, nodes in zip(backend.split.devices, lists, strict=True):
        is_last = any(final in n.outputs for n in nodes if n.op != split.RECEIVE)
        output = final if is_last else None
        parts.append(_part(nodes, output, device, rows, fuse, next_id, adapters))
        made = (ref.id for launch in parts[-1].plan.launches for ref in launch.outputs)
        next_id = max(next_id, 1 + max(made, default=0))
    if samples:
        parts = _with_sampling_devices(parts, backend.split, final, next_id)
    return split.join(parts)


def planned_nodes(graph: Graph, backend: Kernels) -> list[Node]:
    """Return the nodes whose kernels a plan of `graph` launches, without memory for their values.

    `backend` has one device. Raises UnsupportedError if it lacks a kernel for a block format.
    """
    next_id = 1 + max(v.id for node in graph.nodes for v in node.outputs)
    nodes = _rewritten(graph.nodes, graph.output, backend, True, count(next_id), ())
    nodes, _ = passes.resolve_views(nodes)
    return add_alternatives(nodes, backend.runs_fused)


def _with_sampling_devices(
    parts: Sequence[split.Part], devices: SplitDevices, logits: Value, id: int
) -> list[split.Part]:
    """Return `parts` with a launch that samples tokens, if the device of the logits can sample.

    The parts that read the ids of tokens have room for sampled tokens `id` too.
    """
    found = list(parts)
    maker = next(i for i, part in enumerate(parts) if part.plan.output.cols)
    if devices.devices[maker].supports("sample"):
        for i, part in enumerate(parts):
            if i == maker:
                found[i] = replace(part, plan=_with_sampling(part.plan, logits, id))
            elif any(_reads_ids(launch) for launch in part.plan.launches):
                found[i] = replace(part, plan=_with_room_for_tokens(part.plan, id))
    return found


def _reads_ids(launch: Launch) -> bool:
    return launch.kernel == "embed" and not launch.attributes.get("by_position")


def _divided(graph: Graph, devices: SplitDevices) -> tuple[list[list[Node]], Value]:
    """Return the nodes of each device, and the output."""
    assert graph.output is not None
    n_devices, division = len(devices.devices), devices.division
    if callable(division):
        nodes = _with_host_rows(graph.nodes, graph.given, graph.hidden)
        return split.split(nodes, _with_host(division, nodes), n_devices), graph.output
    found = tensor_split.divide(graph, division, devices.are_alike)
    device_of = {id(node): at for node, at in zip(found.nodes, found.devices, strict=True)}
    nodes = _with_host_rows(found.nodes, graph.given, found.hidden)
    at = _with_host(lambda node: device_of[id(node)], nodes)
    return split.split(nodes, at, n_devices, take_turns=False), found.output


def _with_host(division: Callable[[Node], int], nodes: Sequence[Node]) -> Callable[[Node], int]:
    """Return `division`, extended to the nodes that exchange rows with the host.

    A send is on the device that makes its rows, a receive on the first device that reads its rows.
    """

    def device_of(node: Node) -> int:
        if node.op == split.SEND:
            return division(next(x for x in nodes if node.inputs[0] in x.outputs))
        if node.op == split.RECEIVE:
            return division(next(x for x in nodes if node.outputs[0] in x.inputs))
        return division(node)

    return device_of


def _with_host_rows(nodes: Sequence[Node], given: Value | None, hidden: Value | None) -> list[Node]:
    """Return `nodes` with a receive and a send of the rows that the host exchanges.

    So the arena holds given rows from the start of a step, and hidden rows until its end.
    """
    attrs = MappingProxyType({"stop": split.HOST})
    receive = [] if given is None else [Node(split.RECEIVE, (), (given,), attrs)]
    send = [] if hidden is None else [Node(split.SEND, (hidden,), (), attrs)]
    return [*receive, *nodes, *send]


def _host_rows(exchanges: Mapping[int, split.Exchange]) -> Ref | None:
    """Return the rows that are exchanged with the host, if there are any."""
    return exchanges[split.HOST].refs[0] if split.HOST in exchanges else None


def _part(
    given: Sequence[Node],
    output: Value | None,
    backend: Kernels,
    rows: dict[Dim, int],
    fuse: bool,
    next_id: int,
    adapters: Adapters,
) -> split.Part:
    """Return the plan of the nodes of one device. New values get ids starting at `next_id`."""
    nodes = _rewritten(given, output, backend, fuse, count(next_id), adapters)
    nodes, views = passes.resolve_views(nodes)
    held: dict[int, int] = {}
    if fuse and backend.capabilities.holds_fused_inputs:
        held = held_inputs(nodes, backend.runs_fused)
    arena = memory.assign(nodes, output, rows, backend.row_bytes, views, held)
    if fuse:
        nodes = add_alternatives(nodes, backend.runs_fused)

    def ref(value: Value) -> Ref:
        view = views.get(value.id)
        base, first = (value, 0) if view is None else (view.base, view.first)
        stride = memory.stride(base, backend.row_bytes)
        offset = arena.offsets[base.id] + 4 * first
        return Ref(base.id, value.dim, value.cols, value.format, offset, stride, first, value.runs)

    launches: list[Launch] = []
    exchanges: dict[str, dict[int, split.Exchange]] = {op: {} for op in split.TRANSFERS}
    for node in nodes:
        if node.op in split.TRANSFERS:
            refs = tuple(ref(v) for v in (*node.inputs, *node.outputs) if isinstance(v, Value))
            exchanges[node.op][int(node.attrs["stop"])] = split.Exchange(len(launches), refs)
        else:
            launches.append(_lower(node, ref, backend))
    sends, receives = exchanges[split.SEND], exchanges[split.RECEIVE]
    plan = Plan(
        tuple(launches),
        NO_OUTPUT if output is None else ref(output),
        arena.n_bytes,
        rows[Dim.TOKENS],
        rows[Dim.OUTPUTS],
        given=_host_rows(receives),
        hidden=_host_rows(sends),
    )
    return split.Part(plan, sends, receives, exchanges[split.ALL_REDUCE])


def _rewritten(
    given: Sequence[Node],
    output: Value | None,
    backend: Kernels,
    fuse: bool,
    ids: Iterator[int],
    adapters: Adapters,
) -> list[Node]:
    """Return nodes after fusions, with adapters and in the row formats of the backend's kernels.

    Raises UnsupportedError if the backend lacks a kernel for adapters or for a block format.
    """

    def row_format(weight: Weight) -> RowFormat:
        return backend.row_format(weight.type)

    nodes = list(given)
    if fuse:
        nodes = passes.fuse_residual(nodes, output)
        nodes = passes.fuse_glu(nodes, output, row_format, targets(adapters))
        nodes = passes.fuse_siblings(nodes, output, row_format)
        nodes = fuse_rope_store(nodes, output, ids)
    if adapters:
        if not backend.supports("lora"):
            raise UnsupportedError(
                f"the backend {backend.name} cannot apply LoRA adapters",
                "it has no kernel for them",
                "leave {lora} out, or choose another backend with {backend}",
            )
        nodes = add_adapters(nodes, adapters, ids)
    nodes = choose_row_formats(nodes, output, row_format, backend.stores, ids)
    passes.check(nodes, output)
    return nodes


def _with_sampling(plan: Plan, logits: Value, id: int) -> Plan:
    """Append a launch that samples tokens, which get the id `id`."""
    plan = _with_room_for_tokens(plan, id)
    assert plan.sampled is not None
    tokens = Value(id, Dim.OUTPUTS, SAMPLED_COLS)
    node = Node("sample", (logits,), (tokens,), label="sampling")
    inputs, cost = (plan.output,), OPS["sample"].cost(node)
    launch = Launch("sample", Dim.OUTPUTS, inputs, (plan.sampled,), (), cost, node.label)
    return replace(plan, launches=(*plan.launches, launch))


def _with_room_for_tokens(plan: Plan, id: int) -> Plan:
    """Return `plan` with room for sampled tokens.

    They lie after everything else in the arena: the next step still reads them while it overwrites
    the rest.
    """
    offset, stride = round_up(plan.arena_bytes, memory.ALIGNMENT), 4 * SAMPLED_COLS
    sampled = Ref(id, Dim.OUTPUTS, SAMPLED_COLS, RowFormat.F32, offset, stride)
    return replace(plan, sampled=sampled, arena_bytes=offset + plan.max_outputs * stride)


def _lower(node: Node, ref: Callable[[Value], Ref], backend: Kernels) -> Launch:
    """Return the launch of a node. Raises UnsupportedError."""
    if not backend.supports(node.op):
        raise UnsupportedError(
            f"the backend {backend.name} cannot run {node.label or 'this model'}",
            f"it has no kernel {node.op}",
            "choose another backend with {backend}",
        )
    if node.attrs.get("rollback") and not backend.capabilities.rollback:
        raise UnsupportedError(
            f"the backend {backend.name} cannot roll back recurrent states",
            f"its kernel {node.op} keeps the state of the last position only",
            "turn speculative decoding off, or choose another backend with {backend}",
        )
    for weight in node.inputs:
        if isinstance(weight, Weight) and not weight.is_vector:  # vectors are always float32
            backend.row_format(weight.type)  # raises UnsupportedError

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
        when=node.when,
    )


def _dim(node: Node) -> Dim:
    """Return the dim whose rows a node is launched over."""
    values: Sequence[Value] = [
        *node.outputs,
        *(v for v in node.inputs if isinstance(v, Value)),
    ]
    return values[0].dim if values else Dim.TOKENS
