"""The memory that a load may take: which context, cache and recurrent states fit.

The available memory is what the system or the device reports, less a reserve. Weights and arenas
come first; the cache gets a share of the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from zinc.backends.api import Backend, SplitDevices
from zinc.backends.plans import Plan, SplitPlan, states_of, weights_of
from zinc.core import host_memory
from zinc.core.dataclass import dataclass
from zinc.core.errors import MemoryLimitError, RequestError
from zinc.engine.cache_layout import (
    cache_bytes,
    cache_layout,
    context_bytes,
    state_bytes_per_sequence,
)
from zinc.engine.load.files import weights_bytes
from zinc.engine.scheduler import MAX_SEQUENCES
from zinc.formats.gguf import GGUFFile
from zinc.models.parts.spec import ModelSpec
from zinc.ops.values import State

# Share of the available memory that is left to the rest of the process and the page cache.
RESERVE_SHARE = 0.15
# Largest share of recurrent states in the memory that the weights leave.
STATE_SHARE = 1 / 16
# Most recurrent states, for running sequences and checkpoints.
MAX_STATE_SLOTS = 96
# The cache holds one context, or up to POOL_CONTEXTS within this share of the memory.
POOL_CONTEXTS = 8
POOL_SHARE = 1 / 8
# Largest share of the host memory for copies of preempted sequences.
SWAP_SHARE = 1 / 16


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Bytes that a loaded model takes. draft_bytes: all bytes of its draft model."""

    weights_bytes: int
    kv_bytes: int
    arena_bytes: int
    draft_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """Weights, cache, arenas and draft model together."""
        return self.weights_bytes + self.kv_bytes + self.arena_bytes + self.draft_bytes


def _no_draft(context: int) -> int:
    return 0


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Bytes of the memory of the host, or of a device, and the weights, arenas and states in it.

    name: the device, or the devices that share the memory. on_device: it is not the host's memory,
    so layers may move to the CPU. has_first: it also holds the part of the first device, which is
    counted in another budget too. draft_bytes: returns the bytes of the cache of a draft model for
    a context; its weights and arenas count as those of the model.
    """

    name: str
    available: int
    weights_bytes: int
    arena_bytes: int
    states: tuple[State, ...]
    on_device: bool = False
    has_first: bool = False
    draft_bytes: Callable[[int], int] = _no_draft

    @property
    def taken(self) -> int:
        """Bytes of weights and arenas together."""
        return self.weights_bytes + self.arena_bytes


@dataclass(frozen=True, slots=True)
class CacheSize:
    """The size of a cache.

    context: tokens of the longest sequence. tokens: of all sequences together. state_slots:
    recurrent states.
    """

    context: int
    tokens: int
    state_slots: int


def available_memory_bytes(backend: Backend | None = None) -> int:
    """Return the free bytes of the backend's device, or of the host without swapping."""
    if backend is not None and (on_device := backend.available_bytes()) is not None:
        return on_device
    return host_memory.available_memory_bytes()


def budgets(file: GGUFFile, plans: Sequence[Plan], backend: Backend) -> list[MemoryBudget]:
    """Return the memories of a backend, with the weights and arenas of `plans` in each."""
    if backend.split is None:
        return [_budget(file, backend.name, [backend], [plans])]
    devices, names = backend.split.devices, backend.split.names
    parts = [
        [plan.parts[i] for plan in plans if isinstance(plan, SplitPlan)]
        for i in range(len(devices))
    ]
    return [
        replace(
            _budget(
                file,
                "+".join(names[i] for i in group.devices),
                [devices[i] for i in group.devices],
                [parts[i] for i in group.devices],
            ),
            available=group.available,
            on_device=not group.is_host,
            has_first=at > 0 and 0 in group.devices,
        )
        for at, group in enumerate(memory_groups(backend.split))
    ]


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """A memory, and the indices of the devices whose parts are allocated in it.

    available: free bytes of the memory.
    """

    devices: tuple[int, ...]
    is_host: bool
    available: int


def memory_groups(split: SplitDevices) -> list[MemoryGroup]:
    """Return the memories of the devices of `split`.

    A device that shares the host's memory is listed twice: in a group of its own, and in the host's
    group, which must have room for its part too.
    """
    own: dict[str | None, list[int]] = {}
    for i, (device, memory) in enumerate(zip(split.devices, split.memories, strict=True)):
        key = None if device.available_bytes() is None else memory
        own.setdefault(key, []).append(i)
    found = {i: device.shared_bytes() for i, device in enumerate(split.devices)}
    shared = {i: n_bytes for i, n_bytes in found.items() if n_bytes is not None}
    if shared:
        own[None] = sorted({*own.get(None, []), *shared})

    def available(key: str | None, first: int) -> int:
        if key is None and shared:
            return min(shared.values())
        return available_memory_bytes(split.devices[first])

    return [
        MemoryGroup(tuple(devices), key is None, available(key, devices[0]))
        for key, devices in own.items()
    ]


def _budget(
    file: GGUFFile, name: str, backends: Sequence[Backend], parts: Sequence[Sequence[Plan]]
) -> MemoryBudget:
    """Return the memory that `backends` share; `parts` has the plans of each."""
    return MemoryBudget(
        name=name,
        available=available_memory_bytes(backends[0]),
        weights_bytes=sum(weights_bytes(file, weights_of(plans)) for plans in parts),
        arena_bytes=sum(plan.arena_bytes for plans in parts for plan in plans),
        states=tuple(state for plans in parts for state in states_of(plans)),
        on_device=backends[0].available_bytes() is not None,
    )


def choose_cache(
    spec: ModelSpec,
    memories: Sequence[MemoryBudget],
    kv_dtype: str,
    wanted: int | None,
    chunk_tokens: int,
) -> CacheSize:
    """Return the largest cache that every memory has room for. Raises as `choose_context` does."""
    slots = min(choose_state_slots(m.states, m.available, m.taken) for m in memories)
    taken = [m.taken + slots * state_bytes_per_sequence(m.states) for m in memories]
    context = min(
        choose_context(
            spec,
            m.states,
            kv_dtype,
            wanted,
            m.available,
            used,
            chunk_tokens,
            on_device=m.on_device,
            draft_bytes=m.draft_bytes,
        )
        for m, used in zip(memories, taken, strict=True)
    )
    tokens = min(
        choose_pool(
            m.states,
            context,
            kv_dtype,
            m.available,
            used + m.draft_bytes(context),
            chunk_tokens,
        )
        for m, used in zip(memories, taken, strict=True)
    )
    return CacheSize(context, tokens, slots)


def choose_state_slots(states: tuple[State, ...], available: int, taken: int) -> int:
    """Return how many recurrent states to hold, at least one.

    Running sequences and checkpoints share them. `taken` of the `available` bytes are weights and
    arenas.
    """
    each = state_bytes_per_sequence(states)
    if each == 0:
        return MAX_SEQUENCES
    room = available * (1 - RESERVE_SHARE) - taken
    share = max(room * STATE_SHARE, min(4 * each, room / 4))
    return max(1, min(MAX_STATE_SLOTS, int(share / each)))


def choose_context(
    spec: ModelSpec,
    states: tuple[State, ...],
    kv_dtype: str,
    wanted: int | None,
    available: int,
    taken: int,
    chunk_tokens: int | None = None,
    *,
    on_device: bool = False,
    draft_bytes: Callable[[int], int] = _no_draft,
) -> int:
    """Return the context in tokens: `wanted`, or as much of the model's own as fits in memory.

    `taken` of the `available` bytes are weights, arenas and recurrent states. chunk_tokens: see
    `cache_layout`. on_device: the memory is a device's, so errors suggest layers on the CPU.
    draft_bytes: see `MemoryBudget`. Raises RequestError if `wanted` is out of range,
    MemoryLimitError if it does not fit.
    """
    fewer_layers = ", or put layers on the CPU with {gpu_layers}" if on_device else ""
    room = available * (1 - RESERVE_SHARE) - taken

    def needs_bytes(context: int) -> int:
        layout = cache_layout(states, context, kv_dtype, 1, chunk_tokens)
        return cache_bytes(states, layout) + draft_bytes(context)

    fits = _largest(spec.context, lambda context: needs_bytes(context) <= room)
    if wanted is None:
        context = min(spec.context, fits)
        if context < min(spec.context, 512):
            raise MemoryLimitError(
                "the model does not fit in memory",
                f"its weights need {taken / 1e9:.1f} GB and {available / 1e9:.1f} GB are available",
                f"use a smaller model or quantisation{fewer_layers}",
            )
        return context
    check_context(spec, wanted)
    if wanted > fits:
        raise MemoryLimitError(
            f"a context of {wanted:,} tokens does not fit in memory",
            f"its keys and values need {needs_bytes(wanted) / 1e9:.1f} GB "
            f"and the weights leave {max(0.0, room) / 1e9:.1f} GB",
            f"choose {{context={max(1, fits)}}} or less"
            + (", or {kv_dtype=q8_0}" if kv_dtype == "f16" else "")
            + fewer_layers,
        )
    return wanted


def check_context(spec: ModelSpec, wanted: int) -> None:
    """Raise RequestError if `wanted` tokens are more than the model was made for."""
    if not 1 <= wanted <= spec.context:
        raise RequestError(
            f"a context of {wanted:,} tokens is not possible",
            f"the model was made for 1 to {spec.context:,}",
            f"choose {{context={spec.context}}} or less, or extend it with {{rope_scaling=yarn}}",
        )


def choose_pool(
    states: tuple[State, ...],
    context: int,
    kv_dtype: str,
    available: int,
    taken: int,
    chunk_tokens: int | None = None,
) -> int:
    """Return the tokens that the cache holds: a multiple of `context`, at least one context.

    All sequences and the prefix cache share them. The arguments are those of `choose_context`.
    """
    room = (available * (1 - RESERVE_SHARE) - taken) * POOL_SHARE

    def fits(contexts: int) -> bool:
        layout = cache_layout(states, contexts * context, kv_dtype, 1, chunk_tokens)
        return cache_bytes(states, layout) <= room

    return context * max(1, _largest(POOL_CONTEXTS, fits))


def choose_swap() -> int:
    """Return the bytes of host memory that copies of preempted sequences may take."""
    return int(available_memory_bytes() * SWAP_SHARE)


def has_room(
    memory: MemoryBudget, kv_dtype: str, context: int, sequences: int, chunk_tokens: int
) -> bool:
    """Return whether a memory has room for its weights, arenas and `sequences` of `context`.

    A recurrent state is counted once, since sequences can take turns.
    """
    needed = context_bytes(memory.states, sequences * context, kv_dtype, chunk_tokens)
    needed += memory.taken + state_bytes_per_sequence(memory.states) + memory.draft_bytes(context)
    return needed <= memory.available * (1 - RESERVE_SHARE)


def _largest(limit: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number up to `limit` that fits, or 0; every smaller number fits too."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
