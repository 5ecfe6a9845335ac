"""What the rest of zinc knows of a backend: plan data and the methods that run it.

A backend is a folder of this package whose module defines `create` (the device) and `kernels` (what
it has code for, known without a device); `discover` finds it by name. A plan is data: a frozen list
of launches over one arena. What a launch means is the entry of its name in zinc.ops; a backend's
kernel of that name must agree with it.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, cast, runtime_checkable

import numpy as np
import numpy.typing as npt

from zinc.backends.plans import Plan, Ref
from zinc.core.errors import DeviceError, RequestError
from zinc.ops.graph import Node
from zinc.ops.step import Step
from zinc.ops.values import (
    FloatArray,
    RowFormat,
    State,
    Weight,
)
from zinc.quant.blocks import GGMLType


class ByteReader(Protocol):
    """Bytes that are read when they are needed, such as those of a tensor in a file."""

    @property
    def n_bytes(self) -> int: ...

    def read_into(self, target: npt.NDArray[np.uint8], start: int = 0) -> None:
        """Fill `target` with the bytes from `start` on. Raises FormatError."""
        ...


@dataclass(frozen=True, slots=True)
class TensorData:
    """A tensor as the file holds it. `source`: its bytes, or what reads them."""

    type: GGMLType
    shape: tuple[int, ...]
    source: npt.NDArray[np.uint8] | ByteReader

    def read(self) -> npt.NDArray[np.uint8]:
        """Return all bytes; raises FormatError when they cannot be read."""
        if isinstance(self.source, np.ndarray):
            return self.source
        data = np.empty(self.source.n_bytes, np.uint8)
        self.source.read_into(data)
        return data

    def read_part(
        self, start: int, n_bytes: int, scratch: npt.NDArray[np.uint8]
    ) -> npt.NDArray[np.uint8]:
        """Return `n_bytes` from `start` on, perhaps in `scratch`, which is at least as long.

        Raises FormatError when they cannot be read.
        """
        if isinstance(self.source, np.ndarray):
            return self.source[start : start + n_bytes]
        part = scratch[:n_bytes]
        self.source.read_into(part, start)
        return part


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """How much state a program gets: for each group of layers blocks of `block_tokens` positions,
    and for each recurrent state `state_slots` sequences."""

    block_tokens: int
    n_blocks: tuple[int, ...]
    kv_dtype: str = "f16"
    group_of: Mapping[str, int] = field(default_factory=dict)
    state_slots: int = 1


@dataclass(frozen=True, slots=True)
class StepCounts:
    """Kernels that a step starts on a device, and barriers between them, where it waits for all
    that it started before."""

    dispatches: int
    barriers: int


@dataclass(slots=True)
class Work:
    """What the steps of a program took so far: how often work was handed to the device (or to
    native code), and seconds that the host waited for it. What else a step takes is the host's."""

    submissions: int = 0
    waited_s: float = 0.0


class Program(Protocol):
    """A plan bound to weights and state."""

    plan: Plan
    work: Work

    def step(self, step: Step) -> FloatArray:
        """Runs the batch. Returns logits float32 [outputs, vocab], valid until the next step."""
        ...

    def sample(self, step: Step) -> StepResult:
        """Queue a step with `sample_params`, and return before it has run.

        Only for a plan that has `sampled`. `step.sampled_rows` may refer to the previous call,
        whose tokens the host need not know yet. Later calls of the program or its cache run later.
        """
        ...

    def run(self, step: Step, first: int, last: int) -> None:
        """Runs launches first up to but not including last: for inspection, and where several
        devices take turns."""
        ...

    def read(self, ref: Ref, rows: int) -> FloatArray:
        """A copy of the first rows of a value, in float32."""
        ...

    def write(self, ref: Ref, rows: FloatArray) -> None:
        """Overwrites the first rows of a float32 value."""
        ...

    def kernels(self, step: Step, launch: int) -> list[str]:
        """What the backend runs for a launch in such a step, by names that say which code it is."""
        ...

    def profile(self, step: Step) -> list[float]:
        """Runs the batch and returns seconds for each launch."""
        ...


class StepResult(Protocol):
    """The result of a step that may still run; its methods wait for the step."""

    def tokens(self) -> FloatArray:
        """Return the token and largest logit of each output row, float32 [outputs, 2].

        Raises DeviceError.
        """
        ...

    def logits(self) -> FloatArray:
        """Return logits, float32 [outputs, vocab], if the step leaves a row to the host.

        They are valid until the next step but one.
        """
        ...


@dataclass(frozen=True, slots=True)
class FinishedStep:
    """A `StepResult` whose step has run."""

    sampled: FloatArray
    output: FloatArray

    def tokens(self) -> FloatArray:
        return self.sampled

    def logits(self) -> FloatArray:
        return self.output


class Cache(Protocol):
    """The state of every layer, shared by the programs of one model."""

    layout: CacheLayout
    n_bytes: int

    def copy_block(self, group: int, source: int, target: int) -> None:
        """Copies a block of keys and values in every layer of a group."""
        ...

    def copy_state(self, source: int, target: int) -> None:
        """Copies a slot of every recurrent state."""
        ...

    def block_views(self, group: int, block: int) -> list[npt.NDArray[np.uint8]]:
        """The bytes of a block in each layer of a group, in an order that does not change.

        They mean something to the same program only. To change the block, change them and hand
        them to `put_block`: they may be a copy.
        """
        ...

    def put_block(self, group: int, block: int, views: list[npt.NDArray[np.uint8]]) -> None:
        """Makes what is in the views of a block its content."""
        ...

    def state_views(self, slot: int) -> list[npt.NDArray[np.uint8]]:
        """The bytes of a slot in each recurrent state, likewise."""
        ...

    def put_state(self, slot: int, views: list[npt.NDArray[np.uint8]]) -> None: ...


class Kernels(Protocol):
    """What a backend has code for: all that a plan is made of, and nothing of a device."""

    name: str

    def row_format(self, type: GGMLType) -> RowFormat:
        """The format in which a linear over weights of `type` reads its rows.

        Raises UnsupportedError when there is no kernel.
        """
        ...

    def supports(self, kernel: str) -> bool: ...

    def stores(self, kernel: str, format: RowFormat) -> bool:
        """Whether the kernel can store its rows in that format: no pass over them is needed."""
        ...

    def row_bytes(self, format: RowFormat, cols: int) -> int:
        """Bytes from row to row of a value."""
        ...


class Backend(Kernels, Protocol):
    """A device that weights are uploaded to and plans are prepared for."""

    @property
    def batch_invariant(self) -> bool:
        """Whether a token's logits are the same to the bit whoever shares its steps, and wherever
        its prompt was cut into them."""
        ...

    def describe(self) -> str:
        """One line for people: device, level, threads."""
        ...

    def counts(
        self, plan: Plan, kv_dtype: str, *, tokens: int, outputs: int, sequences: int, keys: int
    ) -> StepCounts | None:
        """What a step of so many tokens, output rows and sequences is on the device.

        `keys` is the longest sequence behind the step. Nothing needs to be uploaded for it. None
        where launches are calls.
        """
        ...

    def upload(self, weight: Weight, data: TensorData) -> None:
        """Makes a weight resident under its name, in the backend's own layout."""
        ...

    @property
    def weight_bytes(self) -> int: ...

    def available_bytes(self) -> int | None:
        """Bytes of the device's memory that are still to be had; None when it is the host's."""
        ...

    def allocate(self, states: tuple[State, ...], layout: CacheLayout) -> Cache:
        """Raises MemoryLimitError when the state does not fit."""
        ...

    def prepare(self, plan: Plan, cache: Cache) -> Program: ...


@runtime_checkable
class Split(Protocol):
    """A backend that is made of others: a plan for it has a part for each."""

    devices: tuple[Backend, ...]

    def device_of(self, node: Node) -> int:
        """Index of the device that runs a node of a graph."""
        ...


@runtime_checkable
class Expecting(Protocol):
    """A backend that takes memory for many weights at once."""

    def expect(self, weights: Iterable[Weight]) -> None:
        """These weights will be uploaded next."""
        ...


@runtime_checkable
class Compiling(Protocol):
    """A backend that compiles a kernel when a step first needs it."""

    def compile(self, steps: Iterable[tuple[Plan, Step]], kv_dtype: str) -> None:
        """Compiles at once, on all cores, what these steps of plans need. Raises DeviceError."""
        ...


class BackendModule(Protocol):
    def create(
        self, threads: int | None = None, options: Mapping[str, str] | None = None
    ) -> Backend: ...

    def kernels(self, options: Mapping[str, str] | None = None) -> Kernels: ...


def discover() -> list[str]:
    """Names of the backends that have a folder here."""
    import zinc.backends

    return sorted(m.name for m in pkgutil.iter_modules(zinc.backends.__path__) if m.ispkg)


def create(
    name: str, threads: int | None = None, options: Mapping[str, str] | None = None
) -> Backend:
    """The backend of that name.

    Options: `device` (Vulkan), `level` (CPU) and `batch_invariant`, "true" or "false", which asks
    for what `Backend.batch_invariant` says. Raises DeviceError when there is no such backend or it
    cannot do that, RequestError for an option that is neither.
    """
    backend = _module(name).create(threads, options)
    if wants_batch_invariance(options) and not backend.batch_invariant:
        raise DeviceError(
            f"the {name} backend has no batch-invariant mode",
            "its results may depend on what shares a step",
            "leave {batch_invariant} out, or choose another backend with {backend}",
        )
    return backend


def wants_batch_invariance(options: Mapping[str, str] | None) -> bool:
    """What the option `batch_invariant` says. Raises RequestError."""
    given = (options or {}).get("batch_invariant", "false")
    if given not in ("true", "false"):
        raise RequestError(
            f"the backend option batch_invariant is {given!r}", "it must be true or false"
        )
    return given == "true"


def kernels(name: str, options: Mapping[str, str] | None = None) -> Kernels:
    """What the backend of that name has code for, whether this machine has its device or not.

    Raises DeviceError when there is no such backend.
    """
    return _module(name).kernels(options)


def _module(name: str) -> BackendModule:
    if name not in discover():
        raise DeviceError(
            f"there is no backend {name!r}", "", f"choose one of {', '.join(discover())}"
        )
    return cast(BackendModule, importlib.import_module(f"zinc.backends.{name}"))
