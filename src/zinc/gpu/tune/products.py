"""The products of plans for which tiles are chosen.

Each launch is lowered with `RecordedTiles`, which records the keys that the lowering looks up. This
finds the products of any kernel set.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Any

from zinc.backends.plans import Launch, Plan
from zinc.core.dataclass import dataclass
from zinc.core.errors import UnsupportedError
from zinc.gpu.addresses import NominalAddresses
from zinc.gpu.ahead import lowering_key
from zinc.gpu.bucket import SMALLEST_KEYS, Bucket
from zinc.gpu.features import Features
from zinc.gpu.kernel_set import KernelSet
from zinc.gpu.tuned import RecordedTiles, TileKey
from zinc.ops.registry import OPS
from zinc.ops.values import Weight


@dataclass(frozen=True, slots=True)
class Product:
    """A key, a launch that asks for its tile in steps of `bucket`, and the formula's tile."""

    key: TileKey
    launch: Launch
    bucket: Bucket
    default: Any


def products(kernels: KernelSet, plans: Iterable[Plan], features: Features) -> list[Product]:
    """Return a product for each tile key that lowerings look up in steps of the plans.

    Products of one launch are adjacent, so that the tuner creates its weights once.
    """
    alike: dict[Any, tuple[Plan, Launch]] = {}
    for plan in plans:
        for launch in plan.launches:
            if OPS[launch.kernel].has_matrices:
                alike.setdefault(lowering_key(launch), (plan, launch))
    found: dict[TileKey, Product] = {}
    for plan, launch in alike.values():
        for bucket in _buckets(plan):
            wanted = _asked(kernels, launch, features, bucket)
            for part in chain(_parts(launch), [launch]):
                asked = _asked(kernels, part, features, bucket)
                if part is not launch and (len(asked) != 1 or not asked.keys() <= wanted.keys()):
                    continue  # a step never asks for this part alone
                for key, default in asked.items():
                    found.setdefault(key, Product(key, part, bucket, default))
    order = {x.launch: i for i, x in enumerate(found.values())}
    return sorted(found.values(), key=lambda x: order[x.launch])


def _buckets(plan: Plan) -> Iterator[Bucket]:
    """Yield the steps of one token, of a few and of prompts."""
    for i in range(1 + (plan.max_tokens - 1).bit_length()):
        tokens = min(1 << i, plan.max_tokens)
        yield Bucket(tokens, min(tokens, plan.max_outputs), 1, SMALLEST_KEYS)


def _asked(
    kernels: KernelSet, launch: Launch, features: Features, bucket: Bucket
) -> Mapping[TileKey, Any]:
    """Return the tile keys that the lowering of a launch looks up, with the formula's tiles."""
    tiles = RecordedTiles()
    at = NominalAddresses(replace(features, tuned=tiles), "f16")
    with suppress(UnsupportedError):
        kernels.lower(launch, at, bucket)
    return {key: tile for key, tile in tiles.recorded.items() if key.kernel in kernels.tilings}


def _parts(launch: Launch) -> Iterator[Launch]:
    """Yield, for a launch of several parts, one launch per part and one for each weight format.

    A launch that has other outputs besides those of its parts is not divided.
    """
    signature = OPS[launch.kernel].signature
    n_parts = signature.n_parts(launch.inputs)
    if n_parts == 1 or len(launch.outputs) != n_parts:
        return
    types = [_type_of(launch, part) for part in range(n_parts)]
    yield from (_only(launch, [part]) for part in range(n_parts))
    for each in dict.fromkeys(types):
        yield _only(launch, [part for part in range(n_parts) if types[part] is each])


def _type_of(launch: Launch, part: int) -> object:
    weight = launch.input("weight", part)
    return weight.type if isinstance(weight, Weight) else None


def _only(launch: Launch, parts: Sequence[int]) -> Launch:
    """Return a launch of the chosen parts of `launch`."""
    signature = OPS[launch.kernel].signature
    first, n = signature.n_single, signature.n_repeated
    groups = [launch.inputs[first + n * part : first + n * (part + 1)] for part in parts]
    attrs = {**launch.attributes, "n_parts": len(parts)}
    return replace(
        launch,
        inputs=(*launch.inputs[:first], *chain.from_iterable(groups)),
        outputs=tuple(launch.outputs[part] for part in parts),
        attrs=tuple(attrs.items()),
    )
