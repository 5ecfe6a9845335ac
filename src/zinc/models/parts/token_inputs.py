"""Per-layer token embeddings (Gemma 3n, Gemma 4 E2B and E4B).

Besides the hidden rows, each layer gets a narrow embedding of the token ids of its own.
"""

from __future__ import annotations

from math import sqrt

from zinc.models.parts.layer import Layer
from zinc.models.parts.spec import ModelSpec
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph
from zinc.ops.values import Value


def token_inputs(g: Graph, spec: ModelSpec, w: Weights, x: Value, width: int) -> list[Value]:
    """Return for each layer the rows [tokens, width] that it gets from the token ids.

    x is the embedding [tokens, hidden], scaled by sqrt(hidden). A row is
    (own embedding * sqrt(width) + norm(projection of x / sqrt(hidden))) / sqrt(2). The norm takes
    the projection of x itself, with an eps `hidden` times as large, which gives the same result.
    """
    cols = spec.n_layers * width
    own = g.embed(w.matrix("per_layer_token_embd", spec.vocab, cols), scale=sqrt(width))
    projected = g.rms_norm(
        g.linear(x, w.matrix("per_layer_model_proj", cols, spec.hidden)),
        w.vector("per_layer_proj_norm", width),
        eps=spec.eps * spec.hidden,
        group=width,
    )
    both = g.scale(g.add(projected, own), sqrt(0.5))
    return [g.columns(both, i * width, width) for i in range(spec.n_layers)]


def token_mlp(layer: Layer, x: Value, given: Value) -> Value:
    """Return norm(proj(act(gate(x)) * given)), [tokens, hidden].

    x are hidden rows [tokens, hidden], `given` the layer's rows of `token_inputs` [tokens, width].
    """
    g, width, hidden = layer.g, given.cols, layer.spec.hidden
    gate = g.linear(x, layer.w.matrix("inp_gate", width, hidden))
    h = g.glu(gate, given, activation=layer.spec.activation)
    h = g.linear(h, layer.w.matrix("proj", hidden, width))
    return layer.norm(h, "post_norm")
