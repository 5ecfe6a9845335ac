"""Which launches wait for which, and the graph of dispatches that follows from it."""

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
from zinc.ops.values import Dim, KVState, RecurrentState, RowFormat
from zinc.plan.planner import make_plan


class NoArguments(Struct):
    """Arguments of a kernel that takes none."""


NO_WORK = Dispatch(KernelVariant("none"), NoArguments(), (1, 1, 1))


def plan_of(name: str) -> plans.Plan:
    with GGUFFile.open(FIXTURES / f"{name}.gguf") as file:
        return make_plan(load(file)[1], VulkanKernels(), max_tokens=16, max_outputs=4)


@pytest.mark.parametrize("name", ["qwen3", "qwen35moe", "deepseek2", "gemma4e", "gptoss"])
def test_reusing_memory_adds_no_dependency(name: str) -> None:
    plan = plan_of(name)
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
    for launch, direct, own in zip(plan.launches, dependencies(plan), needed, strict=True):
        assert set(direct) <= own, launch


@pytest.mark.parametrize("name", ["qwen3", "qwen35moe", "deepseek2", "gemma4e"])
def test_a_launch_waits_for_the_launches_whose_outputs_it_reads(name: str) -> None:
    plan = plan_of(name)
    reached: list[set[int]] = []  # launches that have ended before each launch
    for direct in dependencies(plan):
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
def test_attention_of_one_token_prepares_its_own_heads(name: str, matrix: bool) -> None:
    plan = plan_of(name)
    features = Features(32, cooperative_matrix=matrix, compute_units=132, shared_bytes=49152)
    rows = {Dim.TOKENS: 1, Dim.OUTPUTS: 1, Dim.SEQUENCES: 1, Dim.CONSTANT: 1}

    def levels(bucket: Bucket, invariant: bool = False) -> list[list[Node]]:
        at = NominalAddresses(replace(features, batch_invariant=invariant), "f16", 64)
        return dispatch_graph(SLANG_KERNELS, plan, dependencies(plan), at, bucket).levels()

    stores = [i for i, x in enumerate(plan.launches) if x.kernel == "rope_store"]
    deep, few = Bucket(1, 1, 1, 1 << 14), Bucket(1, 1, 1, 256)
    for found, joins in ((levels(deep), True), (levels(few), False), (levels(deep, True), False)):
        launches = {node.launch for level in found for node in level}
        alone = [i for i in stores if i in launches]
        joined = set(stores) - launches
        assert bool(joined) is joins
        # Launches with few visible keys, or with the keys of another layer, stay apart.
        apart = [
            i for i in stores
            if (cache := plan.launches[i].input("cache")) is None or cache.window
        ]  # fmt: skip
        assert not joins or set(alone) <= set(apart)
        for level in found:
            touched = [
                [
                    access
                    for k in ((i - 1, i) if i - 1 in joined else (i,))
                    for access in accesses(plan.launches[k], rows)
                ]
                for i in {node.launch for node in level}
            ]
            for a, b in combinations(touched, 2):
                assert not any(x.conflicts(y) for x in a for y in b)


def three_launches() -> plans.Plan:
    """Return a plan in which the second launch reads the first, and the third overwrites x."""
    x, y, z = (plans.Ref(i, Dim.TOKENS, 4, RowFormat.F32, 4096 * i, 16) for i in range(3))
    launches = [
        plans.Launch(kernel, Dim.TOKENS, (source,), (target,), (), Cost(), "")
        for kernel, source, target in (("add", x, y), ("scale", y, z), ("embed", None, x))
    ]
    return plans.Plan(tuple(launches), x, 3 * 4096, 1, 1)


def test_a_dependency_on_a_joined_launch_is_one_on_the_launch_that_does_its_work() -> None:
    lowerings = dict.fromkeys(("add", "scale", "embed"), lambda *_: [NO_WORK])
    apart = replace(SLANG_KERNELS, lowerings=lowerings, joint={})
    joined = replace(apart, joint={("add", "scale"): lambda *_: [NO_WORK]})

    def found(kernels: object) -> list[list[int]]:
        plan, at = three_launches(), NominalAddresses(Features(32), "f16", 64)
        before = [(), (0,), (0,)]
        levels = dispatch_graph(kernels, plan, before, at, Bucket(1, 1, 1, 256)).levels()
        return [[node.launch for node in level] for level in levels]

    assert found(apart) == [[0], [1, 2]]
    assert found(joined) == [[1], [2]], "the second reads what the third writes"


def test_a_dispatch_that_waits_follows_all_earlier_ones_of_its_launch() -> None:
    waiting = replace(NO_WORK, waits=True)
    lowerings = {
        "add": lambda *_: [NO_WORK, NO_WORK, waiting],
        "scale": lambda *_: [],
        "embed": lambda *_: [NO_WORK],
    }
    kernels = replace(SLANG_KERNELS, lowerings=lowerings, joint={})
    at = NominalAddresses(Features(32), "f16", 64)
    plan, before = three_launches(), [(), (0,), (1,)]
    graph = dispatch_graph(kernels, plan, before, at, Bucket(1, 1, 1, 256))
    assert [node.after for node in graph.nodes] == [(), (), (0, 1), (2,)]
    assert [len(level) for level in graph.levels()] == [2, 1, 1]


def test_launches_that_share_scratch_memory_wait_for_each_other() -> None:
    def takes(n_bytes: int) -> object:
        return lambda launch, at, bucket: at.scratch.take(n_bytes) and [NO_WORK]

    lowerings = {"add": takes(10 << 20), "scale": takes(1), "embed": takes(10 << 20)}
    kernels = replace(SLANG_KERNELS, lowerings=lowerings, joint={})
    at = NominalAddresses(Features(32), "f16", 64)
    graph = dispatch_graph(kernels, three_launches(), [(), (), ()], at, Bucket(1, 1, 1, 256))
    assert [node.after for node in graph.nodes] == [(), (), (0,)]


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


@pytest.mark.parametrize("name", ["qwen3", "qwen35moe"])
def test_an_edge_leads_from_a_level_to_a_higher_one(name: str) -> None:
    plan = plan_of(name)
    at = NominalAddresses(Features(32, compute_units=132), "f16", 64)
    graph = dispatch_graph(SLANG_KERNELS, plan, dependencies(plan), at, Bucket(4, 4, 1, 256))
    level_of = {id(node): depth for depth, level in enumerate(graph.levels()) for node in level}
    depths = [level_of[id(node)] for node in graph.nodes]
    edges = graph.edges()
    assert all(depths[a] < depths[b] for a, b in edges)
    assert {b for _, b in edges} == {i for i, depth in enumerate(depths) if depth}
