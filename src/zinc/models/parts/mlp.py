"""Feed-forward layers: an MLP with or without gate, or experts after the leading dense layers."""

from __future__ import annotations

from math import inf

from zinc.models.parts.layer import Layer
from zinc.models.parts.moe import expert_mlp
from zinc.ops.values import Value


def mlp(layer: Layer, x: Value, residual: Value) -> Value:
    """Return residual + MLP(x) for normalised rows x [tokens, hidden].

    In a model with experts, the last layer of each period has them, after `n_dense_layers` layers.
    """
    spec, e = layer.spec, layer.spec.experts
    if e is not None and layer.index >= spec.n_dense_layers and (layer.index + 1) % e.period == 0:
        return expert_mlp(layer, e, x, residual)
    h = (gated_mlp if spec.gated_mlp else plain_mlp)(layer, x, spec.ffn)
    return layer.residual(h, residual, "post_ffw_norm")


def plain_mlp(layer: Layer, x: Value, ffn: int) -> Value:
    """Return down(act(up(x))) for rows x [tokens, hidden]; `ffn` is the inner width."""
    up = layer.linear(x, "ffn_up", ffn)
    h = layer.g.glu(up, None, activation=layer.spec.activation)
    return layer.linear(h, "ffn_down", layer.spec.hidden, ffn)


def gated_mlp(layer: Layer, x: Value, ffn: int, cut: float = -inf) -> Value:
    """Return down(act(gate(x)) * up(x)) for rows x [tokens, hidden]; `ffn` is the inner width.

    In files without ffn_gate, ffn_up holds the rows of the gate and then those of up. cut: keep
    only gates at least this many standard deviations above the mean, as in the op
    `statistical_top`.
    """
    g, spec, w = layer.g, layer.spec, layer.w
    if w.stacks("ffn_up", 2 * ffn) and not w.has("ffn_gate"):
        w.refuse("ffn_up", "bias")
        gate = g.linear(x, w.rows("ffn_up", (2 * ffn, spec.hidden), 0, ffn))
        up = g.linear(x, w.rows("ffn_up", (2 * ffn, spec.hidden), ffn, ffn))
    else:
        gate = layer.linear(x, "ffn_gate", ffn)
        up = layer.linear(x, "ffn_up", ffn)
    if cut > -inf:
        gate = g.statistical_top(gate, cut=cut)
    activation, attrs = layer.activation(spec.mlp_limits)
    h = g.glu(gate, up, activation=activation, **attrs)
    return layer.linear(h, "ffn_down", spec.hidden, ffn)
