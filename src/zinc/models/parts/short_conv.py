"""Gated short convolutions, and the hybrids that mix them with attention (LFM2).

A layer multiplies rows by a gate, convolves them over a few tokens and multiplies the result by
another gate. Its state is the last rows. Sources: the published model code (transformers, lfm2) and
the tensors that llama.cpp's converter writes.
"""

from __future__ import annotations

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.attention import attention
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.layer import Layer
from zinc.models.parts.metadata import MAX_CONTEXT, Metadata
from zinc.models.parts.spec import ModelSpec, Recurrence
from zinc.ops.values import ActivationFn, RecurrentState, Value


def short_conv_spec(file: GGUFFile, arch: str) -> ModelSpec:
    """Return the spec of a hybrid, without experts. Layers without KV heads are convolutions."""
    m = Metadata(file, arch)
    m.require("attention.head_count_kv", "rope.freq_base")
    base = dense_spec(file, arch, neox=True, qk_norm=True, scaling_is_optional=True, hybrid=True)
    recurrence = Recurrence(m.recurrent_layers(base.n_layers), m.taps("shortconv.l_cache"))
    spec = replace(base, recurrence=recurrence, head_norm="token_embd_norm")
    return spec.with_window(m.optional_size("attention.sliding_window", MAX_CONTEXT))


def short_conv_or_attention(layer: Layer, x: Value) -> Value:
    """Return the output of the layer's mixer, a convolution or attention, for normalised rows x.

    Rows are [tokens, hidden].
    """
    g, w, hidden, net = layer.g, layer.w, layer.spec.hidden, layer.spec.recurrence
    assert net is not None
    if not net.layers[layer.index]:
        return attention(layer, x)
    stack, taps = (3 * hidden, hidden), net.conv_taps
    before, after, x = (
        g.linear(x, w.rows("shortconv.in_proj", stack, i * hidden, hidden)) for i in range(3)
    )
    x = g.glu(before, x, activation=ActivationFn.IDENTITY)
    state = RecurrentState(f"{layer.name}.conv", (taps - 1) * hidden)
    x = g.causal_conv(x, w.flat("shortconv.conv", (hidden, taps)), state, silu=False)
    x = g.glu(after, x, activation=ActivationFn.IDENTITY)
    return g.linear(x, w.matrix("shortconv.out_proj", hidden, hidden))
