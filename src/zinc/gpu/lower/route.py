"""Lowerings of the ops that choose experts and sort slots by expert, and of their fused ops."""

from __future__ import annotations

from zinc.backends.plans import Launch
from zinc.core.rounding import ceil_div
from zinc.gpu.addresses import Addresses
from zinc.gpu.arguments.structs import (
    GroupExpertsArguments,
    NormRouteArguments,
    RouteArguments,
    RouteExpertsArguments,
)
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.kernel_set import fuses, lowers
from zinc.gpu.lower.operands import dim_code, in_vectors, power_of_two, rows, vector_or_null
from zinc.gpu.lower.weights import weight_of
from zinc.ops.node import Node
from zinc.ops.step import ONE_TOKEN, StepCondition
from zinc.ops.values import RowFormat
from zinc.quant.blocks import GGMLType

MAX_EXPERTS = 1024  # a workgroup has a thread for each
FEW_SLOTS = 256  # with at most this many slots, one segment holds all of them
WAVES = 8  # subgroups per workgroup of norm_route, each with a row of the router
OTHER_OUTPUTS = 4  # outputs of norm_route besides products: 8-bit blocks, routes, order, starts
MAX_PARTS = 2  # the router, and gates of the shared experts


@fuses("route_experts")
def route_experts_steps(node: Node) -> StepCondition | None:
    """Return the steps of one token."""
    return ONE_TOKEN


@fuses("norm_route")
def norm_route_steps(node: Node) -> StepCondition | None:
    """Return the steps of one token, if the router is float32 and its rows suit the kernel."""
    x, blocks = node.rows("x"), node.outputs[0]
    weights = [node.weight("weight", i) for i in range(len(node.outputs) - OTHER_OUTPUTS)]
    suits = (
        len(weights) <= MAX_PARTS
        and all(weight.type is GGMLType.F32 for weight in weights)
        and blocks.format is RowFormat.Q8_32
        and x.cols % 32 == 0
    )
    return ONE_TOKEN if suits else None


@lowers("route")
def route(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    logits, bias, y = rows(launch, "logits"), launch.input("bias"), launch.outputs[0]
    arguments = RouteArguments(
        step=at.step,
        logits=at.ref(logits),
        bias=vector_or_null(at, bias),
        y=at.ref(y),
        logits_stride=logits.stride,
        y_stride=y.stride,
        dim=dim_code(launch.dim, bucket),
        scale=float(launch.attributes["scale"]),
    )
    kernel = KernelVariant("route", choice_defines(launch, logits.cols))
    return [Dispatch(kernel, arguments, (bucket.rows(launch.dim), 1, 1))]


def choice_defines(launch: Launch, n_experts: int) -> tuple[tuple[str, int], ...]:
    """Return the macros that say how experts are chosen among `n_experts`."""
    attrs = launch.attributes
    names = ("group_top", "renormalise", "scoring", "top_groups", "top_k")
    macros = {name.upper(): int(attrs[name]) for name in names}
    macros |= {"EXPERTS": n_experts, "GROUPS": int(attrs["n_groups"])}
    return tuple(sorted(macros.items()))


@lowers("group_experts")
def group_experts(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    routes, (order, starts) = rows(launch, "routes"), launch.outputs
    n_experts = int(launch.attributes["n_experts"])
    if n_experts > MAX_EXPERTS:
        raise NotImplementedError(f"kernels sort at most {MAX_EXPERTS} experts, not {n_experts}")
    arguments = GroupExpertsArguments(
        step=at.step,
        routes=at.ref(routes),
        order=at.ref(order),
        starts=at.ref(starts),
        routes_stride=routes.stride,
        order_stride=order.stride,
        dim=dim_code(launch.dim, bucket),
        top_k=order.cols,
        n_experts=n_experts,
    )
    experts = max(64, power_of_two(n_experts))
    slots = bucket.rows(launch.dim) * order.cols
    segments = 1 if slots <= FEW_SLOTS else MAX_EXPERTS // experts
    kernel = KernelVariant("group_experts", (("EXPERTS", experts), ("SEGMENTS", segments)))
    return [Dispatch(kernel, arguments, (1, 1, 1))]


@lowers("route_experts")
def route_experts(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    (choice,) = route(launch, at, bucket)
    given, (_, order, starts) = choice.arguments, launch.outputs
    assert isinstance(given, RouteArguments)
    arguments = RouteExpertsArguments.extending(given, order=at.ref(order), starts=at.ref(starts))
    kernel = KernelVariant("route", (*choice.kernel.defines, ("SORTS", 1)))
    return [Dispatch(kernel, arguments, choice.groups)]


@lowers("norm_route")
def norm_route(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    x, (blocks, logits, *gate, routes, order, starts) = rows(launch, "x"), launch.outputs
    attrs = launch.attributes
    n_gates = sum(part.cols for part in gate)
    arguments = NormRouteArguments(
        x=at.ref(x),
        norm=vector_or_null(at, launch.input("norm")),
        blocks=at.ref(blocks),
        router=weight_of(at, launch.input("weight", 0)).address,
        gates=weight_of(at, launch.input("weight", 1)).address if gate else 0,
        router_bias=vector_or_null(at, launch.input("bias", 0)),
        gate_bias=vector_or_null(at, launch.input("bias", 1)) if gate else 0,
        logits=at.ref(logits),
        gate=at.ref(gate[0]) if gate else 0,
        choice_bias=vector_or_null(at, launch.input("choice_bias")),
        routes=at.ref(routes),
        order=at.ref(order),
        starts=at.ref(starts),
        arrived=at.counters.take(1),
        n_gates=n_gates,
        eps=float(attrs["eps"]),
        scale=float(attrs["scale"]),
    )
    defines = (
        *choice_defines(launch, logits.cols),
        ("COLS", x.cols),
        ("VECTORS", in_vectors(at, x)),
        ("WAVES", WAVES),
    )
    groups = (ceil_div(logits.cols + n_gates, WAVES), 1, 1)
    return [Dispatch(KernelVariant("norm_route", defines), arguments, groups)]
