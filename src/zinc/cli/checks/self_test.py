"""The self-test of a device, and its measured limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from zinc.backends.api import Backend
from zinc.cli import roofline
from zinc.cli.checks.finding import Finding, fail, ok
from zinc.core.errors import ZincError


def device(create: Callable[[], Backend], name: str, measure: bool) -> Iterator[Finding]:
    """Yield the outcome of the self-test of a device, and with `measure` its limits.

    create: opens the device. name: for people.
    """
    from zinc.engine.load.self_test import failure

    if wrong := failure(create):
        yield fail(
            f"{name} fails its self-test: {wrong}",
            "update its driver, or choose another --backend; zinc verify --kernels tests every op",
        )
        return
    yield ok(f"{name} passes its self-test")
    if measure:
        try:
            limits = roofline.measure_visibly(create())
        except ZincError as error:
            yield fail(f"{name} cannot be measured: {error}", "update its driver")
            return
        if limits is not None:
            rate, tops = limits.bytes_per_s / 1e9, limits.int8_ops_per_s / 1e12
            yield ok(f"{name} reads {rate:.1f} GB/s and computes {tops:.2f} int8 TOPS")
