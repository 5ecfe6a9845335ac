"""Division of a model over several devices.

With pipeline parallelism (`zinc.plan.layer_split`) each device takes a range of layers: as many as
its memory holds, in proportion to its read bandwidth or to the shares of the device map. With
tensor parallelism (`zinc.plan.tensor_split`) it takes a part of every layer, in the same
proportion.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from zinc.backends.api import Backend
from zinc.backends.micro_batches import MICRO_BATCHES, can_overlap
from zinc.backends.plans import AllReduce, Plan, SplitPlan, states_of
from zinc.backends.split import SplitBackend
from zinc.core.dataclass import dataclass
from zinc.core.errors import MemoryLimitError, RequestError
from zinc.engine.cache_layout import context_bytes, resolve_kv_dtype, state_bytes_per_sequence
from zinc.engine.load.device_map import (
    ROOM_TOKENS,
    BackendChoice,
    DraftBytes,
    OpenModel,
    keep_parts,
    no_draft,
)
from zinc.engine.load.devices import find_device, open_devices
from zinc.engine.load.files import weights_bytes
from zinc.engine.load.memory import RESERVE_SHARE, budgets, has_room, memory_groups
from zinc.engine.load.options import LoadOptions
from zinc.engine.step_cost import StepShape
from zinc.ops.node import Node
from zinc.ops.values import State, Weight
from zinc.plan.device_map import DeviceMap, SplitMode
from zinc.plan.layer_split import (
    DeviceRoom,
    LayerLoad,
    LayerSplit,
    divide_layers,
    even_split,
)
from zinc.plan.planner import make_plan
from zinc.plan.split_choice import split_cost


def divide_over(
    names: Sequence[str],
    model: OpenModel,
    options: LoadOptions,
    draft_bytes: DraftBytes = no_draft,
) -> BackendChoice:
    """Return the backend that divides `model` over the devices called `names`.

    Raises DeviceError if a device is not there or is named twice, RequestError if the device map
    does not suit the devices, and MemoryLimitError if their memory is too small.
    """
    device_map = options.device_map or DeviceMap()
    _check(device_map, names, model.spec.n_layers)
    selectors = [find_device(name, options.backend) for name in names]
    devices = open_devices(selectors, options)
    shared = [selector for _, selector in selectors]
    speeds = device_map.shares or _speeds(devices)
    division = _Division(devices, shared, model, options, speeds, draft_bytes)
    match SplitMode(device_map.split):
        case SplitMode.LAYER:
            backend, note = division.by_layer()
        case SplitMode.TENSOR:
            backend, note = division.by_tensor()
        case SplitMode.AUTO:
            backend, note = division.faster()
    return BackendChoice(backend, device_map, note)


def with_larger_steps(
    options: LoadOptions,
    backend: Backend,
    model: OpenModel,
    draft_bytes: DraftBytes = no_draft,
) -> LoadOptions:
    """Return `options` with steps that are large enough for pipeline parallelism.

    A step of several micro-batches keeps the devices that divide the layers of `model` busy at the
    same time. `options` are returned unchanged if they set the tokens of a step, if the default
    step is large enough, if memory is short, or if the devices exchange rows without the host: then
    the first device starts the next step while the others still run the current one.
    """
    if options.batch_tokens or not isinstance(backend, SplitBackend) or backend.is_linked:
        return options
    larger = replace(options, batch_tokens=MICRO_BATCHES * backend.micro_batch_tokens)
    if larger.step_tokens <= options.step_tokens:
        return options
    overlap = all(can_overlap(plan) for plan in _plans(model, backend, larger))
    return larger if overlap and _fits(backend, model, larger, draft_bytes) else options


@dataclass(frozen=True, slots=True)
class _Division:
    """Devices over which a model is divided, and the ways to divide it.

    selectors: the device of each backend, such as "vulkan:0". speeds: the devices take parts in
    this proportion. Each method returns a backend and a note about it, or raises MemoryLimitError.
    """

    devices: Sequence[Backend]
    selectors: Sequence[str]
    model: OpenModel
    options: LoadOptions
    speeds: Sequence[float]
    draft_bytes: DraftBytes

    def by_layer(self) -> tuple[SplitBackend, str]:
        """Return the backend whose devices have some layers each."""
        model, options = self.model, self.options
        backend = self._backend(even_split(model.spec.n_layers, len(self.devices)).assign())
        plans = _plans(model, backend, options)
        kv_dtype = _kv_dtype(backend, plans, options)
        loads, joined = _loads(model, plans, options, kv_dtype)
        rooms = _rooms(model, plans, backend, options, self.speeds, self.draft_bytes)
        # Queries of layers that share a cache would cross to the device that has it.
        split = divide_layers(loads, rooms, joined) or divide_layers(loads, rooms)
        if split is not None:
            backend = self._backend(split.assign())
        if split is None or not _fits(backend, model, options, self.draft_bytes):
            needed = sum(load.memory_bytes for load in loads)
            room = sum(max(0, room.memory_bytes) for room in rooms)
            raise MemoryLimitError(
                f"the model does not fit on {' and '.join(backend.split.names)} together",
                f"its layers need {needed / 1e9:.1f} GB with a context of "
                f"{_context(model, options):,} tokens, and {room / 1e9:.1f} GB are available",
                "use a smaller model, quantisation or {context}, or add cpu to {device}",
            )
        return backend, split.describe(backend.split.names)

    def by_tensor(self) -> tuple[SplitBackend, str]:
        """Return the backend whose devices have a part of every layer."""
        speeds, model = self.speeds, self.model
        backend = self._backend(tuple(speeds))
        names = backend.split.names
        if not _fits(backend, model, self.options, self.draft_bytes):
            raise MemoryLimitError(
                f"the model does not fit on {' and '.join(names)} in these parts",
                "each device needs memory for its part of every layer and for the replicated parts",
                "choose {split=layer}, other {shares}, "
                "or a smaller model, quantisation or {context}",
            )
        parts = [
            f"{share / sum(speeds):.0%} on {name}"
            for share, name in zip(speeds, names, strict=True)
        ]
        return backend, f"every layer divided, {', '.join(parts)}"

    def faster(self) -> tuple[SplitBackend, str]:
        """Return the backend with the lowest estimated time per token whose memory suffices."""
        from zinc.engine.load.bandwidth import bandwidth_of
        from zinc.engine.load.link import all_reduce_seconds

        layers: tuple[SplitBackend, str] | None = None
        try:
            layers = self.by_layer()
            tensors = self.by_tensor()
        except MemoryLimitError:
            return layers or self.by_tensor()
        rates = [bandwidth_of(device) for device in self.devices]
        known = [rate.bytes_per_s for rate in rates if rate is not None]
        if len(known) < len(rates):
            return layers[0], f"{layers[1]} (the bandwidth of a device is unknown)"
        layer_plan, tensor_plan = (
            _plans(self.model, backend, self.options)[0] for backend, _ in (layers, tensors)
        )
        cost = split_cost(
            _token_bytes(layer_plan, layers[0], self.options),
            _token_bytes(tensor_plan, tensors[0], self.options),
            known,
            sum(isinstance(entry, AllReduce) for entry in tensor_plan.schedule),
            all_reduce_seconds(self.devices, self.model.spec.hidden),
        )
        backend, note = tensors if cost.tensor_is_faster else layers
        estimate = f"a token is estimated to take {cost.layer_s * 1e3:.3g} ms by layer and "
        return backend, f"{note} ({estimate}{cost.tensor_s * 1e3:.3g} ms by tensor)"

    def _backend(self, division: Callable[[Node], int] | tuple[float, ...]) -> SplitBackend:
        """Return the backend of a division, which knows the weights and states of each device."""
        backend = SplitBackend(self.devices, division, self.selectors)
        keep_parts(backend, self.model)
        return backend


def _token_bytes(plan: SplitPlan, backend: SplitBackend, options: LoadOptions) -> list[int]:
    """Return the bytes that each device moves for a token after an empty cache."""
    kv_dtype = _kv_dtype(backend, [plan], options)
    shape = StepShape(tokens=1, outputs=1, depth=0, kv_dtype=kv_dtype)
    return [sum(shape.bytes(launch) for launch in part.launches) for part in plan.parts]


def _kv_dtype(backend: Backend, plans: Sequence[Plan], options: LoadOptions) -> str:
    return resolve_kv_dtype(options.kv_dtype, backend.capabilities.kv_dtype, states_of(plans))


def _fits(
    backend: SplitBackend, model: OpenModel, options: LoadOptions, draft_bytes: DraftBytes
) -> bool:
    """Return whether every device has room for its part of the model, with its cache."""
    plans = _plans(model, backend, options)
    kv_dtype = _kv_dtype(backend, plans, options)
    context, n_sequences = _context(model, options), options.sequences or 1
    for i, memory in enumerate(budgets(model.file, plans, backend)):
        if i == 0 or memory.has_first:
            memory = replace(memory, draft_bytes=lambda n: draft_bytes(backend.devices[0], n))
        if not has_room(memory, kv_dtype, context, n_sequences, options.step_tokens):
            return False
    return True


def _check(device_map: DeviceMap, names: Sequence[str], n_layers: int) -> None:
    """Raise RequestError if a model cannot be divided over the devices by `device_map`."""
    if device_map.gpu_layers is not None or device_map.cpu_moe:
        raise RequestError(
            "a number of layers cannot be set for several devices",
            "it divides a model between one device and the CPU",
            "leave {gpu_layers} and {cpu_moe} out; name cpu in {device}, and divide by {shares}",
        )
    shares = device_map.shares
    if shares and (len(shares) != len(names) or not all(_is_share(x) for x in shares)):
        raise RequestError(
            f"the shares {', '.join(f'{share:g}' for share in shares)} do not match the devices",
            f"there are {len(names)} devices, and each takes a share greater than 0",
            f"give {len(names)} numbers",
        )
    if device_map.split not in list(SplitMode):
        raise RequestError(
            f"a model cannot be divided by {device_map.split!r}",
            "",
            f"choose one of {', '.join(SplitMode)}",
        )
    if n_layers < len(names) and device_map.split != SplitMode.TENSOR:
        raise RequestError(
            f"the model cannot be divided over {len(names)} devices",
            f"it has {n_layers} layers, and each device needs at least one",
            "name fewer devices with {device}",
        )


def _is_share(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _plans(model: OpenModel, backend: SplitBackend, options: LoadOptions) -> list[SplitPlan]:
    """Return the plans of a model, followed by those of its NextN blocks if they can draft."""
    tokens, outputs = options.step_tokens, options.output_rows
    drafts = itertools.chain(*model.draft_graphs) if backend.capabilities.host_rows else ()
    graphs = (*model.graphs, *drafts)
    plans = [make_plan(g, backend, max_tokens=tokens, max_outputs=outputs) for g in graphs]
    return [plan for plan in plans if isinstance(plan, SplitPlan)]


def _context(model: OpenModel, options: LoadOptions) -> int:
    """Return the context for which the devices must have room."""
    return options.context or min(model.spec.context, ROOM_TOKENS)


def _loads(
    model: OpenModel, plans: Sequence[Plan], options: LoadOptions, kv_dtype: str
) -> tuple[list[LayerLoad], set[int]]:
    """Return the load of each layer, and the layers that share a cache with the layer before.

    A layer between two layers that share a cache counts as sharing it. The embedding counts with
    the first layer, the output and NextN blocks with the last. Only the first of `plans` counts for
    the time of a token.
    """
    n_layers, n_tokens = model.spec.n_layers, (options.sequences or 1) * _context(model, options)
    weights: list[set[Weight]] = [set() for _ in range(n_layers)]
    states: list[list[State]] = [[] for _ in range(n_layers)]
    moved = [0] * n_layers
    owners: dict[State, int] = {}
    joined: set[int] = set()
    shape = StepShape(tokens=1, outputs=1, depth=0, kv_dtype=kv_dtype)
    layer_of = LayerSplit((1,) * n_layers).device_of
    for at, launch in ((i, launch) for i, plan in enumerate(plans) for launch in plan.launches):
        layer = layer_of(launch.label)
        moved[layer] += shape.bytes(launch) if at == 0 else 0
        for x in launch.inputs:
            if isinstance(x, Weight):
                weights[layer].add(x)
            elif isinstance(x, State) and x in owners:
                joined |= set(range(owners[x] + 1, layer + 1))
            elif isinstance(x, State):
                owners[x] = layer
                states[layer].append(x)
    loads = [
        LayerLoad(
            weights_bytes(model.file, weights[i])
            + context_bytes(tuple(states[i]), n_tokens, kv_dtype, options.step_tokens)
            + state_bytes_per_sequence(tuple(states[i])),
            moved[i],
        )
        for i in range(n_layers)
    ]
    return loads, joined


def _rooms(
    model: OpenModel,
    plans: Sequence[Plan],
    backend: SplitBackend,
    options: LoadOptions,
    speeds: Sequence[float],
    draft_bytes: DraftBytes,
) -> list[DeviceRoom]:
    """Return the memory that activations leave on each device, divided where devices share it."""
    rooms: list[list[int]] = [[] for _ in speeds]
    groups = memory_groups(backend.split)
    for group, memory in zip(groups, budgets(model.file, plans, backend), strict=True):
        free = memory.available * (1 - RESERVE_SHARE) - memory.arena_bytes
        if 0 in group.devices:
            free -= draft_bytes(backend.devices[0], _context(model, options))
        for i in group.devices:
            rooms[i].append(int(free / len(group.devices)))
    return [DeviceRoom(min(room), speed) for room, speed in zip(rooms, speeds, strict=True)]


def _speeds(devices: Sequence[Backend]) -> list[float]:
    """Return the read bandwidth of each device.

    The bandwidths are equal if the devices are, or if one is unknown.
    """
    if len({device.describe() for device in devices}) == 1:
        return [1.0] * len(devices)
    from zinc.engine.load.bandwidth import bandwidth_of

    rates = [bandwidth_of(device) for device in devices]
    known = [rate.bytes_per_s for rate in rates if rate is not None]
    return known if len(known) == len(devices) else [1.0] * len(devices)
