"""Parts of the Gemma family: score scale of Gemma 2 and 3; spec and shared KV of 3n and 4."""

from __future__ import annotations

from collections.abc import Sequence

from zinc.core.dataclass import dataclass
from zinc.formats.gguf import GGUFFile
from zinc.models.parts.errors import damaged
from zinc.models.parts.metadata import Metadata
from zinc.models.parts.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class TokenInputSpec(ModelSpec):
    """A spec with the MLP width of each layer and the width of the per-layer token embedding.

    `token_width` is 0 in models without such an embedding.
    """

    layer_ffn: tuple[int, ...] = ()
    token_width: int = 0


def query_scale(m: Metadata, spec: ModelSpec, layers_of_largest: int) -> float:
    """Return the scale of attention scores, 1 / sqrt(d) unless the file states `attention.scale`.

    d is the head size, but hidden / heads in the largest model of the family. No metadata key
    identifies that model, so it is recognised by its number of layers. Source:
    google/gemma_pytorch, query_pre_attn_scalar.
    """
    a = spec.attention[0]
    d = spec.hidden // a.n_heads if spec.n_layers == layers_of_largest else a.head_dim
    return m.positive("attention.scale", default=max(1, d) ** -0.5)


def kv_owners(file: GGUFFile, sliding: Sequence[bool], n_shared: int) -> list[int | None]:
    """Return for each layer the layer whose cache it reads, None if it has its own.

    Each of the last `n_shared` layers reads the cache of the last earlier layer of its kind,
    sliding or global. Raises ModelError if there is none.
    """
    owners: list[int | None] = []
    last: dict[bool, int] = {}  # slides -> the last layer of this kind that has a cache
    for i, slides in enumerate(sliding):
        if i < len(sliding) - n_shared:
            last[slides] = i
            owners.append(None)
        elif slides in last:
            owners.append(last[slides])
        else:
            raise damaged(
                file, f"layer {i} shares the KV of an earlier layer of its kind, and there is none"
            )
    return owners
