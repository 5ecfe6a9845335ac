"""Lowerings of the fused ops that choose the experts of a token and sort its slots."""

from __future__ import annotations

from dataclasses import fields

from zinc.backends.cuda.lower.registry import fuses, lowers
from zinc.backends.plans import Launch
from zinc.core.rounding import ceil_div
from zinc.gpu.addresses import Addresses
from zinc.gpu.arguments.structs import NormRouteArguments, RouteArguments, RouteExpertsArguments
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.lower import route
from zinc.gpu.lower.operands import rows, vector_or_null
from zinc.gpu.lower.weights import weight_of
from zinc.ops.node import Node
from zinc.ops.step import ONE_TOKEN, StepCondition
from zinc.ops.values import RowFormat
from zinc.quant.blocks import GGMLType

WARPS = 8  # of a block, each with a row of the router
MAX_COLS = 8192  # of a row in shared memory
OTHER_OUTPUTS = 4  # besides products: 8-bit blocks, routes, order and starts
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
        and x.cols <= MAX_COLS
    )
    return ONE_TOKEN if suits else None


@lowers("route_experts")
def route_experts(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    (choice,) = route.route(launch, at, bucket)
    given, (_, order, starts) = choice.arguments, launch.outputs
    assert isinstance(given, RouteArguments)
    arguments = RouteExpertsArguments(
        **{field.name: getattr(given, field.name) for field in fields(given)},
        order=at.ref(order),
        starts=at.ref(starts),
    )
    kernel = KernelVariant("route", (*choice.kernel.defines, ("SORTS", 1)))
    return [Dispatch(kernel, arguments, choice.groups)]


@lowers("norm_route")
def norm_route(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    x, (blocks, logits, *gate, routes, order, starts) = rows(launch, "x"), launch.outputs
    attrs = launch.attributes
    n_gates = sum(part.cols for part in gate)
    arguments = NormRouteArguments(
        step=at.step,
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
    defines = (*route.choice_defines(launch, logits.cols), ("COLS", x.cols), ("WARPS", WARPS))
    groups = (ceil_div(logits.cols + n_gates, WARPS), 1, 1)
    return [Dispatch(KernelVariant("norm_route", defines), arguments, groups)]
