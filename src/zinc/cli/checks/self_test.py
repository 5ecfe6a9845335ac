"""The self-tests of a device, and its measured limits.

The short self-test is the one that a device passes before a model is put on it. The long one runs
the cases of the op registry, the first case of each op before the second, until its time is up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from zinc.backends.api import Backend
from zinc.backends.tuning import Tunable
from zinc.cli import roofline
from zinc.cli.checks.finding import Finding, fail, ok, reason, remedy, skip, warn
from zinc.core.errors import ZincError
from zinc.ops.cases import Case
from zinc.ops.registry import Op

SECONDS = 10.0
_UPDATE = "update its driver, or choose another --backend; zinc verify --kernels tests every op"


def device(create: Callable[[], Backend], name: str) -> Iterator[Finding]:
    """Yield the outcome of the self-tests of a device, and its limits.

    create: opens the device. name: for people.
    """
    from zinc.engine.load.self_test import failure

    if wrong := failure(create):
        yield fail(f"{name} fails its self-test: {wrong}", _UPDATE)
        return
    yield _kernels(create, name)
    yield from _tiles(create(), name)
    yield from _limits(create, name)


def _kernels(create: Callable[[], Backend], name: str) -> Finding:
    """Compare kernels with the reference, each in cases of its own, for about SECONDS."""
    from zinc.testing.parity import compare_case, is_for

    backend, until, n_cases = create(), time.monotonic() + SECONDS, 0
    tested: set[str] = set()
    for op, case in interleaved():
        if not is_for(backend, op, case):
            continue
        if n_cases and time.monotonic() >= until:
            break
        try:
            checks = compare_case(op, case, create())
        except ZincError as error:
            return warn(f"{name} cannot run {op.name}: {reason(error)}", remedy(error, _UPDATE))
        if wrong := next((check for check in checks if check.departs), None):
            return fail(f"{name}: {op.name} is off by {wrong.error:.0e} in {wrong.step}", _UPDATE)
        n_cases += 1
        tested.add(op.name)
    return ok(f"{name} passes its self-test: {n_cases} cases of {len(tested)} ops agree")


def _tiles(backend: Backend, name: str) -> Iterator[Finding]:
    """Report whether a table of tuned tiles is in use, if the backend has tiles to tune."""
    if not isinstance(backend, Tunable):
        return
    if backend.n_tuned:
        n = backend.n_tuned
        yield ok(f"{name} uses tuned tiles for {n} product{'s' if n > 1 else ''}")
    else:
        yield skip(f"{name} has no tuned tiles", f"zinc tune --device {name}")


def interleaved() -> Iterator[tuple[Op, Case]]:
    """Yield the cases of the op registry: the first of each op, then the second, and so on."""
    from zinc.ops import OPS

    waiting = [(op, op.cases()) for op in OPS.values()]
    while waiting:
        left = []
        for op, cases in waiting:
            if (case := next(cases, None)) is not None:
                yield op, case
                left.append((op, cases))
        waiting = left


def _limits(create: Callable[[], Backend], name: str) -> Iterator[Finding]:
    """Measure bandwidth and arithmetic, and keep the bandwidth for other commands."""
    from zinc.engine.load import bandwidth

    backend = create()
    try:
        limits = roofline.measure_visibly(backend)
    except ZincError as error:
        yield fail(
            f"{name} cannot be measured: {reason(error)}", remedy(error, "update its driver")
        )
        return
    if limits is not None:
        bandwidth.store(backend, limits)
        rate, tops = limits.bytes_per_s / 1e9, limits.int8_ops_per_s / 1e12
        yield ok(f"{name} reads {rate:.1f} GB/s and computes {tops:.2f} int8 TOPS")
