"""Layers of Mamba-2, and the hybrids that mix them with attention (Granite 4 H, Nemotron-H).

A layer convolves rows, runs a selective scan and normalises its gated output. Sources: the
published model code (transformers, mamba2 and granitemoehybrid) and the tensors that llama.cpp's
converter writes.
"""

from __future__ import annotations

from zinc.core.dataclass import dataclass
from zinc.formats.gguf import GGUFFile
from zinc.models.parts.attention import attention
from zinc.models.parts.errors import damaged
from zinc.models.parts.layer import Layer
from zinc.models.parts.metadata import MAX_HEADS, MAX_WIDTH, Metadata
from zinc.models.parts.spec import Recurrence
from zinc.ops.recurrent import DeltaShape
from zinc.ops.values import ActivationFn, RecurrentState, Value


@dataclass(frozen=True, slots=True)
class Mamba2(Recurrence):
    """Layers of Mamba-2.

    shape: its key heads are the groups (zinc.ops.ssm). eps: of the norm of the gated output; with
    norm_is_optional, a model may lack this norm.
    """

    shape: DeltaShape
    eps: float
    norm_is_optional: bool = False


def mamba2_from(file: GGUFFile, arch: str, n_layers: int) -> Mamba2:
    """Return the layers of Mamba-2 that the metadata `{arch}.ssm.*` describes.

    Raises ModelError for sizes that do not divide each other.
    """
    m = Metadata(file, arch)
    n_groups = m.size("ssm.group_count", MAX_HEADS)
    n_heads = m.size("ssm.time_step_rank", MAX_HEADS)
    inner = m.size("ssm.inner_size", MAX_WIDTH)
    if n_heads % n_groups or inner % n_heads:
        raise damaged(
            file,
            f"{n_heads} heads cannot share {inner} inner columns and {n_groups} groups evenly",
        )
    return Mamba2(
        layers=m.recurrent_layers(n_layers),
        conv_taps=m.taps("ssm.conv_kernel"),
        shape=DeltaShape(n_groups, n_heads, m.size("ssm.state_size", MAX_WIDTH), inner // n_heads),
        eps=m.rms_eps(),
    )


def mamba2_or_attention(layer: Layer, x: Value) -> Value:
    """Return the output of the layer's mixer, Mamba-2 or attention, for normalised rows x.

    Rows are [tokens, hidden].
    """
    net = layer.spec.recurrence
    assert net is not None
    return mamba2(layer, x) if net.layers[layer.index] else attention(layer, x)


def mamba2(layer: Layer, x: Value) -> Value:
    """Return a layer of Mamba-2 for normalised rows x, [tokens, hidden] to [tokens, hidden]."""
    g, w, hidden, net = layer.g, layer.w, layer.spec.hidden, layer.spec.recurrence
    assert isinstance(net, Mamba2)
    shape, heads, inner = net.shape, net.shape.n_v_heads, net.shape.v_cols
    sizes = (inner, shape.qkv_cols, heads)  # z, [x | B | C], dt
    starts = (0, inner, inner + shape.qkv_cols)
    w.refuse("ssm_in", "bias")
    z, xbc, dt = (
        g.linear(x, w.rows("ssm_in", (sum(sizes), hidden), first, n))
        for first, n in zip(starts, sizes, strict=True)
    )
    xbc = g.causal_conv(
        xbc,
        w.flat("ssm_conv1d", (shape.qkv_cols, net.conv_taps)),
        RecurrentState(f"{layer.name}.conv", (net.conv_taps - 1) * shape.qkv_cols),
        bias=w.vector("ssm_conv1d", shape.qkv_cols, "bias"),
    )
    y = g.ssm_scan(
        xbc,
        dt,
        w.flat("ssm_a", (heads, 1), suffix=""),
        w.vector("ssm_dt", heads, "bias"),
        w.flat("ssm_d", (heads, 1), suffix=""),
        RecurrentState(f"{layer.name}.ssm", shape.state_floats),
        n_groups=shape.n_k_heads,
        state_dim=shape.k_dim,
        head_dim=shape.v_dim,
    )
    group = inner // shape.n_k_heads
    if w.has("ssm_norm") or not net.norm_is_optional:
        norm = w.flat("ssm_norm", (shape.n_k_heads, group))
        y = g.gated_norm(y, z, norm, eps=net.eps, group=group, gate_first=True)
    else:
        y = g.glu(z, y, activation=ActivationFn.SILU)
    return layer.linear(y, "ssm_out", hidden, inner)
