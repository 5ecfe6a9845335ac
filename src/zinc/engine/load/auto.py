"""The device that backend="auto" means.

The first of these that passes the self-test: a discrete GPU that holds the whole model, an
integrated or virtual GPU that holds it, the CPU. Of GPUs of one kind, those whose kernels use
matrix units come first. A GPU that a driver emulates on the CPU, such as llvmpipe, is never chosen.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from zinc.backends import api
from zinc.backends.api import Backend
from zinc.backends.capabilities import DeviceInfo, DeviceKind
from zinc.core.errors import DeviceError, ZincError

log = logging.getLogger("zinc.loading")

_CHOSEN_KINDS = (DeviceKind.DISCRETE, DeviceKind.INTEGRATED, DeviceKind.VIRTUAL)


@dataclass(frozen=True, slots=True)
class Selection:
    """The backend that auto chose, and the reason as a sentence for people."""

    backend: Backend
    reason: str


@dataclass(frozen=True, slots=True)
class Machine:
    """The devices of a machine, and how to try them.

    gpus: every GPU with the name of its backend. open: opens a GPU. open_cpu: makes the CPU
    backend. failure: returns what the self-test of a GPU finds wrong, or "".
    """

    gpus: Sequence[tuple[str, DeviceInfo]]
    open: Callable[[str, DeviceInfo], Backend]
    open_cpu: Callable[[], Backend]
    failure: Callable[[str, DeviceInfo], str]


def select(
    machine: Machine, fits: Callable[[Backend], bool] | None = None, wanted: str = ""
) -> Selection:
    """Return the fastest device of `machine` on which the model fits and the self-test passes.

    fits: returns whether an open GPU holds the model; None takes a GPU of any size. wanted: the
    option `device`; if given, only the device that it names is considered. Raises DeviceError if it
    names none.
    """
    if wanted == "cpu":
        return Selection(machine.open_cpu(), "the model runs on the CPU")
    gpus = [(name, gpu) for name, gpu in machine.gpus if _is_named(gpu, wanted)]
    if wanted and not gpus:
        known = ", ".join(f"{gpu.selector} ({gpu.name})" for _, gpu in machine.gpus)
        raise DeviceError(
            f"there is no device {wanted!r}",
            f"this machine has {known}" if known else "no GPU was found",
            "choose a device that `zinc check` lists, or cpu, or leave {device} out",
        )
    passed_over: list[str] = []
    for name, gpu in sorted(gpus, key=lambda each: _rank(each[1])):
        why = _unusable(gpu)
        backend = None
        if not why:
            try:
                backend = machine.open(name, gpu)
                why = "" if fits is None or fits(backend) else "is too small for the model"
            except ZincError as error:
                why = f"cannot be used: {error}"
        if not why and (wrong := machine.failure(name, gpu)):
            why = f"failed its self-test: {wrong}"
            log.warning("%s (%s) %s", gpu.selector, gpu.name, why)
        if backend is not None and not why:
            kind = f"{'an' if gpu.kind is DeviceKind.INTEGRATED else 'a'} {gpu.kind}"
            others = "".join(f"; {each}" for each in passed_over)
            holds = "" if fits is None else " that holds it"
            reason = f"the model runs on {gpu.selector}, {gpu.name} ({kind}{holds}{others})"
            return Selection(backend, reason)
        passed_over.append(f"{gpu.selector}, {gpu.name}, {why}")
    why = "; ".join(passed_over) or "no GPU was found"
    return Selection(machine.open_cpu(), f"the model runs on the CPU ({why})")


def this_machine(threads: int | None, options: Mapping[str, str]) -> Machine:
    """Return this machine. threads, options: as for `zinc.backends.api.create`."""

    def open_gpu(name: str, gpu: DeviceInfo) -> Backend:
        return api.create(name, threads, {**options, "device": gpu.selector})

    return Machine(find_gpus(), open_gpu, lambda: api.create("cpu", threads, options), _tested_once)


def find_gpus() -> list[tuple[str, DeviceInfo]]:
    """Return the GPUs of this machine, each with the name of its backend.

    Costs nothing on Linux without a GPU: no backend is imported then.
    """
    found: list[tuple[str, DeviceInfo]] = []
    if not _may_have_gpu():
        return found
    for name in api.discover():
        try:
            found += [(name, gpu) for gpu in api.devices(name)]
        except ZincError as error:
            log.info("devices of %s cannot be listed: %s", name, error)
    return found


def _may_have_gpu() -> bool:
    """Return whether the kernel shows a GPU; True on systems other than Linux."""
    if sys.platform != "linux":
        return True
    patterns = ("dri/renderD*", "nvidia[0-9]*", "dxg")
    return any(next(Path("/dev").glob(pattern), None) for pattern in patterns)


@cache
def _tested_once(name: str, gpu: DeviceInfo) -> str:
    """Return the failure of a GPU's self-test, which runs once in a process."""
    from zinc.engine.load import self_test

    return self_test.failure(lambda: api.create(name, None, {"device": gpu.selector}))


def _rank(gpu: DeviceInfo) -> tuple[int, bool]:
    """Return the sort key of a GPU; the smallest is tried first."""
    return list(DeviceKind).index(gpu.kind), not gpu.matrix_units


def _is_named(gpu: DeviceInfo, wanted: str) -> bool:
    key = wanted.lower()
    return key in gpu.name.lower() or key in (gpu.selector, gpu.selector.partition(":")[2])


def _unusable(gpu: DeviceInfo) -> str:
    """Return why a GPU is never chosen; empty if it may be."""
    if gpu.kind is DeviceKind.SOFTWARE:
        return "computes on the CPU"
    if gpu.kind not in _CHOSEN_KINDS:
        return "is no GPU"
    return f"lacks {', '.join(gpu.missing)}" if gpu.missing else ""
