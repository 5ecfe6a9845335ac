"""Specs of plain decoders, read from the metadata of a file; architectures change what differs."""

from __future__ import annotations

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.errors import incomplete
from zinc.models.parts.metadata import MAX_CONTEXT, MAX_HEADS, MAX_VOCAB, MAX_WIDTH, Metadata
from zinc.models.parts.rope import rope_from
from zinc.models.parts.spec import Attention, ModelSpec, Norm, QKNorm


def dense_spec(
    file: GGUFFile,
    arch: str,
    *,
    neox: bool,
    qk_norm: QKNorm | bool = False,
    norm: Norm = Norm.RMS,
    scaling_is_optional: bool = False,
    hybrid: bool = False,
) -> ModelSpec:
    """Return the spec of a decoder whose layers are all alike, from the keys under `{arch}.`.

    They may differ in the number of heads. neox: RoPE pairs dimensions i and i + dims/2, else 2i
    and 2i + 1. qk_norm: True is a norm of each head before RoPE. norm: its kind decides which key
    has the eps. hybrid: layers without KV heads are recurrent, and have the attention of another
    layer in the spec. Raises ModelError for missing or impossible sizes.
    """
    m = Metadata(file, arch)
    hidden = m.size("embedding_length", MAX_WIDTH)
    n_layers, n_nextn = m.layers()
    n_heads = m.sizes("attention.head_count", MAX_HEADS, n_layers)
    n_kv_heads = m.kv_heads(n_heads[0], n_layers, hybrid=hybrid)
    head_dim = m.size("attention.key_length", MAX_WIDTH, default=max(1, hidden // n_heads[0]))
    head_dim_v = m.size("attention.value_length", MAX_WIDTH, default=head_dim)
    rope = rope_from(file, arch, head_dim, neox=neox)
    attention = []
    for n_queries, n in zip(n_heads, (n or max(n_kv_heads) for n in n_kv_heads), strict=True):
        m.check_sharing(n_queries, n)
        attention.append(
            Attention(
                n_heads=n_queries,
                n_kv_heads=n,
                head_dim=head_dim,
                head_dim_v=head_dim_v,
                scale=head_dim**-0.5,
                rope=rope,
                qk_norm=QKNorm() if qk_norm is True else qk_norm or None,
            )
        )
    return ModelSpec(
        arch=arch,
        n_layers=n_layers,
        hidden=hidden,
        ffn=m.dense_width(),
        vocab=vocab_size(file),
        context=m.size("context_length", MAX_CONTEXT),
        eps=m.rms_eps() if norm is Norm.RMS else m.positive("attention.layer_norm_epsilon"),
        attention=tuple(attention),
        n_nextn=n_nextn,
        norm=norm,
        scaling_is_optional=scaling_is_optional,
    )


def attentionless_spec(file: GGUFFile, arch: str) -> ModelSpec:
    """Return the spec of a decoder without attention and MLPs, from the keys under `{arch}.`."""
    m = Metadata(file, arch)
    n_layers, n_nextn = m.layers()
    return ModelSpec(
        arch=arch,
        n_layers=n_layers,
        hidden=m.size("embedding_length", MAX_WIDTH),
        ffn=0,
        vocab=vocab_size(file),
        context=m.size("context_length", MAX_CONTEXT),
        eps=m.rms_eps(),
        attention=(),
        n_nextn=n_nextn,
    )


def vocab_size(file: GGUFFile) -> int:
    """Return the vocabulary size: rows of the embedding, since many files do not state it."""
    tensor = file.tensors.get("token_embd.weight")
    if tensor is None or len(tensor.shape) != 2 or not 0 < tensor.shape[0] <= MAX_VOCAB:
        raise incomplete(
            file, "the tensor token_embd.weight is missing or not a matrix [vocabulary, hidden]"
        )
    return tensor.shape[0]
