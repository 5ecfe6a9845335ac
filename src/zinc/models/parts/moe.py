"""Feed-forward layers of experts, and decoders built with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from zinc.core.errors import ModelError, UnsupportedError
from zinc.formats.gguf import GGUFFile
from zinc.models.parts.blocks import RopeTables, attention, gated_mlp, lm_head
from zinc.models.parts.spec import MAX_LAYERS, MAX_WIDTH, Attention, Experts, Metadata, ModelSpec
from zinc.models.parts.weights import Weights
from zinc.ops.elementwise import CLAMPED_SWIGLU
from zinc.ops.graph import Graph, Value, Weight
from zinc.ops.moe import SIGMOID, SOFTMAX, SOFTMAX_CHOSEN

MAX_EXPERTS, MAX_CHOSEN = 4096, 256
# An attention block: of the layer's normalised rows, under the name of its cache.
Attend: TypeAlias = Callable[[Graph, ModelSpec, Attention, Weights, RopeTables, Value, str], Value]
# `expert_gating_func` of the GGUF specification.
GATING = {1: SOFTMAX, 2: SIGMOID, 3: SOFTMAX_CHOSEN}


def experts_from(
    file: GGUFFile,
    arch: str,
    *,
    scoring: int | None = None,
    renormalise: bool | None = None,
    shared_gate: bool = False,
    biases: bool = False,
) -> Experts:
    """Reads `{arch}.expert_*`; what is given here is a fact of the family and not in its files.

    Raises ModelError for counts that contradict each other or the experts in the file, and
    UnsupportedError for a gating function that zinc does not know.
    """
    m = Metadata(file, arch)
    count = m.size("expert_count", MAX_EXPERTS)
    top_k = m.size("expert_used_count", MAX_CHOSEN)
    n_groups = m.optional_size("expert_group_count", count) or 1
    if n_groups > 1:
        m.require("expert_group_used_count")
    top_groups = m.optional_size("expert_group_used_count", n_groups) or n_groups
    if count % n_groups or top_k > count // n_groups * top_groups:
        raise ModelError(
            f"cannot load {file.path}",
            f"{top_k} experts cannot be chosen from {top_groups} of {n_groups} groups "
            f"of {count} experts",
            "the file is damaged; download or convert it again",
        )
    if scoring is None:
        scoring = _gating(file, arch)
    # Sums of two rank the groups in DeepSeek-V3, whose scores are sigmoids; V2 takes the largest.
    group_top = min(2 if scoring == SIGMOID else 1, count // n_groups)
    if renormalise is None:
        if scoring == SIGMOID:
            m.require("expert_weights_norm")
        renormalise = file.bool(f"{arch}.expert_weights_norm", default=False)
    ffn = m.optional_size("expert_feed_forward_length", MAX_WIDTH)
    return Experts(
        count=count,
        top_k=top_k,
        ffn=ffn or _expert_width(file),
        scoring=scoring,
        renormalise=renormalise,
        scale=m.optional_positive("expert_weights_scale") or 1.0,
        n_groups=n_groups,
        top_groups=top_groups,
        group_top=group_top,
        shared_ffn=_shared_width(m, ffn),
        shared_gate=shared_gate,
        biases=biases,
    )


def _gating(file: GGUFFile, arch: str) -> int:
    """The scoring that the file names, or the one that its tensors imply.

    A bias that moves the choice of experts came with sigmoid scores (DeepSeek-V3).
    """
    value = file.int(f"{arch}.expert_gating_func", default=0)
    if value == 0:
        biased = any(name.endswith(".exp_probs_b.bias") for name in file.tensors)
        return SIGMOID if biased else SOFTMAX
    if value not in GATING:
        raise UnsupportedError(
            f"cannot load {file.path}",
            f"its experts are chosen by gating function {value}, "
            f"and zinc knows {', '.join(map(str, GATING))}",
            "use another model, or a newer zinc",
        )
    return GATING[value]


def _expert_width(file: GGUFFile) -> int:
    """Width of an expert by the tensors, where the metadata does not say."""
    for name, tensor in file.tensors.items():
        if name.endswith(".ffn_down_exps.weight") and len(tensor.shape) == 3:
            return tensor.shape[2]
    raise ModelError(
        f"cannot load {file.path}",
        "it has no tensor ffn_down_exps.weight [experts, hidden, ffn] in any layer",
        "the file is incomplete; download or convert it again",
    )


def _shared_width(m: Metadata, ffn: int) -> int:
    """Width of all shared experts together: a key of its own, a count of them, or by tensor."""
    width = m.optional_size("expert_shared_feed_forward_length", MAX_WIDTH)
    if width:
        return width
    n_shared = m.optional_size("expert_shared_count", MAX_EXPERTS)
    if n_shared:
        return n_shared * (ffn or _expert_width(m.file))
    for name, tensor in m.file.tensors.items():
        if name.endswith(".ffn_up_shexp.weight"):
            return tensor.shape[0]
    return 0


def leading_dense_layers(file: GGUFFile, arch: str, n_layers: int) -> int:
    """Return how many of the first layers are dense: they have a plain feed-forward layer.

    A model whose layers are all dense has no experts, whatever its other keys say of them.
    """
    count = Metadata(file, arch).optional_size("leading_dense_block_count", MAX_LAYERS)
    return min(count, n_layers)


def expert_mlp(
    g: Graph, spec: ModelSpec, e: Experts, w: Weights, x: Value, residual: Value
) -> Value:
    """residual + shared experts(x) + chosen experts(x) for normalised rows x [tokens, hidden].

    The shared experts come before the chosen ones, so that either down-projection can take what it
    adds to as its residual.
    """
    bias = w.vector("ffn_gate_inp", e.count, "bias") if e.biases else None
    logits = g.linear(x, w.matrix("ffn_gate_inp", e.count, spec.hidden), bias)
    routes = routing(g, e, w, logits)
    if e.shared_ffn:
        residual = g.add(shared_mlp(g, spec, e, w, x), residual)
    return g.add(chosen_mlp(g, spec, e, w, x, routes), residual)


def routing(g: Graph, e: Experts, w: Weights, logits: Value) -> Value:
    """Chosen experts and their weights, from router logits [tokens, experts]."""
    return g.route(
        logits,
        w.optional_vector("exp_probs_b", e.count, "bias"),
        top_k=e.top_k,
        scoring=e.scoring,
        renormalise=e.renormalise,
        scale=e.scale,
        n_groups=e.n_groups,
        top_groups=e.top_groups,
        group_top=e.group_top,
    )


def chosen_mlp(g: Graph, spec: ModelSpec, e: Experts, w: Weights, x: Value, routes: Value) -> Value:
    """The weighted sum of the chosen experts of rows x [tokens, hidden].

    Files keep the experts' gate and up apart or stacked, and may scale an expert's output.
    """
    order, starts = g.group_experts(routes, n_experts=e.count)
    gate, up = _gate_up(spec, e, w)
    down = w.matrix("ffn_down_exps", spec.hidden, e.ffn, e.count)
    b_gate = b_up = b_down = None
    if e.biases:
        b_gate = w.plane_vectors("ffn_gate_exps", e.count, e.ffn)
        b_up = w.plane_vectors("ffn_up_exps", e.count, e.ffn)
        b_down = w.plane_vectors("ffn_down_exps", e.count, spec.hidden)
    attrs = {"alpha": 1.702, "limit": 7.0} if spec.activation == CLAMPED_SWIGLU else {}
    h = g.moe_glu(x, order, starts, gate, up, b_gate, b_up, act=spec.activation, **attrs)
    scale = w.optional_vector("ffn_down_exps", e.count, "scale")
    return g.moe_down(h, order, starts, routes, down, b_down, scale)


def _gate_up(spec: ModelSpec, e: Experts, w: Weights) -> tuple[Weight, Weight]:
    if w.has("ffn_gate_up_exps"):
        w.refuse("ffn_gate_up_exps", "bias")
        shape = (e.count, 2 * e.ffn, spec.hidden)
        gate = w.rows("ffn_gate_up_exps", shape, 0, e.ffn)
        return gate, w.rows("ffn_gate_up_exps", shape, e.ffn, e.ffn)
    gate = w.matrix("ffn_gate_exps", e.ffn, spec.hidden, e.count)
    return gate, w.matrix("ffn_up_exps", e.ffn, spec.hidden, e.count)


def shared_mlp(g: Graph, spec: ModelSpec, e: Experts, w: Weights, x: Value) -> Value:
    """The experts that every token runs: one gated layer of width `shared_ffn`.

    Their gate scales the hidden columns; the down-projection is linear, so it comes out the same.
    """
    ffn = e.shared_ffn
    gate = g.linear(x, w.matrix("ffn_gate_shexp", ffn, spec.hidden))
    up = g.linear(x, w.matrix("ffn_up_shexp", ffn, spec.hidden))
    h = g.glu(gate, up, act=spec.activation)
    if e.shared_gate:
        h = g.gate(h, g.linear(x, w.row("ffn_gate_inp_shexp", spec.hidden)))
    return g.linear(h, w.matrix("ffn_down_shexp", spec.hidden, ffn))


def feed_forward(
    g: Graph, spec: ModelSpec, w: Weights, layer: int, x: Value, residual: Value
) -> Value:
    """residual + the feed-forward layer of rows x: plain in the leading layers, else experts."""
    if spec.experts is None or layer < spec.n_dense_layers:
        return g.add(gated_mlp(g, spec, w, x), residual)
    return expert_mlp(g, spec, spec.experts, w, x, residual)


def expert_decoder(
    g: Graph,
    spec: ModelSpec,
    w: Weights,
    *,
    attend: Attend = attention,
    ffn_norm: str = "ffn_norm",
) -> None:
    """Pre-norm decoder whose feed-forward layers are experts; `ffn_norm` names the norm of them."""
    ropes = RopeTables()
    g.at("embed")
    x = g.embed(w.matrix("token_embd", spec.vocab, spec.hidden), scale=spec.embed_scale)
    for i, a in enumerate(spec.attention):
        g.at(f"blk.{i}")
        layer = w.layer(i)
        h = g.rms_norm(x, layer.vector("attn_norm", spec.hidden), eps=spec.eps)
        x = g.add(attend(g, spec, a, layer, ropes, h, f"blk.{i}"), x)
        h = g.rms_norm(x, layer.vector(ffn_norm, spec.hidden), eps=spec.eps)
        x = feed_forward(g, spec, layer, i, h, x)
    lm_head(g, spec, w, x)
