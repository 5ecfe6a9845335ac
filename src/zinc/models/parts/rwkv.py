"""Layers of RWKV-7: a time mix with a recurrent state, and a channel mix in place of the MLP.

Both read a mixture of each row and the row before it. In the time mix, low-rank products (two small
matrices each) give the decays, the learning rates, the gates, and the share of the first layer's
values. Sources: Peng et al. 2025, arXiv:2503.14456; the published code (PyPI, rwkv) and the tensors
that llama.cpp's converter writes.
"""

from __future__ import annotations

from zinc.core.dataclass import dataclass
from zinc.formats.gguf import GGUFFile
from zinc.models.parts.errors import damaged
from zinc.models.parts.layer import Layer
from zinc.models.parts.metadata import MAX_WIDTH, Metadata
from zinc.models.parts.spec import Recurrence
from zinc.ops.values import ActivationFn, RecurrentState, Value

HEAD_EPS = 64e-5  # of the norm of heads: a constant of the published code


@dataclass(frozen=True, slots=True)
class Rwkv7(Recurrence):
    """Layers of RWKV-7 with heads of `head_dim` columns.

    decay_rank, rate_rank, value_rank, gate_rank: the inner widths of the products that make decays,
    learning rates, shares of the first layer's values, and gates; gate_rank 0: there are no gates.
    """

    head_dim: int
    decay_rank: int
    rate_rank: int
    value_rank: int
    gate_rank: int


def rwkv7_from(file: GGUFFile, arch: str, n_layers: int) -> Rwkv7:
    """Return the layers of RWKV-7 that the metadata of `file` describes.

    Raises ModelError if heads do not divide the hidden width.
    """
    m = Metadata(file, arch)
    head_dim, hidden = m.size("wkv.head_size", MAX_WIDTH), m.size("embedding_length", MAX_WIDTH)
    if hidden % head_dim:
        raise damaged(file, f"heads of {head_dim} columns do not divide {hidden} evenly")
    return Rwkv7(
        layers=(True,) * n_layers,
        conv_taps=2,
        head_dim=head_dim,
        decay_rank=m.size("attention.decay_lora_rank", MAX_WIDTH),
        rate_rank=m.size("attention.iclr_lora_rank", MAX_WIDTH),
        value_rank=m.size("attention.value_residual_mix_lora_rank", MAX_WIDTH),
        gate_rank=m.optional_size("attention.gate_lora_rank", MAX_WIDTH),
    )


@dataclass(slots=True)
class TimeMix:
    """The mixer of a model. first: the values of its first layer."""

    first: Value | None = None

    def __call__(self, layer: Layer, x: Value) -> Value:
        """Return the time mix of normalised rows x, [tokens, hidden] to [tokens, hidden]."""
        g, w, hidden, net = layer.g, layer.w, layer.spec.hidden, layer.spec.recurrence
        assert isinstance(net, Rwkv7)
        n_mixtures = 6 if net.gate_rank else 5
        mixed = g.token_shift(
            x,
            w.flat("time_mix_lerp_fused", (n_mixtures, 1, 1, hidden)),
            RecurrentState(f"{layer.name}.time_shift", hidden),
        )
        mixtures = [g.columns(mixed, i * hidden, hidden) for i in range(n_mixtures)]
        of_r, of_w, of_k, of_v, of_a = mixtures[:5]
        r = g.linear(of_r, w.matrix("time_mix_receptance", hidden, hidden))
        k = g.linear(of_k, w.matrix("time_mix_key", hidden, hidden))
        v = g.linear(of_v, w.matrix("time_mix_value", hidden, hidden))
        share = None
        if self.first is not None:
            share = _low_rank(layer, of_v, "v", net.value_rank)
        else:
            w.ignore(*(f"time_mix_v{i}" for i in range(3)))  # which some files have nevertheless
        both = g.wkv7(
            r,
            _low_rank(layer, of_w, "w", net.decay_rank, tanh=True),
            k,
            v,
            _low_rank(layer, of_a, "a", net.rate_rank),
            self.first,
            share,
            removal=w.vector("time_mix_k_k", hidden),
            scaling=w.vector("time_mix_k_a", hidden),
            bonus=w.vector("time_mix_r_k", hidden),
            state=RecurrentState(f"{layer.name}.wkv", hidden * net.head_dim),
            head_dim=net.head_dim,
        )
        self.first = self.first or v
        y, bonus = g.columns(both, 0, hidden), g.columns(both, hidden, hidden)
        weight, bias = (w.vector("time_mix_ln", hidden, x) for x in ("weight", "bias"))
        y = g.layer_norm(y, weight, bias, eps=HEAD_EPS, group=net.head_dim)
        y = g.add(y, bonus)
        if net.gate_rank:
            y = g.glu(_gates(layer, mixtures[5], net), y, activation=ActivationFn.IDENTITY)
        return g.linear(y, w.matrix("time_mix_output", hidden, hidden))


def _low_rank(layer: Layer, x: Value, name: str, rank: int, *, tanh: bool = False) -> Value:
    """Return the product of rows x with the matrices `{name}1` and `{name}2`, plus `{name}0`.

    tanh: it is applied between the products.
    """
    g, w, hidden = layer.g, layer.w, layer.spec.hidden
    x = g.linear(x, w.matrix(f"time_mix_{name}1", rank, hidden))
    if tanh:
        x = g.softcap(x, 1.0)
    bias = w.vector(f"time_mix_{name}0", hidden)
    return g.linear(x, w.matrix(f"time_mix_{name}2", hidden, rank), bias)


def _gates(layer: Layer, x: Value, net: Rwkv7) -> Value:
    """Return the factors [tokens, hidden] of the output."""
    g, w, hidden = layer.g, layer.w, layer.spec.hidden
    x = g.linear(x, w.matrix("time_mix_g1", net.gate_rank, hidden))
    x = g.glu(x, None, activation=ActivationFn.SIGMOID)
    return g.linear(x, w.matrix("time_mix_g2", hidden, net.gate_rank))


def channel_mix(layer: Layer, x: Value, residual: Value) -> Value:
    """Return residual + the channel mix of normalised rows x [tokens, hidden]."""
    g, w, spec = layer.g, layer.w, layer.spec
    x = g.token_shift(
        x,
        w.vector("channel_mix_lerp_k", spec.hidden),
        RecurrentState(f"{layer.name}.channel_shift", spec.hidden),
    )
    h = g.linear(x, w.matrix("channel_mix_key", spec.ffn, spec.hidden))
    h = g.glu(h, None, activation=ActivationFn.RELU_SQUARED)
    return g.add(g.linear(h, w.matrix("channel_mix_value", spec.hidden, spec.ffn)), residual)
