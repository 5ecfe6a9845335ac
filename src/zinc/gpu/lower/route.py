"""Lowerings of route, which chooses experts, and group_experts, which sorts slots by expert."""

from __future__ import annotations

from zinc.backends.plans import Launch
from zinc.gpu.addresses import Addresses
from zinc.gpu.arguments.structs import GroupExpertsArguments, RouteArguments
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.kernel_set import lowers
from zinc.gpu.lower.operands import dim_code, power_of_two, rows, vector_or_null

MAX_EXPERTS = 1024  # a thread for each
FEW_SLOTS = 256  # with at most this many slots, one segment holds all of them


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
