"""Layers of Mamba, whose channels have states of their own (Mamba, Falcon Mamba, Jamba).

A layer convolves rows, derives dt, B and C from the result, runs a selective scan and gates its
output. Sources: the published model code (transformers, mamba, falcon_mamba and jamba) and the
tensors that llama.cpp's converter writes.
"""

from __future__ import annotations

from zinc.core.dataclass import dataclass
from zinc.formats.gguf import GGUFFile
from zinc.models.parts.attention import attention
from zinc.models.parts.layer import Layer
from zinc.models.parts.metadata import MAX_WIDTH, Metadata
from zinc.models.parts.spec import Recurrence
from zinc.ops.values import ActivationFn, RecurrentState, Value, Weight

MAX_STATE = 256
WIDE_RANK = {"ssm.time_step_rank": 256}  # metadata of a probe, for matrices of every format


@dataclass(frozen=True, slots=True)
class Mamba1(Recurrence):
    """Layers of Mamba with `inner` channels, each with a state of `size` numbers.

    rank: width of the rows from which dt is made. normed: dt, B and C are normalised, without
    weights. norm_weights: they are normalised with weights.
    """

    inner: int
    size: int
    rank: int
    normed: bool = False
    norm_weights: bool = False


def mamba1_from(
    file: GGUFFile, arch: str, layers: tuple[bool, ...], *, norm_weights: bool = False
) -> Mamba1:
    """Return the layers of Mamba that the metadata `{arch}.ssm.*` describes.

    layers: which layers they are. norm_weights: as in `Mamba1`.
    """
    m = Metadata(file, arch)
    return Mamba1(
        layers=layers,
        conv_taps=m.taps("ssm.conv_kernel"),
        inner=m.size("ssm.inner_size", MAX_WIDTH),
        size=m.size("ssm.state_size", MAX_STATE),
        rank=m.size("ssm.time_step_rank", MAX_WIDTH),
        normed=file.bool(f"{arch}.ssm.dt_b_c_rms", default=False),
        norm_weights=norm_weights,
    )


def mamba1_or_attention(layer: Layer, x: Value) -> Value:
    """Return the output of the layer's mixer, Mamba or attention, for normalised rows x.

    Rows are [tokens, hidden].
    """
    net = layer.spec.recurrence
    assert net is not None
    return mamba1(layer, x) if net.layers[layer.index] else attention(layer, x)


def mamba1(layer: Layer, x: Value) -> Value:
    """Return a layer of Mamba for normalised rows x, [tokens, hidden] to [tokens, hidden]."""
    g, w, hidden, net = layer.g, layer.w, layer.spec.hidden, layer.spec.recurrence
    assert isinstance(net, Mamba1)
    inner, size, rank = net.inner, net.size, net.rank
    w.refuse("ssm_in", "bias")
    x, z = (g.linear(x, w.rows("ssm_in", (2 * inner, hidden), i * inner, inner)) for i in (0, 1))
    x = g.causal_conv(
        x,
        w.flat("ssm_conv1d", (inner, net.conv_taps)),
        RecurrentState(f"{layer.name}.conv", (net.conv_taps - 1) * inner),
        bias=w.vector("ssm_conv1d", inner, "bias"),
    )
    stack = (rank + 2 * size, inner)
    parts = []
    for name, first, n in (("dt", 0, rank), ("b", rank, size), ("c", rank + size, size)):
        part = g.linear(x, w.rows("ssm_x", stack, first, n))
        weight: Weight | None = w.vector(f"ssm_{name}_norm", n) if net.norm_weights else None
        if net.norm_weights or net.normed:
            part = g.rms_norm(part, weight, eps=layer.spec.eps)
        parts.append(part)
    dt, b, c = parts
    y = g.selective_scan(
        x,
        g.linear(dt, w.matrix("ssm_dt", inner, rank)),
        b,
        c,
        w.flat("ssm_a", (inner, size), suffix=""),
        w.vector("ssm_dt", inner, "bias"),
        w.bare_vector("ssm_d", inner),
        RecurrentState(f"{layer.name}.scan", inner * size),
    )
    y = g.glu(z, y, activation=ActivationFn.SILU)
    return layer.linear(y, "ssm_out", hidden, inner)
