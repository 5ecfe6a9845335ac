"""Kimi Delta Attention, and the hybrids that mix it with latent attention (Kimi Linear, Ling 3).

The layer is Gated DeltaNet (zinc.ops.recurrent) whose states decay by channel. Queries, keys and
values come from matrices and convolutions of their own, and a sigmoid gates the normalised output.
Sources: Kimi Team 2025, arXiv:2510.26692; the published model code (transformers, kimi_linear and
bailing_hybrid) and the tensors that llama.cpp's converter writes.
"""

from __future__ import annotations

from zinc.core.dataclass import dataclass
from zinc.formats.gguf import GGUFFile
from zinc.models.parts.errors import damaged
from zinc.models.parts.latent import latent_attention
from zinc.models.parts.layer import Layer
from zinc.models.parts.metadata import MAX_HEADS, MAX_WIDTH, Metadata
from zinc.models.parts.spec import Recurrence
from zinc.ops.recurrent import DeltaShape
from zinc.ops.values import RecurrentState, Value


@dataclass(frozen=True, slots=True)
class KimiDelta(Recurrence):
    """Layers of Kimi Delta Attention.

    low_rank: decays and gates come from products of two matrices. floor: the lowest logarithm of a
    decay, 0 for none.
    """

    shape: DeltaShape
    low_rank: bool
    floor: float = 0.0


def kimi_delta_from(file: GGUFFile, arch: str, n_layers: int, *, low_rank: bool) -> KimiDelta:
    """Return the layers of Kimi Delta Attention, which are those without KV heads.

    low_rank: see `KimiDelta`. Raises ModelError for a floor that is not negative.
    """
    m = Metadata(file, arch)
    m.require("attention.head_count_kv")
    n_heads, dim = m.size("attention.head_count", MAX_HEADS), m.size("kda.head_dim", MAX_WIDTH)
    key = f"{arch}.kda.gate_lower_bound"
    floor = file.float(key, default=0.0)
    if key in file.metadata and not float("-inf") < floor < 0:
        raise damaged(file, f"{key} is {floor}, and it must be a negative number")
    return KimiDelta(
        layers=m.recurrent_layers(n_layers),
        conv_taps=m.taps("ssm.conv_kernel"),
        shape=DeltaShape(n_heads, n_heads, dim, dim, per_channel=True),
        low_rank=low_rank,
        floor=floor,
    )


def kimi_delta_or_attention(layer: Layer, x: Value) -> Value:
    """Return the output of the layer's mixer, KDA or latent attention, for rows x.

    Rows are [tokens, hidden] and normalised.
    """
    net = layer.spec.recurrence
    assert isinstance(net, KimiDelta)
    return _kimi_delta(layer, net, x) if net.layers[layer.index] else latent_attention(layer, x)


def _kimi_delta(layer: Layer, net: KimiDelta, x: Value) -> Value:
    g, spec, w, shape = layer.g, layer.spec, layer.w, net.shape
    q, k, v = (_convolved(layer, net, x, part) for part in "qkv")
    planes = (1, 1) if net.low_rank else ()  # which the converter adds for some architectures only
    o = g.delta_rule(
        g.concat_heads(g.concat_heads(q, k, n_heads=1), v, n_heads=1),
        _channels(layer, net, x, "ssm_f"),
        g.linear(x, w.matrix("ssm_beta", shape.n_v_heads, spec.hidden)),
        w.flat("ssm_a", (*planes, shape.n_v_heads, 1), suffix=""),
        w.vector("ssm_dt", shape.decay_cols, "bias"),
        RecurrentState(f"{layer.name}.delta", shape.state_floats),
        n_k_heads=shape.n_k_heads,
        k_dim=shape.k_dim,
        v_dim=shape.v_dim,
        grouped=False,
        floor=net.floor,
    )
    o = g.rms_norm(o, w.vector("ssm_norm", shape.v_dim), eps=spec.eps, group=shape.v_dim)
    o = g.gate(o, _channels(layer, net, x, "ssm_g"))
    return g.linear(o, w.matrix("attn_output", spec.hidden, shape.v_cols))


def _convolved(layer: Layer, net: KimiDelta, x: Value, part: str) -> Value:
    """Return queries, keys or values [tokens, heads * dim] of rows x; part: q, k or v."""
    g, w, cols = layer.g, layer.w, net.shape.k_cols
    rows = g.linear(x, w.matrix(f"attn_{part}", cols, layer.spec.hidden))
    taps = w.flat(f"ssm_conv1d_{part}", (1, cols, 1, net.conv_taps))
    tail = RecurrentState(f"{layer.name}.conv_{part}", (net.conv_taps - 1) * cols)
    return g.causal_conv(rows, taps, tail)


def _channels(layer: Layer, net: KimiDelta, x: Value, name: str) -> Value:
    """Return the product of rows x with matrix `{name}_a`: a number for each channel.

    With `low_rank`, `{name}_a` has as many rows as a head has channels, and a second product with
    `{name}_b` follows.
    """
    g, w, cols, rank = layer.g, layer.w, net.shape.k_cols, net.shape.k_dim
    if not net.low_rank:
        return g.linear(x, w.matrix(f"{name}_a", cols, layer.spec.hidden))
    x = g.linear(x, w.matrix(f"{name}_a", rank, layer.spec.hidden))
    return g.linear(x, w.matrix(f"{name}_b", cols, rank))
