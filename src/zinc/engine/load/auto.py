"""The device that backend="auto" means.

The first of these that passes the self-test: a discrete GPU that holds the whole model, an
integrated or virtual GPU that holds it, the CPU. Of GPUs of one kind, those whose kernels use
matrix units come first. A GPU that a driver emulates on the CPU, such as llvmpipe, is never chosen.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from zinc.backends import api
from zinc.backends.api import Backend
from zinc.backends.capabilities import BackendKind, DeviceInfo, DeviceKind
from zinc.core.dataclass import dataclass
from zinc.core.errors import DeviceError, ZincError
from zinc.core.marks import Mark

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

    gpus: every GPU with the name of its backend, listed while it is read. open: opens a GPU.
    open_cpu: makes the CPU backend. failure: returns what the self-test of a GPU finds wrong, or
    "".
    """

    gpus: Iterable[tuple[str, DeviceInfo]]
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
    passed_over: list[str] = []
    other: list[str] = []
    for name, gpu in _by_rank(_named(machine.gpus, wanted, other)):
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
            instead = "".join(f"; {each}" for each in passed_over)
            holds = "" if fits is None else " that holds it"
            reason = f"the model runs on {gpu.selector}, {gpu.name} ({kind}{holds}{instead})"
            return Selection(backend, reason)
        passed_over.append(f"{gpu.selector}, {gpu.name}, {why}")
    if wanted and not passed_over:
        raise DeviceError(
            f"there is no device {wanted!r}",
            f"this machine has {', '.join(other)}" if other else "no GPU was found",
            "choose a device that `zinc check` lists, or cpu, or leave {device} out",
        )
    why = "; ".join(passed_over) or "no GPU was found"
    return Selection(machine.open_cpu(), f"the model runs on the CPU ({why})")


def this_machine(threads: int | None, options: Mapping[str, str]) -> Machine:
    """Return this machine. threads, options: as for `zinc.backends.api.create`."""

    def open_gpu(name: str, gpu: DeviceInfo) -> Backend:
        return api.create(name, threads, {**options, "device": gpu.selector})

    return Machine(find_gpus(), open_gpu, lambda: api.create("cpu", threads, options), _tested_once)


def find_gpus() -> Iterator[tuple[str, DeviceInfo]]:
    """Yield the GPUs of this machine, each with the name of its backend.

    A backend is imported when its GPUs are listed; none is on Linux without a GPU.
    """
    for name in api.discover() if _may_have_gpu() else ():
        try:
            yield from ((name, gpu) for gpu in api.devices(name))
        except ZincError as error:
            log.info("devices of %s cannot be listed: %s", name, error)


class EarlyOpening:
    """A thread that opens the GPU which a model will probably use, once in a process.

    While the driver starts, the caller imports modules and reads the model file. Backends on a GPU
    share what the thread opens.
    """

    def __init__(self) -> None:
        self._started = False

    def start(self, backend: str, options: Mapping[str, str]) -> None:
        """Open the GPU in a thread, unless the machine has none or the options name the CPU.

        backend, options: as for `zinc.backends.api.create`. The thread drops errors: the caller
        gets them when it opens the device itself.
        """
        if self._started or options.get("device") == "cpu" or not _may_have_gpu():
            return
        self._started = True
        thread = ThreadPoolExecutor(1, "zinc-gpu")
        thread.submit(_open_first, backend, options)
        thread.shutdown(wait=False)


open_early = EarlyOpening().start


def _open_first(backend: str, options: Mapping[str, str]) -> None:
    """Open the GPU that `backend` and `options` name, or that `select` tries first."""
    wanted = options.get("device", "")
    if backend != "auto":
        if api.kernels(backend).capabilities.kind is BackendKind.DEVICE and "," not in wanted:
            api.create(backend, None, options)
        return
    for name, gpu in _by_rank(_named(find_gpus(), wanted, [])):
        if not _unusable(gpu):
            api.create(name, None, {**options, "device": gpu.selector})
            return


def _may_have_gpu() -> bool:
    """Return whether the kernel shows a GPU; True on systems other than Linux."""
    if sys.platform != "linux":
        return True
    patterns = ("dri/renderD*", "nvidia[0-9]*", "dxg")
    return any(next(Path("/dev").glob(pattern), None) for pattern in patterns)


@cache
def _tested_once(name: str, gpu: DeviceInfo) -> str:
    """Return the failure of a GPU's self-test.

    It runs once in a process, and not at all if an earlier process passed it with the same device,
    driver and code.
    """

    def create() -> Backend:
        return api.create(name, None, {"device": gpu.selector})

    try:
        mark = Mark("self-test", create().identity())
    except ZincError as error:
        return str(error)
    if mark.is_set():
        return ""
    from zinc.engine.load import self_test

    failure = self_test.failure(create)
    if not failure:
        mark.set()
    return failure


def _by_rank(gpus: Iterable[tuple[str, DeviceInfo]]) -> Iterator[tuple[str, DeviceInfo]]:
    """Yield `gpus` in the order in which they are tried, the best before others are listed."""
    later = []
    for each in gpus:
        if _rank(each[1]) == _BEST:
            yield each
        else:
            later.append(each)
    yield from sorted(later, key=lambda each: _rank(each[1]))


def _rank(gpu: DeviceInfo) -> tuple[int, bool]:
    """Return the sort key of a GPU; the smallest is tried first."""
    return list(DeviceKind).index(gpu.kind), not gpu.matrix_units


_BEST = (0, False)  # a discrete GPU with matrix units


def _named(
    gpus: Iterable[tuple[str, DeviceInfo]], wanted: str, other: list[str]
) -> Iterator[tuple[str, DeviceInfo]]:
    """Yield the GPUs that `wanted` names, all if it is empty. The others are added to `other`."""
    for name, gpu in gpus:
        if _is_named(gpu, wanted):
            yield name, gpu
        else:
            other.append(f"{gpu.selector} ({gpu.name})")


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
