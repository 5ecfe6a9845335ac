"""Gated DeltaNet layers and the hybrids that mix them with attention (Qwen3-Next, Qwen 3.5).

Most layers carry a recurrent state of fixed size instead of keys and values; every few layers one
is attention with a gate on its output. Sources: the published model code (transformers, qwen3_next
and qwen3_5) and the tensors that llama.cpp's converter writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from zinc.core.dataclass import dataclass
from zinc.formats.gguf import GGUFFile
from zinc.models.parts.attention import attention
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.errors import damaged
from zinc.models.parts.layer import Layer
from zinc.models.parts.metadata import MAX_HEADS, MAX_WIDTH, Metadata
from zinc.models.parts.spec import AttentionGate, ModelSpec, Recurrence
from zinc.ops.recurrent import DeltaShape
from zinc.ops.values import RecurrentState, Value, Weight


@dataclass(frozen=True, slots=True)
class DeltaNet(Recurrence):
    """Layers of Gated DeltaNet.

    grouped: the value heads of a key head are neighbours (else they are `n_k_heads` apart).
    """

    shape: DeltaShape
    grouped: bool


def delta_net_spec(file: GGUFFile, arch: str, *, grouped: bool = False) -> ModelSpec:
    """Return the spec of a hybrid, without experts.

    grouped: the value heads of a key head are neighbours (else they are n_k_heads apart). Raises
    ModelError for head counts that do not divide each other.
    """
    m = Metadata(file, arch)
    m.require("rope.freq_base", "rope.dimension_count")
    base = dense_spec(file, arch, neox=True, qk_norm=True, scaling_is_optional=True)
    n_k_heads = m.size("ssm.group_count", MAX_HEADS)
    n_v_heads = m.size("ssm.time_step_rank", MAX_HEADS)
    v_cols = m.size("ssm.inner_size", MAX_WIDTH)
    if n_v_heads % n_k_heads or v_cols % n_v_heads:
        raise damaged(
            file,
            f"{n_v_heads} value heads cannot share {v_cols} inner columns and "
            f"{n_k_heads} key heads evenly",
        )
    shape = DeltaShape(
        n_k_heads, n_v_heads, m.size("ssm.state_size", MAX_WIDTH), v_cols // n_v_heads
    )
    return replace(
        base,
        attention=(replace(base.attention[0], gate=AttentionGate(in_query=True)),) * base.n_layers,
        mlp_norm="post_attention_norm",
        recurrence=DeltaNet(
            layers=m.recurrent_layers(base.n_layers, interval=4),
            shape=shape,
            conv_taps=m.taps("ssm.conv_kernel"),
            grouped=grouped,
        ),
    )


def delta_net_or_attention(layer: Layer, x: Value) -> Value:
    """Return the output of the layer's mixer, Gated DeltaNet or attention, for normalised rows x.

    Rows are [tokens, hidden].
    """
    net = layer.spec.recurrence
    assert isinstance(net, DeltaNet)
    return _delta_net(layer, net, x) if net.layers[layer.index] else attention(layer, x)


def _delta_net(layer: Layer, net: DeltaNet, x: Value) -> Value:
    g, spec, w, shape = layer.g, layer.spec, layer.w, net.shape
    qkv, z, beta, alpha = (g.linear(x, weight) for weight in _projections(layer, shape))
    tail = RecurrentState(f"{layer.name}.conv", (net.conv_taps - 1) * shape.qkv_cols)
    qkv = g.causal_conv(qkv, w.flat("ssm_conv1d", (shape.qkv_cols, net.conv_taps)), tail)
    o = g.delta_rule(
        qkv,
        alpha,
        beta,
        w.bare_vector("ssm_a", shape.n_v_heads),
        w.vector("ssm_dt", shape.n_v_heads, "bias"),
        RecurrentState(f"{layer.name}.delta", shape.state_floats),
        n_k_heads=shape.n_k_heads,
        k_dim=shape.k_dim,
        v_dim=shape.v_dim,
        grouped=net.grouped,
    )
    o = g.gated_norm(o, z, w.vector("ssm_norm", shape.v_dim), eps=spec.eps)
    return g.linear(o, w.matrix("ssm_out", spec.hidden, shape.v_cols))


def _projections(layer: Layer, shape: DeltaShape) -> tuple[Weight, Weight, Weight, Weight]:
    """Return the matrices of [q | k | v], z, beta and alpha.

    Some files stack the first two as ssm_in and the last two as ssm_ba, key head by key head.
    """
    w, hidden = layer.w, layer.spec.hidden
    each = shape.n_v_heads // shape.n_k_heads
    if w.has("ssm_in"):
        v_each = each * shape.v_dim
        q, k, v, z = _stacked_rows(shape.n_k_heads, (shape.k_dim, shape.k_dim, v_each, v_each))
        stack = (shape.qkv_cols + shape.v_cols, hidden)
        qkv_weight = w.pick("ssm_in", stack, (*q, *k, *v), "qkv")
        z_weight = w.pick("ssm_in", stack, z, "z")
    else:
        qkv_weight = w.matrix("attn_qkv", shape.qkv_cols, hidden)
        z_weight = w.matrix("attn_gate", shape.v_cols, hidden)
    if w.has("ssm_ba"):
        b, a = _stacked_rows(shape.n_k_heads, (each, each))
        stack = (2 * shape.n_v_heads, hidden)
        beta, alpha = w.pick("ssm_ba", stack, b, "beta"), w.pick("ssm_ba", stack, a, "alpha")
    else:
        beta = w.matrix("ssm_beta", shape.n_v_heads, hidden)
        alpha = w.matrix("ssm_alpha", shape.n_v_heads, hidden)
    return qkv_weight, z_weight, beta, alpha


def _stacked_rows(n_heads: int, sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the rows of each part of a matrix that stacks parts of `sizes` rows, head by head."""
    first, period = 0, sum(sizes)
    for size in sizes:
        heads = range(first, n_heads * period, period)
        yield tuple(row for start in heads for row in range(start, start + size))
        first += size
