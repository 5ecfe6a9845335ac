"""Gated DeltaNet layers, and decoders that mix them with attention (Qwen3-Next and later).

Most layers carry a state of fixed size instead of keys and values; every few layers one attends,
with a gate on its output. Facts come from the published model code (transformers, qwen3_next and
qwen3_5) and the tensors that llama.cpp's converter writes. Feed-forward layers may be experts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from zinc.core.errors import ModelError
from zinc.formats.gguf import GGUFArray, GGUFFile
from zinc.models.parts.blocks import RopeTables, attention, lm_head
from zinc.models.parts.moe import feed_forward
from zinc.models.parts.spec import MAX_HEADS, MAX_LAYERS, MAX_WIDTH, Metadata, ModelSpec, dense_spec
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph, RecurrentState, Value, Weight
from zinc.ops.recurrent import DeltaShape

MAX_TAPS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridSpec(ModelSpec):
    """`recurrent` says of each layer whether it is Gated DeltaNet; `grouped`, whether the value
    heads of a key head are neighbours (else they are n_k_heads apart)."""

    recurrent: tuple[bool, ...]
    delta: DeltaShape
    taps: int
    grouped: bool


def hybrid_spec(file: GGUFFile, arch: str, *, grouped: bool = False) -> HybridSpec:
    """The spec of a hybrid without its experts. Raises ModelError."""
    m = Metadata(file, arch)
    m.require("rope.freq_base", "rope.dimension_count")
    base = dense_spec(file, arch, neox=True, qk_norm=True, scaling_is_optional=True)
    n_k_heads = m.size("ssm.group_count", MAX_HEADS)
    n_v_heads = m.size("ssm.time_step_rank", MAX_HEADS)
    v_cols = m.size("ssm.inner_size", MAX_WIDTH)
    if n_v_heads % n_k_heads or v_cols % n_v_heads:
        raise ModelError(
            f"cannot load {file.path}",
            f"{v_cols} inner columns cannot be shared by {n_v_heads} value heads, "
            f"and these by {n_k_heads} key heads",
            "the file is damaged; download or convert it again",
        )
    attends = replace(base.attention[0], gated=True)
    return HybridSpec(
        **{name: getattr(base, name) for name in ModelSpec.__dataclass_fields__}
        | {"attention": (attends,) * base.n_layers},
        recurrent=tuple(recurrent_layers(m, base.n_layers)),
        delta=DeltaShape(
            n_k_heads, n_v_heads, m.size("ssm.state_size", MAX_WIDTH), v_cols // n_v_heads
        ),
        taps=m.size("ssm.conv_kernel", MAX_TAPS),
        grouped=grouped,
    )


def recurrent_layers(m: Metadata, n_layers: int) -> list[bool]:
    """Every layer but the last of each `full_attention_interval`, unless the file lists them."""
    key = "attention.recurrent_layers"
    if isinstance(m.file.metadata.get(f"{m.arch}.{key}"), GGUFArray):
        return [bool(x) for x in m.layer_values(key, n_layers)]
    interval = m.size("full_attention_interval", MAX_LAYERS, default=4)
    return [(i + 1) % interval != 0 for i in range(n_layers)]


def hybrid_decoder(g: Graph, spec: HybridSpec, w: Weights) -> None:
    """Pre-norm decoder: x += mixer(norm(x)); x += feed_forward(norm(x)) for each layer."""
    ropes = RopeTables()
    g.at("embed")
    x = g.embed(w.matrix("token_embd", spec.vocab, spec.hidden))
    for i, is_recurrent in enumerate(spec.recurrent):
        g.at(f"blk.{i}")
        layer = w.layer(i)
        h = g.rms_norm(x, layer.vector("attn_norm", spec.hidden), eps=spec.eps)
        if is_recurrent:
            h = delta_net(g, spec, layer, h, f"blk.{i}")
        else:
            h = attention(g, spec, spec.attention[i], layer, ropes, h, f"blk.{i}")
        x = g.add(h, x)
        h = g.rms_norm(x, layer.vector("post_attention_norm", spec.hidden), eps=spec.eps)
        x = feed_forward(g, spec, layer, i, h, x)
    lm_head(g, spec, w, x)


def delta_net(g: Graph, spec: HybridSpec, w: Weights, x: Value, name: str) -> Value:
    """Gated DeltaNet of normalised rows x [tokens, hidden] -> [tokens, hidden]."""
    shape, taps = spec.delta, spec.taps
    qkv, z, beta, alpha = (g.linear(x, weight) for weight in projections(spec, w))
    tail = RecurrentState(f"{name}.conv", (taps - 1) * shape.qkv_cols)
    qkv = g.conv_silu(qkv, w.flat("ssm_conv1d", (shape.qkv_cols, taps)), tail)
    o = g.delta_rule(
        qkv,
        alpha,
        beta,
        w.bare_vector("ssm_a", shape.n_v_heads),
        w.vector("ssm_dt", shape.n_v_heads, "bias"),
        RecurrentState(f"{name}.delta", shape.state_floats),
        n_k_heads=shape.n_k_heads,
        k_dim=shape.k_dim,
        v_dim=shape.v_dim,
        grouped=spec.grouped,
    )
    o = g.gated_norm(o, z, w.vector("ssm_norm", shape.v_dim), eps=spec.eps)
    return g.linear(o, w.matrix("ssm_out", spec.hidden, shape.v_cols))


def projections(spec: HybridSpec, w: Weights) -> tuple[Weight, Weight, Weight, Weight]:
    """Weights of [q | k | v], z, beta and alpha; some files stack them for each key head."""
    shape, hidden = spec.delta, spec.hidden
    each = shape.n_v_heads // shape.n_k_heads
    if w.has("ssm_in"):
        v_each = each * shape.v_dim
        q, k, v, z = _stacked(shape.n_k_heads, (shape.k_dim, shape.k_dim, v_each, v_each))
        stack = (shape.qkv_cols + shape.v_cols, hidden)
        qkv_weight = w.pick("ssm_in", stack, (*q, *k, *v), "qkv")
        z_weight = w.pick("ssm_in", stack, z, "z")
    else:
        qkv_weight = w.matrix("attn_qkv", shape.qkv_cols, hidden)
        z_weight = w.matrix("attn_gate", shape.v_cols, hidden)
    if w.has("ssm_ba"):
        b, a = _stacked(shape.n_k_heads, (each, each))
        stack = (2 * shape.n_v_heads, hidden)
        beta, alpha = w.pick("ssm_ba", stack, b, "beta"), w.pick("ssm_ba", stack, a, "alpha")
    else:
        beta = w.matrix("ssm_beta", shape.n_v_heads, hidden)
        alpha = w.matrix("ssm_alpha", shape.n_v_heads, hidden)
    return qkv_weight, z_weight, beta, alpha


def _stacked(n_heads: int, sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Rows of each part of a matrix that has, for each head, so many rows of each in turn."""
    first, period = 0, sum(sizes)
    for size in sizes:
        heads = range(first, n_heads * period, period)
        yield tuple(row for at in heads for row in range(at, at + size))
        first += size
