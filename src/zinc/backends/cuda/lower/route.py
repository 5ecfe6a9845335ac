"""Lowering of route_experts: one warp chooses the experts of a token and sorts its slots."""

from __future__ import annotations

from dataclasses import fields

from zinc.backends.cuda.lower.registry import fuses, lowers
from zinc.backends.plans import Launch
from zinc.gpu.addresses import Addresses
from zinc.gpu.arguments.structs import RouteArguments, RouteExpertsArguments
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.lower import route
from zinc.ops.graph import Node
from zinc.ops.step import StepCondition


@fuses("route_experts")
def route_experts_steps(node: Node) -> StepCondition | None:
    """Return the steps of one token."""
    return StepCondition(tokens=1)


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
