"""Which backend a model is loaded on: a device alone, a device with the CPU, or the CPU alone.

Unless it is said (`DeviceMap`), a model is on the device as a whole when it fits there with its
cache. Otherwise as little as possible leaves it, and whoever loads it is told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial

from zinc.backends.api import Backend, Plan, Split, SplitPlan
from zinc.backends.split import SplitBackend
from zinc.core.errors import RequestError
from zinc.engine import loader
from zinc.formats.gguf import GGUFFile
from zinc.models.parts.spec import ModelSpec
from zinc.ops.graph import Graph
from zinc.ops.values import State
from zinc.plan.device_map import DEVICE, DeviceMap, choose
from zinc.plan.planner import make_plan

# A model that does not say otherwise keeps room on the device for so many tokens.
ROOM_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class Budget:
    """A memory: bytes to be had, bytes that weights and arenas take, and states that go there."""

    available: int
    taken: int
    states: tuple[State, ...]


def budgets(file: GGUFFile, plans: Sequence[Plan], backend: Backend) -> list[Budget]:
    """The memories of a backend, and what programs of the plans need of each beside the cache.

    The plans have the same weights and states.
    """
    if not isinstance(backend, Split):
        return [_budget(file, [backend], [plans])]
    parts = [[plan.parts[i] for plan in plans if isinstance(plan, SplitPlan)] for i in (0, 1)]
    if all(each.available_bytes() is None for each in backend.devices):
        return [_budget(file, backend.devices, parts)]
    return [_budget(file, [each], [p]) for each, p in zip(backend.devices, parts, strict=True)]


def _budget(file: GGUFFile, backends: Sequence[Backend], parts: Sequence[Sequence[Plan]]) -> Budget:
    """Backends that share a memory, each with its plans."""
    taken = sum(
        loader.weights_bytes(file, plans[0]) + sum(plan.arena_bytes for plan in plans)
        for plans in parts
    )
    states = tuple(state for plans in parts for state in plans[0].states)
    return Budget(loader.available_memory_bytes(backends[0]), taken, states)


@dataclass(frozen=True, slots=True)
class CacheSize:
    """context: tokens of the longest sequence; tokens: of all sequences together."""

    context: int
    tokens: int
    state_slots: int


def choose_cache(
    spec: ModelSpec,
    memories: Sequence[Budget],
    kv_dtype: str,
    wanted: int | None,
    chunk_tokens: int,
) -> CacheSize:
    """What every memory has room for. Raises as `loader.choose_context` does."""
    slots = min(loader.choose_state_slots(m.states, m.available, m.taken) for m in memories)
    taken = [m.taken + slots * loader.state_bytes_per_sequence(m.states) for m in memories]
    context = min(
        loader.choose_context(spec, m.states, kv_dtype, wanted, m.available, used, chunk_tokens)
        for m, used in zip(memories, taken, strict=True)
    )
    tokens = min(
        loader.choose_pool(m.states, context, kv_dtype, m.available, used, chunk_tokens)
        for m, used in zip(memories, taken, strict=True)
    )
    return CacheSize(context, tokens, slots)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a model is to be loaded for: the context (None: what fits), the type of keys and
    values, the most tokens and output rows of a step."""

    context: int | None
    kv_dtype: str
    max_tokens: int
    max_outputs: int


@dataclass(frozen=True, slots=True)
class Placed:
    """A backend, and what was chosen. `note` tells people what is not on the device they named."""

    backend: Backend
    device_map: DeviceMap | None = None
    note: str = ""


def place(
    device: Backend,
    create_host: Callable[[], Backend],
    file: GGUFFile,
    spec: ModelSpec,
    graphs: Sequence[Graph],
    wanted: Wanted,
    device_map: DeviceMap | None = None,
) -> Placed:
    """The backend for a model: `device` when all of it is there.

    graphs: the model's, all of the same weights. create_host makes the backend for what is not on
    the device. Raises RequestError for a device map that does not suit the model or the device.
    """
    nodes, n_layers = graphs[0].nodes, spec.n_layers
    host = cache(create_host)
    if device_map is None:
        if device.available_bytes() is None:
            return Placed(device)
        fits = partial(_fits, device, host, file, spec, graphs, wanted)
        device_map = choose(nodes, n_layers, fits)
        why = "it does not fit on the device as a whole"
    else:
        if device.name == "cpu":
            raise RequestError(
                "the model cannot be divided between a device and the CPU",
                "the model runs on the CPU",
                "choose a device with {backend=vulkan}, or leave {gpu_layers} and {cpu_moe} out",
            )
        device_map.check(nodes, n_layers)
        why = "as asked"
    if device_map.is_whole(n_layers):
        return Placed(device, device_map)
    note = f"{device_map.describe(n_layers)} ({why})"
    if device_map.first_layer(n_layers) > n_layers:
        return Placed(host(), device_map, note)
    return Placed(split_backend(device, host(), spec, graphs[0], device_map), device_map, note)


def split_backend(
    device: Backend, host: Backend, spec: ModelSpec, graph: Graph, device_map: DeviceMap
) -> SplitBackend:
    """Both as one. Weights and states are where a plan of the graph has them."""
    backend = SplitBackend([device, host], device_map.assign(spec.n_layers))
    plan = make_plan(graph, backend, max_tokens=1, max_outputs=1)
    assert isinstance(plan, SplitPlan)
    backend.keep(plan)
    return backend


def _fits(
    device: Backend,
    host: Callable[[], Backend],
    file: GGUFFile,
    spec: ModelSpec,
    graphs: Sequence[Graph],
    wanted: Wanted,
    device_map: DeviceMap,
) -> bool:
    """Whether the device has room for its part, with the cache of the context that is wanted."""
    backend = device
    if not device_map.is_whole(spec.n_layers):
        backend = split_backend(device, host(), spec, graphs[0], device_map)
    plans = [
        make_plan(graph, backend, max_tokens=wanted.max_tokens, max_outputs=wanted.max_outputs)
        for graph in graphs
    ]
    memory = budgets(file, plans, backend)[DEVICE]
    kv_dtype = loader.resolve_kv_dtype(wanted.kv_dtype, backend.name, plans[0].states)
    context = wanted.context or min(spec.context, ROOM_TOKENS)
    needed = loader.context_bytes(memory.states, context, kv_dtype, wanted.max_tokens)
    needed += memory.taken + loader.state_bytes_per_sequence(memory.states)
    return needed <= memory.available * (1 - loader.MEMORY_RESERVE)
