"""The lightning indexer of sparse attention (DeepSeek-AI 2025, DeepSeek-V3.2): part of a layer.

It selects the positions that each token attends to (zinc.ops.select_keys). Index queries come from
the compressed queries of latent attention, index keys and the weights of the index heads from the
hidden rows. Heads are [rotary | not rotated]. The published code also multiplies queries and keys
by a Hadamard matrix for the sake of its 8-bit format, and weights by a positive constant; neither
changes the order of the scores.
"""

from __future__ import annotations

from collections.abc import Sequence

from zinc.core.dataclass import dataclass
from zinc.formats.gguf import GGUFArray, GGUFFile
from zinc.models.parts.errors import damaged
from zinc.models.parts.layer import Layer
from zinc.models.parts.metadata import MAX_HEADS, MAX_WIDTH, Metadata
from zinc.ops.values import KVState, Value, Weight

KEY_NORM_EPS = 1e-6  # of the norm of index keys, which files do not state


@dataclass(frozen=True, slots=True)
class Indexer:
    """Sizes of the indexer of a layer.

    rank: width of the compressed queries. neox: how RoPE pairs dimensions. shared: the layer has no
    indexer, and attends to the same positions as the layer before it.
    """

    n_heads: int
    head_dim: int
    rank: int
    neox: bool
    shared: bool


def indexers_from(
    file: GGUFFile, arch: str, has_own: Sequence[bool], rank: int, rope_dim: int, *, neox: bool
) -> list[Indexer]:
    """Return the indexer of each layer, as the metadata `{arch}.attention.indexer.*` describes it.

    has_own: the layers with an indexer of their own, for files that do not list them. rank,
    rope_dim: width of the compressed queries, and rotary dimensions of a head. Raises ModelError
    for sizes that contradict each other.
    """
    m = Metadata(file, arch)
    if isinstance(file.metadata.get(f"{arch}.attention.indexer.types"), GGUFArray):
        types = m.layer_values("attention.indexer.types", len(has_own))
        has_own = [bool(own) for own in types]
    head_dim = m.size("attention.indexer.key_length", MAX_WIDTH)
    if not has_own[0]:
        raise damaged(file, "its first layer attends to what the indexer of a layer before selects")
    if not rank:
        raise damaged(
            file, f"its indexers read compressed queries, and {arch}.attention.q_lora_rank is 0"
        )
    if rope_dim > head_dim:
        raise damaged(
            file, f"its index heads have {head_dim} dimensions, and {rope_dim} of them are rotary"
        )
    n_heads = m.size("attention.indexer.head_count", MAX_HEADS)
    return [Indexer(n_heads, head_dim, rank, neox, shared=not own) for own in has_own]


def selected_keys(layer: Layer, index: Indexer, compressed: Value, x: Value) -> Value | None:
    """Return the positions [tokens, top_k] that a layer attends to; None for all of them.

    compressed: rows of the compressed queries. x: hidden rows.
    """
    g, top_k, rope = layer.g, layer.attention.top_k, layer.attention.rope
    if not top_k or index.shared:
        if layer.w.has("indexer.attn_k", varies=True):  # not used
            _weights(layer, index)
        return layer.selection.keys if top_k else None
    w_q, w_k, w_heads, norm, bias = _weights(layer, index)
    assert rope is not None
    table = layer.ropes.get(g, rope)
    k = g.layer_norm(g.linear(x, w_k), norm, bias, eps=KEY_NORM_EPS)
    k = g.rope(k, table, head_dim=index.head_dim, neox=index.neox)
    q = g.rope(g.linear(compressed, w_q), table, head_dim=index.head_dim, neox=index.neox)
    state = KVState(f"{layer.name}.index", 1, index.head_dim, index.head_dim, v_from_k=True)
    g.kv_store(k, None, state)
    layer.selection.keys = g.select_keys(q, g.linear(x, w_heads), state, top_k=top_k)
    return layer.selection.keys


def _weights(layer: Layer, index: Indexer) -> tuple[Weight, Weight, Weight, Weight, Weight]:
    """Return the matrices of queries, keys and head weights, and the norm of keys with its bias."""
    w, hidden = layer.w, layer.spec.hidden
    return (
        w.matrix("indexer.attn_q_b", index.n_heads * index.head_dim, index.rank),
        w.matrix("indexer.attn_k", index.head_dim, hidden),
        w.matrix("indexer.proj", index.n_heads, hidden),
        w.vector("indexer.k_norm", index.head_dim),
        w.vector("indexer.k_norm", index.head_dim, "bias"),
    )
