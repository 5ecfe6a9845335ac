"""The backend that a model is loaded on: a device, a device with the CPU, or the CPU alone.

A `DeviceMap` decides how the model is divided. Without one, the whole model goes to the device if
it fits there with its cache; otherwise as few layers as possible go to the CPU, and the choice
carries a note that says so.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import TypeAlias

from zinc.backends.api import Backend
from zinc.backends.capabilities import BackendKind
from zinc.backends.plans import SplitPlan, states_of
from zinc.backends.split import SplitBackend
from zinc.core.dataclass import dataclass
from zinc.core.errors import RequestError
from zinc.engine.cache_layout import resolve_kv_dtype
from zinc.engine.load.adapters import NO_ADAPTERS, AdapterFiles
from zinc.engine.load.memory import budgets, has_room
from zinc.engine.load.options import LoadOptions
from zinc.formats.gguf import GGUFFile
from zinc.models.parts.spec import ModelSpec
from zinc.ops.graph import Graph
from zinc.plan.device_map import DEVICE, DeviceMap, choose
from zinc.plan.planner import make_plan

# draft_bytes(device, context): the bytes that a draft model takes of a device, for a model with a
# context of `context` tokens.
DraftBytes: TypeAlias = Callable[[Backend, int], int]

# Context for which a model must fit on the device, if the caller gives none.
ROOM_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """The backend that runs a model, and how it was chosen.

    device_map: how the model is divided; None if the device shares the host's memory. note: a
    sentence for people about the parts that run on the CPU instead of the device, or about a limit
    of the context; empty if there is neither. reason: a sentence about the device that
    backend="auto" chose; empty if the caller named one.
    """

    backend: Backend
    device_map: DeviceMap | None = None
    note: str = ""
    reason: str = ""

    @property
    def messages(self) -> list[str]:
        """The sentences that a user should see."""
        return [text for text in (self.reason, self.note) if text]


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A model file with its graphs.

    The first graph runs sequences up to the plain context of `spec`, the second, if there is one,
    longer sequences. draft_graphs: graphs of the model's NextN blocks, in their order, for the same
    sequences; () if they are not loaded. draft_tokens: the token ids of their logits, in order; ()
    if there are logits for the whole vocabulary. adapters: the model's LoRA adapters.
    """

    file: GGUFFile
    spec: ModelSpec
    graphs: tuple[Graph, ...]
    draft_graphs: tuple[tuple[Graph, ...], ...] = ()
    draft_tokens: tuple[int, ...] = ()
    adapters: AdapterFiles = NO_ADAPTERS


def no_draft(device: Backend, context: int) -> int:
    """Return the bytes that a draft model takes of `device` if there is none."""
    return 0


def divide(
    device: Backend,
    create_host: Callable[[], Backend],
    model: OpenModel,
    options: LoadOptions,
    draft_bytes: DraftBytes = no_draft,
) -> BackendChoice:
    """Return the backend for `model`: `device` if all of it fits there, else both or the CPU.

    create_host: makes the CPU backend, if it is needed. draft_bytes: see `fits_on`. Raises
    RequestError if the device map of `options` does not suit the model or the device.
    """
    nodes, n_layers = model.graphs[0].nodes, model.spec.n_layers
    host = cache(create_host)
    device_map = options.device_map
    if device_map is None:
        if device.available_bytes() is None:
            return BackendChoice(device)
        device_map = choose(
            nodes, n_layers, lambda each: fits_on(device, host, model, options, each, draft_bytes)
        )
        why = "it does not fit on the device as a whole"
    else:
        if device.capabilities.kind is BackendKind.CPU:
            raise RequestError(
                "the model cannot be divided between a device and the CPU",
                "the model runs on the CPU",
                "choose a device with {backend=vulkan}, or leave {gpu_layers} and {cpu_moe} out",
            )
        device_map.check(nodes, n_layers)
        why = "as requested"
    if device_map.is_whole(n_layers):
        return BackendChoice(device, device_map)
    note = f"{device_map.describe(n_layers)} ({why})"
    if device_map.first_layer(n_layers) > n_layers:
        return BackendChoice(host(), device_map, note)
    return BackendChoice(split_backend(device, host(), model, device_map), device_map, note)


def split_backend(
    device: Backend, host: Backend, model: OpenModel, device_map: DeviceMap
) -> SplitBackend:
    """Return `device` and `host` as one backend that divides `model` by `device_map`."""
    backend = SplitBackend([device, host], device_map.assign(model.spec.n_layers))
    keep_parts(backend, model)
    return backend


def keep_parts(backend: SplitBackend, model: OpenModel) -> None:
    """Tell `backend` which weights and states of `model` each device has."""
    graphs = [(model.graphs[0], model.adapters.factors)]
    if backend.capabilities.host_rows:
        graphs += [(graph, ()) for graph in itertools.chain(*model.draft_graphs)]
    plans = [
        make_plan(graph, backend, max_tokens=1, max_outputs=1, adapters=adapters)
        for graph, adapters in graphs
    ]
    backend.keep(*(plan for plan in plans if isinstance(plan, SplitPlan)))


def fits_on(
    device: Backend,
    host: Callable[[], Backend],
    model: OpenModel,
    options: LoadOptions,
    device_map: DeviceMap,
    draft_bytes: DraftBytes = no_draft,
) -> bool:
    """Return whether `device` has room for its part of `model`, with the cache of its context.

    host: makes the CPU backend, for a device map that uses it. draft_bytes: returns the bytes that
    a draft model takes of a device for a context.
    """
    backend = device
    if not device_map.is_whole(model.spec.n_layers):
        backend = split_backend(device, host(), model, device_map)
    n_tokens, n_outputs = options.step_tokens, options.output_rows
    plans = [
        make_plan(graph, backend, max_tokens=n_tokens, max_outputs=n_outputs)
        for graph in (*model.graphs, *itertools.chain(*model.draft_graphs))
    ]
    memory = budgets(model.file, plans, backend)[DEVICE]
    kv_dtype = resolve_kv_dtype(options.kv_dtype, backend.capabilities.kv_dtype, states_of(plans))
    context = options.context or min(model.spec.context, ROOM_TOKENS)
    memory = replace(memory, draft_bytes=partial(draft_bytes, device))
    return has_room(memory, kv_dtype, context, options.sequences or 1, n_tokens)
