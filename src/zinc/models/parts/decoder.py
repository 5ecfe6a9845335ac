"""The decoder loop that every architecture shares.

    x = embed(tokens)
    for each layer:  x += mixer(norm(x));  x += mlp(norm(x))
                     or, if parallel, x += mixer(norm(x)) + mlp(norm(x))
    logits = head(norm(x))

An architecture differs in its spec, in the mixer (attention, latent attention, recurrent layers)
and in the MLP.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from zinc.models.parts.attention import attention
from zinc.models.parts.layer import KeySelection, Layer, RopeTables, normalise
from zinc.models.parts.mlp import mlp as default_mlp
from zinc.models.parts.spec import ModelSpec
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph
from zinc.ops.values import Value

# mixer(layer, x): mixes normalised rows x [tokens, hidden] over the tokens of a sequence.
Mixer: TypeAlias = Callable[[Layer, Value], Value]
# mlp(layer, x, residual): residual + MLP(x) for normalised rows x; `residual` is x before the norm.
Mlp: TypeAlias = Callable[[Layer, Value, Value], Value]


def decoder(
    g: Graph,
    spec: ModelSpec,
    w: Weights,
    *,
    mixer: Mixer = attention,
    mlp: Mlp | None = default_mlp,
) -> None:
    """Add a whole pre-norm decoder to the graph: embedding, layers and head.

    Without an MLP, layers are mixers only.
    """
    x = embed(g, spec, w)
    x = layers(g, spec, w, x, mixer=mixer, mlp=mlp)
    head(g, spec, w, x)


def embed(g: Graph, spec: ModelSpec, w: Weights) -> Value:
    """Return the scaled embedding [tokens, hidden] of the token ids of a step.

    With `spec.embed_norm`, it is normalised. A model with learned positions adds the embedding of
    each token's position.
    """
    g.at("embed")
    x = g.embed(w.matrix("token_embd", spec.vocab, spec.hidden), scale=spec.embed_scale)
    if spec.embed_norm:
        x = g.rms_norm(x, None, eps=spec.eps)
    if spec.learned_positions:
        table = w.matrix("position_embd", spec.context, spec.hidden)
        x = g.add(x, g.embed_positions(table))
    return x


def layers(
    g: Graph, spec: ModelSpec, w: Weights, x: Value, *, mixer: Mixer = attention, mlp: Mlp | None
) -> Value:
    """Return rows x [tokens, hidden] after all layers.

    With `spec.post_norms`, the output of a mixer is normalised before it is added; an MLP does the
    same for its own output. Without `spec.pre_norms`, both read rows that are not normalised.
    """
    ropes, selection = RopeTables(), KeySelection()
    for i in range(spec.n_layers):
        x = block(Layer(g, spec, i, w.layer(i), ropes, selection), x, mixer=mixer, mlp=mlp)
    return x


def block(layer: Layer, x: Value, *, mixer: Mixer, mlp: Mlp | None) -> Value:
    """Return rows x [tokens, hidden] after one layer; without an MLP if `mlp` is None."""
    g, spec = layer.g, layer.spec
    layer.w.require(*spec.required_tensors)
    g.at(layer.name)
    normed = layer.norm(x, spec.mixer_norm) if spec.pre_norms else x
    if spec.parallel and mlp is not None:
        is_shared = spec.mlp_norm == spec.mixer_norm
        beside = normed if is_shared else layer.norm(x, spec.mlp_norm)
        return mlp(layer, beside, layer.residual(mixer(layer, normed), x, "post_attention_norm"))
    x = layer.residual(mixer(layer, normed), x, "post_attention_norm")
    if mlp is None:
        return x
    return mlp(layer, layer.norm(x, spec.mlp_norm) if spec.pre_norms else x, x)


def head(g: Graph, spec: ModelSpec, w: Weights, x: Value) -> None:
    """Set the graph's output: logits [outputs, vocab] of the rows of x that the step asks for.

    Models without a tensor `output` use the embedding as their head. The output of an encoder is
    the normalised rows themselves, [outputs, hidden].
    """
    g.at("head")
    x = normalise(g, spec, w, g.select_rows(x), spec.head_norm)
    if spec.is_encoder:
        w.ignore("output")
        g.output = x
        return
    project(g, spec, w, "output" if w.has("output") else "token_embd", x)


def project(
    g: Graph, spec: ModelSpec, w: Weights, name: str, x: Value, tokens: tuple[int, ...] = ()
) -> None:
    """Set the graph's output: logits of normalised rows x [outputs, hidden], by matrix `name`.

    tokens: ids that the head computes logits for; () means the whole vocabulary.
    """
    if tokens:
        w.refuse("output", "bias")
        logits = g.linear(x, w.pick(name, (spec.vocab, spec.hidden), tokens, "draft"))
    else:
        logits = g.linear(x, w.matrix(name, spec.vocab, spec.hidden), w.bias("output", spec.vocab))
    if spec.logit_scale != 1.0:
        logits = g.scale(logits, spec.logit_scale)
    g.output = g.softcap(logits, spec.logit_softcap) if spec.logit_softcap else logits
