"""Mixture-of-experts feed-forward layers, and how model files describe them."""

from __future__ import annotations

from itertools import takewhile

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.errors import damaged, incomplete, unsupported
from zinc.models.parts.layer import Layer
from zinc.models.parts.metadata import MAX_LAYERS, MAX_WIDTH, Metadata
from zinc.models.parts.spec import Experts
from zinc.ops.moe import SIGMOID, SOFTMAX, SOFTMAX_CHOSEN
from zinc.ops.values import Value, Weight

MAX_EXPERTS, MAX_CHOSEN = 4096, 256
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
    """Return the experts that the metadata `{arch}.expert_*` describes.

    scoring, renormalise, shared_gate and biases are facts of the architecture that its files do not
    state; None reads the value from the file. Raises ModelError for counts that contradict each
    other and UnsupportedError for a gating function that zinc does not know.
    """
    m = Metadata(file, arch)
    count = m.size("expert_count", MAX_EXPERTS)
    top_k = m.size("expert_used_count", MAX_CHOSEN)
    n_groups = m.optional_size("expert_group_count", count) or 1
    if n_groups > 1:
        m.require("expert_group_used_count")
    top_groups = m.optional_size("expert_group_used_count", n_groups) or n_groups
    if count % n_groups or top_k > count // n_groups * top_groups:
        raise damaged(
            file,
            f"{top_k} experts cannot be chosen from {top_groups} of {n_groups} groups "
            f"of {count} experts",
        )
    if scoring is None:
        scoring = _gating(file, arch)
    # DeepSeek-V3 (sigmoid scores) ranks a group by its two best experts, V2 by its best one.
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
    """Return the scoring (`SOFTMAX`, ...) that the metadata names or the tensors imply.

    Files without the key score with sigmoids if they have a bias for the choice of experts: both
    came with DeepSeek-V3.
    """
    value = file.int(f"{arch}.expert_gating_func", default=0)
    if value == 0:
        biased = any(name.endswith(".exp_probs_b.bias") for name in file.tensors)
        return SIGMOID if biased else SOFTMAX
    if value not in GATING:
        raise unsupported(
            file,
            f"its experts are chosen by gating function {value}, "
            f"and zinc knows {', '.join(map(str, GATING))}",
        )
    return GATING[value]


def _expert_width(file: GGUFFile) -> int:
    """Return the width of an expert, taken from the shape of its tensors."""
    for name, tensor in file.tensors.items():
        if name.endswith(".ffn_down_exps.weight") and len(tensor.shape) == 3:
            return tensor.shape[2]
    raise incomplete(
        file, "it has no tensor ffn_down_exps.weight of shape [experts, hidden, ffn] in any layer"
    )


def _shared_width(m: Metadata, ffn: int) -> int:
    """Return the total width of the shared experts, 0 without any.

    Files state the width, or the number of shared experts, or neither; then the tensor decides.
    """
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
    """Return how many of the first layers have a plain MLP in place of experts.

    If the file does not state it, the tensors decide.
    """
    if f"{arch}.leading_dense_block_count" in file.metadata:
        count = Metadata(file, arch).optional_size("leading_dense_block_count", MAX_LAYERS)
        return min(count, n_layers)
    dense = takewhile(lambda i: f"blk.{i}.ffn_gate.weight" in file.tensors, range(n_layers))
    return len(list(dense))


def expert_mlp(layer: Layer, e: Experts, x: Value, residual: Value | None) -> Value:
    """Return residual + shared experts(x) + routed experts(x) for normalised rows x.

    Rows are [tokens, hidden]; None adds no residual. The shared experts come first, so that each
    down-projection can take the sum so far as its residual. With `post_norms`, the sum of the
    experts is normalised.
    """
    g, w, hidden = layer.g, layer.w, layer.spec.hidden
    bias = w.vector("ffn_gate_inp", e.count, "bias") if e.biases else None
    logits = g.linear(x, w.matrix("ffn_gate_inp", e.count, hidden), bias)
    routes = _route(layer, e, logits)
    given = x
    if e.scales_input:
        given = g.mix(x, g.columns(routes, 1, 1))
        routes = g.route(logits, None, top_k=1, scoring=SOFTMAX_CHOSEN)  # with a weight of 1
    order, starts = g.group_experts(routes, n_experts=e.count)
    if layer.spec.post_norms and residual is not None:
        h = routed_experts(layer, e, given, routes, order, starts)
        if e.shared_ffn:
            h = g.add(h, _shared_experts(layer, e, x))
        return layer.residual(h, residual, "post_ffw_norm")
    if e.shared_ffn:
        shared = _shared_experts(layer, e, x)
        residual = shared if residual is None else g.add(shared, residual)
    h = routed_experts(layer, e, given, routes, order, starts)
    return h if residual is None else g.add(h, residual)


def _route(layer: Layer, e: Experts, logits: Value) -> Value:
    """Return the chosen experts and their weights for router logits [tokens, experts]."""
    bias = layer.w.optional_vector("exp_probs_b", e.count, "bias")
    if bias is None and layer.w.has("exp_probs_b", ""):  # the name in some files
        bias = layer.w.bare_vector("exp_probs_b", e.count)
    return layer.g.route(
        logits,
        bias,
        top_k=e.top_k,
        scoring=e.scoring,
        renormalise=e.renormalise,
        scale=e.scale,
        n_groups=e.n_groups,
        top_groups=e.top_groups,
        group_top=e.group_top,
    )


def routed_experts(
    layer: Layer, e: Experts, x: Value, routes: Value, order: Value, starts: Value
) -> Value:
    """Return the weighted sum of the experts chosen for each row of x [tokens, hidden].

    `routes` comes from the op `route`, `order` and `starts` from `group_experts`. A file may scale
    the output of each expert.
    """
    g, spec, w, width = layer.g, layer.spec, layer.w, e.latent or layer.spec.hidden
    if e.latent:
        x = layer.linear(x, "ffn_latent_down", e.latent)
    gate, up = _gate_up(layer, e, width)
    down = w.matrix("ffn_down_exps", width, e.ffn, e.count)
    b_gate = b_up = b_down = None
    if e.biases:
        b_gate = w.plane_biases("ffn_gate_exps", e.count, e.ffn)
        b_up = w.plane_biases("ffn_up_exps", e.count, e.ffn)
        b_down = w.plane_biases("ffn_down_exps", e.count, spec.hidden)
    activation, attrs = layer.activation(e.limits)
    h = g.moe_glu(x, order, starts, gate, up, b_gate, b_up, activation=activation, **attrs)
    scale = w.optional_vector("ffn_down_exps", e.count, "scale")
    y = g.moe_down(h, order, starts, routes, down, b_down, scale)
    return layer.linear(y, "ffn_latent_up", spec.hidden, e.latent) if e.latent else y


def _gate_up(layer: Layer, e: Experts, hidden: int) -> tuple[Weight, Weight | None]:
    """Return the gate and up matrices [experts, ffn, hidden], which some files stack in one.

    Experts without a gate activate the product with ffn_up_exps, and have no second matrix.
    """
    w = layer.w
    if not e.gated:
        return w.matrix("ffn_up_exps", e.ffn, hidden, e.count), None
    if w.has("ffn_gate_up_exps"):
        w.refuse("ffn_gate_up_exps", "bias")
        stacked = (e.count, 2 * e.ffn, hidden)
        gate = w.rows("ffn_gate_up_exps", stacked, 0, e.ffn)
        return gate, w.rows("ffn_gate_up_exps", stacked, e.ffn, e.ffn)
    gate = w.matrix("ffn_gate_exps", e.ffn, hidden, e.count)
    return gate, w.matrix("ffn_up_exps", e.ffn, hidden, e.count)


def _shared_experts(layer: Layer, e: Experts, x: Value) -> Value:
    """Return the output of the shared experts, which form one MLP of width `shared_ffn`.

    The gate scales the input of the down-projection, which is linear: scaling its output would give
    the same result.
    """
    g, w, hidden, ffn = layer.g, layer.w, layer.spec.hidden, e.shared_ffn
    if not e.gated:
        up = g.linear(x, w.matrix("ffn_up_shexp", ffn, hidden))
        h = g.glu(up, None, activation=layer.spec.activation)
        return g.linear(h, w.matrix("ffn_down_shexp", hidden, ffn))
    gate = g.linear(x, w.matrix("ffn_gate_shexp", ffn, hidden))
    up = g.linear(x, w.matrix("ffn_up_shexp", ffn, hidden))
    activation, attrs = layer.activation(layer.spec.mlp_limits)
    h = g.glu(gate, up, activation=activation, **attrs)
    if e.shared_gate:
        h = g.gate(h, g.linear(x, w.row("ffn_gate_inp_shexp", hidden)))
    return g.linear(h, w.matrix("ffn_down_shexp", hidden, ffn))
