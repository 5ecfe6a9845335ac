"""The encoder loop: every token of a text sees the whole text, and norms follow the additions.

    x = norm(token embedding + type embedding [+ position embedding])
    for each layer:  x = norm(x + attention(x));  x = norm(x + mlp(x))

The output is x itself, [tokens, hidden]; pooling reduces the rows of a text to one.
"""

from __future__ import annotations

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.attention import attention
from zinc.models.parts.decoder import Mlp
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.errors import unsupported
from zinc.models.parts.layer import Layer, RopeTables, normalise
from zinc.models.parts.metadata import MAX_VOCAB, Metadata
from zinc.models.parts.mlp import mlp as default_mlp
from zinc.models.parts.spec import Attention, ModelSpec, Norm
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph
from zinc.ops.values import Value


def encoder_spec(file: GGUFFile, arch: str, *, norm: Norm = Norm.LAYER_WITH_BIAS) -> ModelSpec:
    """Return the spec of an encoder, from the keys under `{arch}.`.

    Raises UnsupportedError if the file says that its attention is causal, and ModelError for
    missing or impossible sizes.
    """
    if file.bool(f"{arch}.attention.causal", default=False):
        raise unsupported(file, f"its attention is causal, and zinc runs {arch} models as encoders")
    base = dense_spec(file, arch, neox=True, norm=norm)
    return replace(base, causal=False)


def without_mask(file: GGUFFile, spec: ModelSpec) -> ModelSpec:
    """Return the spec of a decoder as an encoder if the file says that it is not causal.

    Embedding models are often decoders that were trained further without the causal mask. Raises
    UnsupportedError for layers that need one: sliding windows and recurrent or latent states.
    """
    if not spec.causal or file.bool(f"{spec.arch}.attention.causal", default=True):
        return spec
    kinds = {(a.n_kv_heads, a.head_dim, a.head_dim_v) for a in spec.attention}
    plain = all(type(a) is Attention and not a.window for a in spec.attention)
    if spec.recurrence is not None or not plain or len(kinds) > 1:
        raise unsupported(
            file,
            f"its attention is not causal, and zinc runs {spec.arch} models as decoders",
            "use another model",
        )
    return replace(spec, causal=False)


def encoder(g: Graph, spec: ModelSpec, w: Weights, *, mlp: Mlp = default_mlp) -> None:
    """Add a whole encoder to the graph, whose output is the rows that a step asks for."""
    x = embed(g, spec, w)
    ropes = RopeTables()
    for i in range(spec.n_layers):
        layer = Layer(g, spec, i, w.layer(i), ropes)
        g.at(layer.name)
        x = layer.norm(g.add(attention(layer, x), x), "attn_output_norm")
        x = layer.norm(mlp(layer, x, x), "layer_output_norm")
    g.at("head")
    g.output = g.select_rows(x)


def embed(g: Graph, spec: ModelSpec, w: Weights) -> Value:
    """Return the normalised sum of the embeddings of token, type and position [tokens, hidden].

    All tokens have the first type, "sentence A".
    """
    g.at("embed")
    x = g.embed(w.matrix("token_embd", spec.vocab, spec.hidden))
    if w.has("token_types"):
        n_types = Metadata(w.file, "tokenizer.ggml").size("token_type_count", MAX_VOCAB, 2)
        # The row of the first type for each position, as no op adds one row to all rows.
        first = w.pick("token_types", (n_types, spec.hidden), (0,) * spec.context, "first")
        x = g.add(x, g.embed_positions(first))
    if spec.learned_positions:
        x = g.add(x, g.embed_positions(w.matrix("position_embd", spec.context, spec.hidden)))
    return normalise(g, spec, w, x, "token_embd_norm")
