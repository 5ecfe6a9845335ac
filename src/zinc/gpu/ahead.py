"""Ahead-of-time list of the kernels that the steps of a plan need.

Lowerings depend on sizes and on the device's features only. Wheels carry these kernels, and a
backend that compiles on demand compiles them on all cores when a model is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import fields, replace
from itertools import product
from typing import Any

from zinc.backends.plans import Launch, Plan, Ref
from zinc.core.errors import UnsupportedError
from zinc.gpu.addresses import NominalAddresses
from zinc.gpu.bucket import SMALLEST_KEYS, Bucket
from zinc.gpu.dispatch import KernelVariant
from zinc.gpu.features import Features
from zinc.gpu.kernel_set import KernelSet
from zinc.gpu.memory import ALIGNMENT
from zinc.ops.values import KVState, RecurrentState, Weight

SOME_KEYS = 4096  # CUDA divides attention over some keys differently than over few or many


def buckets(max_tokens: int, max_outputs: int, context: int) -> Iterator[Bucket]:
    """Yield the buckets of one sequence, and those of as many sequences as tokens.

    A step with penalties also runs the kernels of one without.
    """
    tokens = [n for i in range(32) if (n := 1 << i) <= max_tokens]
    keys = [n for i in range(8, 32) if (n := 1 << i) < 2 * context]
    for n, k in product(tokens, keys):
        for outputs in {0, 1, min(n, max_outputs)}:
            samples = outputs > 0
            yield Bucket(n, outputs, 1, k, is_decode=n == 1, samples=samples, penalizes=samples)
        for is_decode in (True, False):
            yield Bucket(n, min(n, max_outputs), n, k, is_decode, samples=True, penalizes=True)


def distinct_buckets(plan: Plan, context: int) -> list[Bucket]:
    """Return buckets whose steps run every kernel that `plan` needs for up to `context` keys.

    Kernels depend on whether keys are few, some or many, not on their exact number. So buckets of
    a few depths suffice.
    """
    deepest = Bucket(1, 1, 1, context).rounded(plan.max_tokens, plan.max_outputs).keys
    depths = (SMALLEST_KEYS, 2 * SMALLEST_KEYS, SOME_KEYS, deepest)
    return [b for b in buckets(plan.max_tokens, plan.max_outputs, context) if b.keys in depths]


def kernels(
    kernel_set: KernelSet,
    plan: Plan,
    features: Features,
    steps: Iterable[Bucket],
    kv_dtype: str,
    block_tokens: int = 64,
) -> list[KernelVariant]:
    """Return the kernels that a plan runs in `steps` on a device with `features`.

    A step that no kernel can run is left out; it fails when it is run.
    """
    at = NominalAddresses(features, kv_dtype, block_tokens)
    if features.batch_invariant:
        plan = plan.without_alternatives()
    alike = {lowering_key(launch): launch for launch in plan.launches}
    found: dict[KernelVariant, None] = {}
    buckets = list(steps)
    for launches in (*((x,) for x in alike.values()), *_joined_pairs(kernel_set, plan)):
        for bucket in _distinct(buckets, launches):
            with suppress(UnsupportedError):
                found |= {x.kernel: None for x in kernel_set.lower_all(launches, at, bucket)}
    return list(found)


def _distinct(buckets: Iterable[Bucket], launches: tuple[Launch, ...]) -> Iterator[Bucket]:
    """Yield buckets in which all `launches` run, without those that give the same dispatches.

    The caller lowers the launches for each bucket before it takes the next one. The lowering reads
    some fields of the bucket. A later bucket with the same values in these fields is left out.
    """
    seen: dict[tuple[str, ...], set[tuple[object, ...]]] = {}
    for bucket in buckets:
        if not all(map(bucket.runs, launches)):
            continue
        if any(_values(bucket, names) in values for names, values in seen.items()):
            continue
        watched = _WatchedBucket(*_values(bucket, _FIELDS))
        yield watched
        names = tuple(sorted(watched.names_read))
        seen.setdefault(names, set()).add(_values(bucket, names))


def _values(bucket: Bucket, names: Iterable[str]) -> tuple[object, ...]:
    return tuple([getattr(bucket, name) for name in names])


class _WatchedBucket(Bucket):
    """A bucket that notes in `names_read` which of its fields were read. All launches run in it."""

    __slots__ = ("names_read",)
    names_read: set[str]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "names_read", set())

    def __getattribute__(self, name: str) -> Any:
        if name in _FIELDS:
            self.names_read.add(name)
        return super().__getattribute__(name)

    def runs(self, launch: Launch) -> bool:
        return True


_FIELDS = tuple(x.name for x in fields(Bucket))


def _joined_pairs(kernel_set: KernelSet, plan: Plan) -> Iterable[tuple[Launch, Launch]]:
    """Return pairs of a launch and a reader of its output whose dispatches may be fused.

    Pairs that are lowered to the same kernels are returned once.
    """
    made = {x.outputs[0]: x for x in plan.launches if x.kernel in kernel_set.joins}
    pairs = ((made[ref], b) for b in plan.launches for ref in b.inputs if ref in made)
    return {(lowering_key(a), lowering_key(b)): (a, b) for a, b in pairs}.values()


def lowering_key(launch: Launch) -> tuple[object, ...]:
    """Return a key that is equal for launches that are lowered to the same kernels.

    Such launches differ only in names and offsets, as those of most layers do.
    """
    operands: list[object] = []
    for x in (*launch.inputs, *launch.outputs):
        if isinstance(x, Ref):
            operands.append(replace(x, id=0, offset=x.offset % ALIGNMENT))
        elif isinstance(x, Weight):
            operands.append((x.type, x.shape))
        elif isinstance(x, KVState | RecurrentState):
            operands.append(replace(x, name=""))
        else:
            operands.append(x)
    return (launch.kernel, launch.dim, launch.attrs, launch.when, *operands)
