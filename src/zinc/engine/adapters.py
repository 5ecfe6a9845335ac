"""The LoRA adapters that a request uses, and their scales."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from math import isfinite

from zinc.core.dataclass import dataclass
from zinc.core.errors import RequestError

# Keeps products of an adapter's numbers within float32.
MAX_SCALE = 1e4


@dataclass(frozen=True, slots=True)
class AdapterUse:
    """Scales of the loaded adapters for one request, in their order; at least one is not 0.

    key: differs between uses that change the model in different ways, and is the same for the same
    files and scales in any process. Cached keys and values belong to one key.
    """

    scales: tuple[float, ...]
    key: bytes


def adapter_use(digests: Sequence[str], scales: Mapping[int, float]) -> AdapterUse | None:
    """Return the use of adapters with these `scales` by index; None if all of them are 0.

    digests: of the contents of each loaded adapter. Raises RequestError for an index without an
    adapter, or a scale that is out of range.
    """
    for index, scale in scales.items():
        if not 0 <= index < len(digests):
            loaded = f"there are {len(digests)}, numbered from 0" if digests else "none is loaded"
            raise RequestError(
                f"there is no LoRA adapter {index}", loaded, "load adapters with {lora}"
            )
        if not (isfinite(scale) and abs(scale) <= MAX_SCALE):
            raise RequestError(
                f"the scale of LoRA adapter {index} is {scale}",
                f"it must be a number from -{MAX_SCALE:g} to {MAX_SCALE:g}",
            )
    all_scales = tuple(float(scales.get(i, 0.0)) for i in range(len(digests)))
    used = sorted((d, s) for d, s in zip(digests, all_scales, strict=True) if s != 0)
    if not used:
        return None
    text = b"".join(digest.encode() + struct.pack("<f", scale) for digest, scale in used)
    return AdapterUse(all_scales, hashlib.sha256(text).digest())
