"""What makes cached keys and values belong to a model: the name of a file in a cache folder."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from zinc import __version__
from zinc.backends.api import Backend, CacheLayout, Plan

_HEAD_BYTES = 4 << 20
_SAMPLE_BYTES = 64 << 10
_SAMPLES = 32


def cache_key(
    paths: Iterable[Path], plans: Iterable[Plan], layout: CacheLayout, backend: Backend
) -> str:
    """Changes with the weights, the plans, the layout of the cache, the backend and zinc's version.

    Weights are known by the sizes of their files, their beginnings (metadata and tensor list) and
    evenly spaced samples: reading all of a large model would take longer than the prompts saved.
    """
    digest = hashlib.sha256()
    for path in paths:
        size = path.stat().st_size
        digest.update(str(size).encode())
        with path.open("rb") as file:
            digest.update(file.read(_HEAD_BYTES))
            for i in range(_SAMPLES):
                file.seek(size * i // _SAMPLES)
                digest.update(file.read(_SAMPLE_BYTES))
    groups = sorted(layout.group_of.items())
    parts = (
        __version__,
        *(plan.hash for plan in plans),
        layout.block_tokens,
        layout.kv_dtype,
        groups,
    )
    backend_parts = (backend.name, getattr(backend, "level", ""), backend.batch_invariant)
    digest.update(repr((*parts, *backend_parts)).encode())
    return digest.hexdigest()[:32]
