"""Dependencies between launches, and the graph of dispatches made from them."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations

import pytest
from models.harness import FIXTURES

from zinc.backends import plans
from zinc.backends.vulkan import SLANG_KERNELS, VulkanKernels
from zinc.formats.gguf import GGUFFile
from zinc.gpu.addresses import NominalAddresses
from zinc.gpu.arguments.layout import Struct
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.features import Features
from zinc.gpu.graph import DispatchGraph, Node, dispatch_graph
from zinc.gpu.hazards import accesses, dependencies
from zinc.models import load
from zinc.ops.registry import Cost
from zinc.ops.step import StepCondition
from zinc.ops.values import Dim, KVState, RecurrentState, RowFormat
from zinc.plan.planner import make_plan


class NoArguments(Struct):
    """Arguments of a kernel that takes none."""


DEEP = Bucket(1, 1, 1, 1 << 14)
NO_WORK = Dispatch(KernelVariant("none"), NoArguments(), (1, 1, 1))


def plan_of(name: str) -> plans.Plan:
    with GGUFFile.open(FIXTURES / f"{name}.gguf") as file:
        return make_plan(load(file)[1], VulkanKernels(), max_tokens=16, max_outputs=4)


@pytest.mark.parametrize("name", ["qwen3", "qwen35moe", "deepseek2", "gemma4e", "gptoss"])
def test_reusing_memory_adds_no_dependency(name: str) -> None:
    plan = plan_of(name).without_alternatives()
    made: dict[int, int] = {}
    touched: dict[str, int] = {}
    needed: list[set[int]] = []  # launches that each launch needs for its data, directly or not
    for i, launch in enumerate(plan.launches):
        direct = {made[x.id] for x in launch.inputs if isinstance(x, plans.Ref)}
        states = [x.name for x in launch.inputs if isinstance(x, KVState | RecurrentState)]
        direct |= {touched[name] for name in states if name in touched}
        needed.append(direct.union(*(needed[j] for j in direct)))
        made |= dict.fromkeys((x.id for x in launch.outputs), i)
        touched |= dict.fromkeys(states, i)
    direct_of = dependencies(plan, DEEP)
    for launch, direct, own in zip(plan.launches, direct_of, needed, strict=True):
        assert set(direct) <= own, launch


@pytest.mark.parametrize("name", ["qwen3", "qwen35moe", "deepseek2", "gemma4e"])
def test_a_launch_waits_for_the_launches_whose_outputs_it_reads(name: str) -> None:
    plan = plan_of(name).without_alternatives()
    reached: list[set[int]] = []  # launches that have ended before each launch
    for direct in dependencies(plan, DEEP):
        reached.append(set(direct).union(*(reached[j] for j in direct)))
    made: dict[int, int] = {}
    stored: dict[str, int] = {}
    for i, launch in enumerate(plan.launches):
        for x in launch.inputs:
            if isinstance(x, plans.Ref):
                assert made[x.id] in reached[i]
            if isinstance(x, KVState) and launch.kernel == "attention" and x.name in stored:
                assert stored[x.name] in reached[i]
            if isinstance(x, KVState) and launch.kernel == "rope_store":
                stored[x.name] = i
        made |= {ref.id: i for ref in launch.outputs}


@pytest.mark.parametrize("name", ["qwen3", "gptoss", "qwen35moe", "gemma4e"])
@pytest.mark.parametrize("matrix", [False, True])
def test_attention_of_few_tokens_prepares_its_own_heads(name: str, matrix: bool) -> None:
    plan = plan_of(name)
    features = Features(32, cooperative_matrix=matrix, compute_units=132, shared_bytes=49152)

    def levels(bucket: Bucket) -> list[list[Node]]:
        at = NominalAddresses(features, "f16", 64)
        return dispatch_graph(SLANG_KERNELS, plan, dependencies(plan, bucket), at, bucket).levels()

    has_sinks = name == "gptoss"
    for bucket, prepares in (
        (DEEP, True),
        (Bucket(1, 1, 1, 256), not has_sinks),
        (Bucket(8, 1, 1, 512), True),
        (Bucket(16, 1, 16, 512, is_decode=True), True),
        (Bucket(16, 1, 1, 256), not has_sinks),
        (Bucket(16, 1, 1, 512), False),
    ):
        found = levels(bucket)
        kernels = [plan.launches[node.launch].kernel for level in found for node in level]
        assert ("rope_attention" in kernels) is prepares
        rows = {dim: bucket.rows(dim) for dim in Dim}
        for level in found:
            touched = [
                list(accesses(plan.launches[i], rows)) for i in {node.launch for node in level}
            ]
            for a, b in combinations(touched, 2):
                assert not any(x.conflicts(y) for x in a for y in b)


def three_launches() -> plans.Plan:
    """Return a plan in which the second launch reads the first, and the third overwrites x."""
    x, y, z = (plans.Ref(i, Dim.TOKENS, 4, RowFormat.F32, 4096 * i, 16) for i in range(3))
    launches = [
        plans.Launch(kernel, Dim.TOKENS, (source,), (target,), (), Cost(), "")
        for kernel, source, target in (("scale", x, y), ("softcap", y, z), ("embed", None, x))
    ]
    return plans.Plan(tuple(launches), x, 3 * 4096, 1, 1)


def test_launches_that_do_not_run_are_not_waited_for() -> None:
    """The second launch reads the first, and the third overwrites what the first read."""
    lowerings = dict.fromkeys(("scale", "softcap", "embed"), lambda *_: [NO_WORK])
    kernels = replace(SLANG_KERNELS, lowerings=lowerings)
    first, *others = three_launches().launches
    condition = StepCondition((1, 1), min_keys=257)
    plan = replace(three_launches(), launches=(replace(first, when=condition), *others))

    def after(bucket: Bucket) -> list[tuple[int, tuple[int, ...]]]:
        at = NominalAddresses(Features(32), "f16", 64)
        graph = dispatch_graph(kernels, plan, dependencies(plan, bucket), at, bucket)
        return [(node.launch, node.after) for node in graph.nodes]

    assert after(Bucket(1, 1, 1, 512)) == [(0, ()), (1, (0,)), (2, (0,))]
    assert after(Bucket(1, 1, 1, 256)) == [(1, ()), (2, ())]


def test_a_dispatch_that_waits_follows_all_earlier_ones_of_its_launch() -> None:
    waiting = replace(NO_WORK, waits=True)
    lowerings = {
        "scale": lambda *_: [NO_WORK, NO_WORK, waiting],
        "softcap": lambda *_: [],
        "embed": lambda *_: [NO_WORK],
    }
    kernels = replace(SLANG_KERNELS, lowerings=lowerings)
    at = NominalAddresses(Features(32), "f16", 64)
    plan, before = three_launches(), [(), (0,), (1,)]
    graph = dispatch_graph(kernels, plan, before, at, Bucket(1, 1, 1, 256))
    assert [node.after for node in graph.nodes] == [(), (), (0, 1), (2,)]
    assert [len(level) for level in graph.levels()] == [2, 1, 1]


def test_launches_that_share_scratch_memory_wait_for_each_other() -> None:
    def takes(n_bytes: int) -> object:
        return lambda launch, at, bucket: at.scratch.take(n_bytes) and [NO_WORK]

    lowerings = {"scale": takes(10 << 20), "softcap": takes(1), "embed": takes(10 << 20)}
    kernels = replace(SLANG_KERNELS, lowerings=lowerings)
    at = NominalAddresses(Features(32), "f16", 64)
    graph = dispatch_graph(kernels, three_launches(), [(), (), ()], at, Bucket(1, 1, 1, 256))
    assert [node.after for node in graph.nodes] == [(), (), (0,)]


def test_a_joined_dispatch_waits_for_earlier_users_of_its_scratch_memory() -> None:
    """The second launch takes over the third one's dispatch, which writes to scratch memory."""
    join = replace(NO_WORK, groups=(7, 1, 1))
    lowerings = {
        "scale": lambda launch, at, bucket: at.scratch.take(11 << 20) and [NO_WORK],
        "softcap": lambda *_: [NO_WORK],
        "embed": lambda launch, at, bucket: at.scratch.take(12 << 20) and [NO_WORK, NO_WORK],
    }
    kernels = replace(SLANG_KERNELS, lowerings=lowerings, joins={"softcap": lambda *_: join})
    at, bucket = NominalAddresses(Features(32), "f16", 64), Bucket(1, 1, 1, 256)
    graph = dispatch_graph(kernels, three_launches(), [(), (), (1,)], at, bucket)
    assert [(node.launch, node.after) for node in graph.nodes] == [(0, ()), (1, (0,)), (2, (0, 1))]
    assert graph.nodes[1].dispatch is join
    assert list(kernels.lower_all(three_launches().launches, at, bucket))[1] is join
    apart = dispatch_graph(kernels, three_launches(), [(), (), ()], at, bucket)
    assert len(apart.nodes) == 4


def reached(edges: list[tuple[int, int]], n: int) -> list[set[int]]:
    """Return for each of `n` nodes the nodes from which edges lead to it."""
    before: list[set[int]] = [set() for _ in range(n)]
    for i in range(n):
        for a in (a for a, b in edges if b == i):
            before[i] |= {a} | before[a]
    return before


def test_edges_order_what_the_full_graph_orders_and_no_edge_is_redundant() -> None:
    rng = random.Random(5)
    for _ in range(20):
        nodes = [
            Node(i, NO_WORK, tuple(sorted(rng.sample(range(i), rng.randint(0, min(i, 4))))))
            for i in range(25)
        ]
        edges = DispatchGraph(tuple(nodes)).edges()
        want = reached([(j, node.launch) for node in nodes for j in node.after], 25)
        assert reached(edges, 25) == want
        for edge in edges:
            assert reached([e for e in edges if e != edge], 25) != want


def test_logits_count_as_written_by_the_launch_that_penalises_them() -> None:
    with GGUFFile.open(FIXTURES / "qwen3.gguf") as file:
        graph = load(file)[1]
    plan = make_plan(graph, VulkanKernels(), max_tokens=16, max_outputs=4, samples=True)
    rows = {Dim.TOKENS: 16, Dim.OUTPUTS: 4, Dim.SEQUENCES: 4, Dim.CONSTANT: 1}
    (sample,) = (launch for launch in plan.launches if launch.kernel == "sample")
    logits = plan.output.offset
    assert [x.writes for x in accesses(sample, rows) if x.start == logits] == [True]


@pytest.mark.parametrize("name", ["qwen3", "qwen35moe"])
def test_an_edge_leads_from_a_level_to_a_higher_one(name: str) -> None:
    plan = plan_of(name)
    at, bucket = NominalAddresses(Features(32, compute_units=132), "f16", 64), Bucket(4, 4, 1, 256)
    graph = dispatch_graph(SLANG_KERNELS, plan, dependencies(plan, bucket), at, bucket)
    level_of = {id(node): depth for depth, level in enumerate(graph.levels()) for node in level}
    depths = [level_of[id(node)] for node in graph.nodes]
    edges = graph.edges()
    assert all(depths[a] < depths[b] for a, b in edges)
    assert {b for _, b in edges} == {i for i, depth in enumerate(depths) if depth}
