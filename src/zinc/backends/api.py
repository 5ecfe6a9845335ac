"""The interface between zinc and its backends.

A backend is a folder of this package. Its module is a `BackendModule`: it creates a `Backend` (an
open device), returns its `Kernels` (the code it has, known without a device) and lists `devices`.
`discover` finds backends by their folders. Callers ask a backend's `capabilities`, never its name.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from difflib import get_close_matches
from functools import cache
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt

from zinc.backends.capabilities import BackendKind, Capabilities, DeviceInfo, Roofline
from zinc.backends.plans import Plan, Ref
from zinc.core.dataclass import dataclass
from zinc.core.errors import DeviceError, RequestError
from zinc.ops.node import Node
from zinc.ops.step import Step, StepCondition
from zinc.ops.values import (
    FloatArray,
    RowFormat,
    State,
    Weight,
)
from zinc.quant.blocks import GGMLType


class ByteReader(Protocol):
    """Bytes that are read on demand, such as a tensor in a file."""

    @property
    def n_bytes(self) -> int: ...

    def read_into(self, target: npt.NDArray[np.uint8], start: int = 0) -> None:
        """Fill `target` with the bytes starting at `start`. Raises FormatError."""
        ...


@dataclass(frozen=True, slots=True)
class TensorData:
    """A tensor as it is stored in the file. source: its bytes, or a reader of them."""

    type: GGMLType
    shape: tuple[int, ...]
    source: npt.NDArray[np.uint8] | ByteReader

    def read(self) -> npt.NDArray[np.uint8]:
        """Return all bytes. Raises FormatError if they cannot be read."""
        if isinstance(self.source, np.ndarray):
            return self.source
        data = np.empty(self.source.n_bytes, np.uint8)
        self.source.read_into(data)
        return data

    def read_part(
        self, start: int, n_bytes: int, scratch: npt.NDArray[np.uint8]
    ) -> npt.NDArray[np.uint8]:
        """Return `n_bytes` starting at `start`, possibly as a view of `scratch`.

        `scratch` has at least `n_bytes`. Raises FormatError if they cannot be read.
        """
        if isinstance(self.source, np.ndarray):
            return self.source[start : start + n_bytes]
        part = scratch[:n_bytes]
        self.source.read_into(part, start)
        return part


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """The shape of a cache.

    n_blocks: for each group of layers, blocks of `block_tokens` positions. kv_dtype: type of keys
    and values. group_of: group of each attention state by name, 0 if absent. state_slots: sequences
    that each recurrent state holds.
    """

    block_tokens: int
    n_blocks: tuple[int, ...]
    kv_dtype: str = "f16"
    group_of: Mapping[str, int] = field(default_factory=dict)
    state_slots: int = 1


@dataclass(frozen=True, slots=True)
class StepCounts:
    """Dispatches of a step, and the barriers between them."""

    dispatches: int
    barriers: int


@dataclass(slots=True)
class Work:
    """Counters of a program over its steps so far.

    submissions: times that work was handed to the device or to native code. waited_s: seconds for
    which the host waited for it. The rest of a step is host time.
    """

    submissions: int = 0
    waited_s: float = 0.0


class Program(Protocol):
    """A plan bound to weights and a cache."""

    plan: Plan
    work: Work

    def step(self, step: Step) -> FloatArray:
        """Run a step. Returns logits, float32 [outputs, vocab], valid until the next step."""
        ...

    def sample(self, step: Step) -> StepResult:
        """Queue a step with `sample_params`, and return before it has run.

        Only for a plan that has `sampled`. `step.sampled_rows` may refer to the previous call, even
        if the host has not read its tokens. Later calls of the program or its cache take effect
        after the step.
        """
        ...

    def run(self, step: Step, first: int, last: int) -> None:
        """Run the launches from `first` up to but not including `last`.

        Used to inspect launches, and by split plans, whose devices take turns.
        """
        ...

    def read(self, ref: Ref, rows: int) -> FloatArray:
        """Return a copy of the first `rows` rows of a value, float32 [rows, cols]."""
        ...

    def write(self, ref: Ref, rows: FloatArray) -> None:
        """Overwrite the first rows of a float32 value with `rows`, float32 [rows, cols]."""
        ...

    def kernels(self, step: Step, launch: int) -> list[str]:
        """Return the names of the backend's kernels that run a launch in a step like `step`."""
        ...

    def profile(self, step: Step) -> list[float]:
        """Run a step and return the seconds of each launch."""
        ...


class StepResult(Protocol):
    """The result of a step that may still run; its methods wait for the step."""

    def tokens(self) -> FloatArray:
        """Return the token and largest logit of each output row, float32 [outputs, 2].

        Raises DeviceError.
        """
        ...

    def logits(self) -> FloatArray:
        """Return logits, float32 [outputs, vocab], of a step with rows that the host samples.

        Penalties may have rewritten the rows that the device samples. The array stays valid during
        the next step; the step after that overwrites it.
        """
        ...

    def hidden(self, rows: int) -> FloatArray | None:
        """Return a copy of the plan's first `rows` hidden rows, float32 [rows, hidden].

        Call it before the second step after this one. Returns None if the step keeps no copy: then
        read the rows with `Program.read` before the next step.
        """
        ...


@dataclass(frozen=True, slots=True)
class FinishedStep:
    """A `StepResult` whose step has run. hidden_rows: its rows of `Plan.hidden`, if kept."""

    sampled: FloatArray
    output: FloatArray
    hidden_rows: FloatArray | None = None

    def tokens(self) -> FloatArray:
        return self.sampled

    def logits(self) -> FloatArray:
        return self.output

    def hidden(self, rows: int) -> FloatArray | None:
        return None if self.hidden_rows is None else self.hidden_rows[:rows].copy()


class Cache(Protocol):
    """Keys, values and recurrent states of every layer, shared by the programs of one model."""

    layout: CacheLayout
    n_bytes: int

    def copy_block(self, group: int, source: int, target: int) -> None:
        """Copy a block of keys and values in every layer of a group."""
        ...

    def copy_state(self, source: int, target: int) -> None:
        """Copy a slot of every recurrent state."""
        ...

    def block_views(self, group: int, block: int) -> list[npt.NDArray[np.uint8]]:
        """Return the bytes of a block in each layer of a group, in a fixed order.

        The views may be copies: to change the block, change them and pass them to `put_block`.
        Only the same program can interpret them.
        """
        ...

    def put_block(self, group: int, block: int, views: list[npt.NDArray[np.uint8]]) -> None:
        """Set the content of a block to `views`, as `block_views` returns them."""
        ...

    def state_views(self, slot: int) -> list[npt.NDArray[np.uint8]]:
        """Return the bytes of a slot in each recurrent state; see `block_views`."""
        ...

    def put_state(self, slot: int, views: list[npt.NDArray[np.uint8]]) -> None:
        """Set the content of a slot to `views`, as `state_views` returns them."""
        ...


class Kernels(Protocol):
    """The code that a backend has: enough to plan for it, without a device."""

    name: str

    @property
    def capabilities(self) -> Capabilities:
        """Facts about the backend, and about its device if it has one."""
        ...

    @property
    def split(self) -> SplitDevices | None:
        """The devices of a backend that divides a model; None for a single device."""
        ...

    def row_format(self, type: GGMLType) -> RowFormat:
        """Return the format in which a linear over weights of `type` reads its rows.

        Raises UnsupportedError if there is no kernel.
        """
        ...

    def supports(self, kernel: str) -> bool:
        """Return whether the backend has a kernel of that name."""
        ...

    def stores(self, kernel: str, format: RowFormat) -> bool:
        """Return whether `kernel` can store its rows in `format`, without a separate pass."""
        ...

    def row_bytes(self, format: RowFormat, cols: int) -> int:
        """Return the bytes from one row of a value to the next."""
        ...

    def runs_fused(self, node: Node) -> StepCondition | None:
        """Return the steps in which the backend runs `node` instead of the nodes fused into it.

        None if it has no kernel for the node.
        """
        ...


class Backend(Kernels, Protocol):
    """An open device, to which weights are uploaded and for which plans are prepared."""

    def describe(self) -> str:
        """Return one line for people: device, level, threads."""
        ...

    def identity(self) -> str:
        """Return a text that names device, driver and code, on which the results of ops depend."""
        ...

    def counts(
        self, plan: Plan, kv_dtype: str, *, tokens: int, outputs: int, sequences: int, keys: int
    ) -> StepCounts | None:
        """Return the dispatches and barriers of a step; None if launches are plain calls.

        keys: cached positions of the longest sequence after the step. No weights are needed.
        """
        ...

    def measure(self) -> Roofline | None:
        """Measure the limits of the device; None if they mean nothing for this backend."""
        ...

    def expect(self, weights: Iterable[Weight]) -> None:
        """Prepare for the upload of `weights`, for example by one large allocation."""
        ...

    def upload(self, weight: Weight, data: TensorData) -> None:
        """Store a weight under its name, in the backend's own layout."""
        ...

    def compile(self, steps: Iterable[tuple[Plan, Step]], kv_dtype: str) -> None:
        """Compile the kernels of `steps` now, on all cores, if the backend compiles on demand.

        Raises DeviceError.
        """
        ...

    @property
    def weight_bytes(self) -> int:
        """Bytes of the uploaded weights."""
        ...

    def available_bytes(self) -> int | None:
        """Return the free bytes of the device's memory; None if it uses the host's."""
        ...

    def shared_bytes(self) -> int | None:
        """Return the free bytes of the memory that the device shares with the CPU.

        None: the device has memory of its own, or it is the CPU.
        """
        ...

    def allocate(self, states: tuple[State, ...], layout: CacheLayout) -> Cache:
        """Return a new cache. Raises MemoryLimitError if it does not fit."""
        ...

    def prepare(self, plan: Plan, cache: Cache) -> Program:
        """Return a program that runs `plan` on the uploaded weights and `cache`."""
        ...


@dataclass(frozen=True, slots=True)
class SplitDevices:
    """The backends that run the parts of a split plan.

    division: a function that returns the index of the backend that runs a node of the graph, or
    the shares of the backends in every layer, whose tensors are divided (zinc.plan.tensor_split).
    names: a different name for each device, for people. memories: devices with the same entry share
    their memory, if it is not the host's.
    """

    devices: tuple[Backend, ...]
    division: Callable[[Node], int] | tuple[float, ...]
    names: tuple[str, ...]
    memories: tuple[str, ...]

    @property
    def is_by_tensor(self) -> bool:
        """Whether tensors are divided, so that the devices work at the same time."""
        return not callable(self.division)

    @property
    def are_alike(self) -> bool:
        """Whether the devices compute the same bits: same GPUs and drivers, or the same CPU."""
        pairs = zip(self.devices, self.memories, strict=True)
        return len({device.describe().removeprefix(name) for device, name in pairs}) == 1


class HostBackend:
    """Base of backends whose launches are plain calls on the host's memory."""

    split: SplitDevices | None = None

    def describe(self) -> str:
        raise NotImplementedError

    def identity(self) -> str:
        return self.describe()

    def runs_fused(self, node: Node) -> StepCondition | None:
        return None

    def counts(
        self, plan: Plan, kv_dtype: str, *, tokens: int, outputs: int, sequences: int, keys: int
    ) -> StepCounts | None:
        return None

    def measure(self) -> Roofline | None:
        return None

    def expect(self, weights: Iterable[Weight]) -> None:
        pass

    def compile(self, steps: Iterable[tuple[Plan, Step]], kv_dtype: str) -> None:
        pass

    def available_bytes(self) -> int | None:
        return None

    def shared_bytes(self) -> int | None:
        return None


_INTERNAL = ("null", "ref")  # for tests, and to check other backends
_OPTIONS = ("device", "level", "batch_invariant")


class BackendModule(Protocol):
    """The functions that the module of a backend defines."""

    def create(
        self, threads: int | None = None, options: Mapping[str, str] | None = None
    ) -> Backend:
        """Open the device that `options` name. Raises DeviceError."""
        ...

    def kernels(self, options: Mapping[str, str] | None = None) -> Kernels:
        """Return the backend's kernels; no device is needed."""
        ...

    def devices(self) -> list[DeviceInfo]:
        """Return the GPUs that the backend sees; empty for a backend on the CPU.

        Raises DeviceError if they cannot be listed.
        """
        ...


@cache
def discover() -> tuple[str, ...]:
    """Return the names of all backends, each a folder of this package."""
    import zinc.backends

    return tuple(sorted(m.name for m in pkgutil.iter_modules(zinc.backends.__path__) if m.ispkg))


def create(
    name: str, threads: int | None = None, options: Mapping[str, str] | None = None
) -> Backend:
    """Open the backend called `name`.

    options: `device` (GPUs), `level` (CPU), and `batch_invariant`, "true" or "false", which demands
    `Capabilities.batch_invariant`. `instance` (Vulkan): backends with different values do not share
    an open device. Raises DeviceError if there is no such backend or it is not batch-invariant,
    RequestError for an unknown option or another value of `batch_invariant`.
    """
    _check_names(options or {})
    backend = _module(name).create(threads, options)
    device = (options or {}).get("device", "")
    if device.startswith(f"{name}:") and backend.capabilities.kind is not BackendKind.DEVICE:
        raise DeviceError(
            f"there is no device {device!r}",
            f"the {name} backend is one device",
            "write {device=" + name + "}, or leave {device} out",
        )
    if wants_batch_invariance(options) and not backend.capabilities.batch_invariant:
        raise DeviceError(
            f"the {name} backend has no batch-invariant mode",
            "its results may depend on the other requests in a step",
            "leave {batch_invariant} out, or choose another backend with {backend}",
        )
    return backend


def _check_names(options: Mapping[str, str]) -> None:
    """Raise RequestError if no backend has one of `options`."""
    for unknown in options.keys() - {*_OPTIONS, "instance"}:
        near = get_close_matches(str(unknown), _OPTIONS, 1)
        raise RequestError(
            f"there is no backend option {unknown!r}",
            f"the options are {', '.join(_OPTIONS)}",
            f"write {near[0]!r}" if near else "leave it out",
        )


def wants_batch_invariance(options: Mapping[str, str] | None) -> bool:
    """Return whether `options` demand batch invariance. Raises RequestError."""
    given = (options or {}).get("batch_invariant", "false")
    if given not in ("true", "false"):
        raise RequestError(
            f"the backend option batch_invariant is {given!r}", "it must be true or false"
        )
    return given == "true"


def kernels(name: str, options: Mapping[str, str] | None = None) -> Kernels:
    """Return the kernels of the backend called `name`; no device is needed. Raises DeviceError."""
    return _module(name).kernels(options)


def devices(name: str) -> list[DeviceInfo]:
    """Return the GPUs that the backend called `name` sees. Raises DeviceError."""
    return _module(name).devices()


def _module(name: str) -> BackendModule:
    if name not in discover():
        names = ", ".join(each for each in discover() if each not in _INTERNAL)
        raise DeviceError(
            f"there is no backend {name!r}", "", f"choose one of {names}, or leave {{backend}} out"
        )
    return cast(BackendModule, importlib.import_module(f"zinc.backends.{name}"))
