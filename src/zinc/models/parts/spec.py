"""Sizes and traits of a model, read once from its metadata."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.metadata import MAX_CONTEXT, MAX_HEADS, MAX_VOCAB, MAX_WIDTH, Metadata
from zinc.models.parts.refusal import incomplete
from zinc.models.parts.rope import Rope, rope_from
from zinc.ops.recurrent import DeltaShape
from zinc.ops.values import ActivationFn


class ModelKind(Enum):
    """Purposes of models."""

    GENERATOR = "generator"
    ENCODER = "encoder"
    RERANKER = "reranker"


class Norm(Enum):
    """Kinds of norms (zinc.ops.norm). A layer norm of a model has a bias in every layer or none."""

    RMS = "rms"
    LAYER = "layer"
    LAYER_WITH_BIAS = "layer with bias"


class NextNInput(Enum):
    """Rows that NextN blocks read to draft tokens after the first (zinc.models.parts.nextn).

    OWN: there is one block, which reads its own rows. PREVIOUS: each block drafts one token and
    reads rows of the block before. MODEL: each block drafts one token and reads rows of the model.
    """

    OWN = "own"
    PREVIOUS = "previous"
    MODEL = "model"


@dataclass(frozen=True, slots=True)
class Attention:
    """One attention layer; n_heads / n_kv_heads query heads share each KV head.

    window: tokens that a query sees, 0 for all; in an encoder it sees those less than this far
    away, before and after it. chunked: it sees those from the last multiple of `window` on. alibi:
    scores fall with the distance of query and key. softcap: cap of the attention scores, 0 for
    none.
    qk_norm: norm of every q and k head; with joint_norm, of all heads of a row together; with
    late_norm, after RoPE. plain_norm: that norm has no weights.
    k_is_v: values are the K projection before norm and RoPE; there is no attn_v. v_norm: RMS norm
    without weight on every value head. kv_layer: the layer whose cache this one reads instead of
    having its own. sinks: a learned logit per head in the softmax denominator. v_scale: multiplies
    the values. gated: the sigmoid of a gate scales each column of the output. The gates are rows of
    attn_q, or with gate_apart a matrix attn_gate; with head_gate too, each head has one gate.
    softplus_gate: the gate is a softplus instead.
    query_rope: the RoPE of queries, if it differs from that of keys. top_k: the most positions that
    a query sees, 0 for all. stacked_heads: attn_qkv has the rows of q, k and v for each head in
    turn.
    """

    n_heads: int
    n_kv_heads: int
    head_dim: int
    head_dim_v: int
    scale: float
    rope: Rope | None
    window: int = 0
    chunked: bool = False
    softcap: float = 0.0
    qk_norm: bool = False
    joint_norm: bool = False
    late_norm: bool = False
    plain_norm: bool = False
    k_is_v: bool = False
    v_norm: bool = False
    kv_layer: int | None = None
    sinks: bool = False
    v_scale: float = 1.0
    gated: bool = False
    gate_apart: bool = False
    head_gate: bool = False
    softplus_gate: bool = False
    query_rope: Rope | None = None
    alibi: bool = False
    top_k: int = 0
    stacked_heads: bool = False

    @property
    def q_cols(self) -> int:
        return self.n_heads * self.head_dim

    @property
    def k_cols(self) -> int:
        return self.n_kv_heads * self.head_dim

    @property
    def v_cols(self) -> int:
        return self.n_kv_heads * self.head_dim_v


@dataclass(frozen=True, slots=True)
class Experts:
    """Feed-forward layers of `count` experts of width `ffn`, of which each token uses `top_k`.

    The op `route` defines scoring, groups and weights. shared_ffn: total width of the shared
    experts, 0 without any; with shared_gate their output is scaled by sigmoid(gate(x)). biases: the
    router and the experts have biases. gated: experts multiply by a gate. latent: width of the rows
    that routed experts read and write, between two projections; 0 for the hidden width. limits: for
    each layer and NextN block, the limit of the activations of routed experts, 0 for none; () if
    none has one. period: the last layer of each `period` has experts, the others are dense.
    scales_input: the weight of an expert multiplies its input, not its output; only with a top_k
    of 1.
    """

    count: int
    top_k: int
    ffn: int
    scoring: int
    renormalise: bool = False
    scale: float = 1.0
    n_groups: int = 1
    top_groups: int = 1
    group_top: int = 1
    shared_ffn: int = 0
    shared_gate: bool = False
    biases: bool = False
    gated: bool = True
    latent: int = 0
    limits: tuple[float, ...] = ()
    period: int = 1
    scales_input: bool = False


@dataclass(frozen=True, slots=True)
class Recurrence:
    """The recurrent layers of a hybrid: `layers[i]` is true if layer i is one.

    conv_taps: tokens that the convolution of such a layer reads.
    """

    layers: tuple[bool, ...]
    conv_taps: int


@dataclass(frozen=True, slots=True)
class DeltaNet(Recurrence):
    """Layers of Gated DeltaNet.

    grouped: the value heads of a key head are neighbours (else they are `n_k_heads` apart).
    """

    shape: DeltaShape
    grouped: bool


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Sizes and traits of a decoder or an encoder.

    n_dense_layers: in a model with experts, the number of leading layers without. n_nextn: blocks
    after the layers that predict further tokens for speculation. raw_nextn: they read hidden rows
    before the final norm, not after it. nextn_input: what they read for further tokens.
    mlp_norm: tensor that normalises the input of the MLP. pre_norms: the inputs of the mixer and of
    the MLP are normalised.
    post_norms: their outputs are normalised before they are added, with `post_eps` if there is one.
    embed_norm: the embedding is normalised, without weight.
    parallel: mixer and MLP read the same rows, and both outputs are added to them.
    mixer_norm, head_norm: tensors that normalise the input of the mixer and of the head.
    recurrence: recurrent layers in place of attention. mlp_layers: for each layer, whether it is an
    MLP without a mixer; the others are mixers without an MLP. norm: kind of all norms. gated_mlp:
    the MLP multiplies by a gate. mlp_limits: as `Experts.limits`, for MLPs and shared experts.
    learned_positions: the embedding of a token's position is added to that of its id. logit_scale:
    multiplies the logits. required_tensors: tensors that every layer must have, although the shared
    parts treat them as optional. causal: a token sees the tokens before it only, as in every
    decoder. ranks: a head scores documents for queries.
    task_prompts: pairs of a purpose (query, document, classification, clustering, similarity) and
    the text that the model expects before a text to embed for it.

    plain_context: longer sequences run with other RoPE frequencies (zinc.models.parts.context); 0
    if all run with the same. scaling_is_optional: the RoPE scaling in the file extends a model that
    was trained without it, and costs quality in texts that do not need it.
    """

    arch: str
    n_layers: int
    hidden: int
    ffn: int
    vocab: int
    context: int
    eps: float
    attention: tuple[Attention, ...]  # one a layer; () if none attends
    activation: ActivationFn = ActivationFn.SILU
    embed_scale: float = 1.0
    logit_softcap: float = 0.0
    logit_scale: float = 1.0
    experts: Experts | None = None
    n_dense_layers: int = 0
    recurrence: Recurrence | None = None
    mlp_layers: tuple[bool, ...] = ()
    n_nextn: int = 0
    raw_nextn: bool = False
    nextn_input: NextNInput = NextNInput.OWN
    mlp_norm: str = "ffn_norm"
    mixer_norm: str = "attn_norm"
    head_norm: str = "output_norm"
    norm: Norm = Norm.RMS
    parallel: bool = False
    gated_mlp: bool = True
    mlp_limits: tuple[float, ...] = ()
    learned_positions: bool = False
    pre_norms: bool = True
    post_norms: bool = False
    post_eps: float | None = None
    embed_norm: bool = False
    causal: bool = True
    ranks: bool = False
    task_prompts: tuple[tuple[str, str], ...] = ()
    required_tensors: tuple[str, ...] = ()
    plain_context: int = 0
    scaling_is_optional: bool = False

    @property
    def is_encoder(self) -> bool:
        """Whether the model reads whole texts and has hidden states only, no logits."""
        return not self.causal

    @property
    def kind(self) -> ModelKind:
        """The purpose of the model. A reranker is an encoder or a decoder with a head."""
        if self.ranks:
            return ModelKind.RERANKER
        return ModelKind.GENERATOR if self.causal else ModelKind.ENCODER

    def ropes(self) -> list[Rope]:
        """Return the RoPE of every layer that has one."""
        return [a.rope for a in self.attention if a.rope is not None]

    @property
    def dense_context(self) -> int:
        """Most tokens of a sequence whose queries all see all positions; 0 is no limit."""
        return min((a.top_k for a in self.attention if a.top_k), default=0)

    def dense(self) -> ModelSpec:
        """Return a copy in which queries see all positions, whatever is selected."""
        return self.map_attention(lambda a: replace(a, top_k=0))

    def with_window(self, window: int) -> ModelSpec:
        """Return a copy whose layers all have a sliding window, unless it holds the context."""
        window = window if window < self.context else 0
        return self.map_attention(lambda a: replace(a, window=window))

    def map_attention(self, change: Callable[[Attention], Attention]) -> ModelSpec:
        """Return a copy with `change` applied to each attention layer."""
        return replace(self, attention=tuple(map(change, self.attention)))

    def map_ropes(self, change: Callable[[Rope], Rope]) -> ModelSpec:
        """Return a copy with `change` applied to each layer's RoPE."""

        def changed(rope: Rope | None) -> Rope | None:
            return None if rope is None else change(rope)

        return self.map_attention(
            lambda a: replace(a, rope=changed(a.rope), query_rope=changed(a.query_rope))
        )


def dense_spec(
    file: GGUFFile,
    arch: str,
    *,
    neox: bool,
    qk_norm: bool = False,
    norm: Norm = Norm.RMS,
    scaling_is_optional: bool = False,
    hybrid: bool = False,
) -> ModelSpec:
    """Return the spec of a decoder whose layers are all alike, from the keys under `{arch}.`.

    They may differ in the number of heads. neox: RoPE pairs dimensions i and i + dims/2, else 2i
    and 2i + 1. norm: its kind decides which key has the eps. hybrid: layers without KV heads are
    recurrent, and have the attention of another layer in the spec. Raises ModelError for missing or
    impossible sizes.
    """
    m = Metadata(file, arch)
    hidden = m.size("embedding_length", MAX_WIDTH)
    n_layers, n_nextn = m.layers()
    n_heads = m.sizes("attention.head_count", MAX_HEADS, n_layers)
    n_kv_heads = m.kv_heads(n_heads[0], n_layers, hybrid=hybrid)
    head_dim = m.size("attention.key_length", MAX_WIDTH, default=max(1, hidden // n_heads[0]))
    head_dim_v = m.size("attention.value_length", MAX_WIDTH, default=head_dim)
    rope = rope_from(file, arch, head_dim, neox=neox)
    attention = []
    for n_queries, n in zip(n_heads, (n or max(n_kv_heads) for n in n_kv_heads), strict=True):
        m.check_sharing(n_queries, n)
        attention.append(
            Attention(
                n_heads=n_queries,
                n_kv_heads=n,
                head_dim=head_dim,
                head_dim_v=head_dim_v,
                scale=head_dim**-0.5,
                rope=rope,
                qk_norm=qk_norm,
            )
        )
    return ModelSpec(
        arch=arch,
        n_layers=n_layers,
        hidden=hidden,
        ffn=m.dense_width(),
        vocab=vocab_size(file),
        context=m.size("context_length", MAX_CONTEXT),
        eps=m.rms_eps() if norm is Norm.RMS else m.positive("attention.layer_norm_epsilon"),
        attention=tuple(attention),
        n_nextn=n_nextn,
        norm=norm,
        scaling_is_optional=scaling_is_optional,
    )


def attentionless_spec(file: GGUFFile, arch: str) -> ModelSpec:
    """Return the spec of a decoder without attention and MLPs, from the keys under `{arch}.`."""
    m = Metadata(file, arch)
    n_layers, n_nextn = m.layers()
    return ModelSpec(
        arch=arch,
        n_layers=n_layers,
        hidden=m.size("embedding_length", MAX_WIDTH),
        ffn=0,
        vocab=vocab_size(file),
        context=m.size("context_length", MAX_CONTEXT),
        eps=m.rms_eps(),
        attention=(),
        n_nextn=n_nextn,
    )


def vocab_size(file: GGUFFile) -> int:
    """Return the vocabulary size: rows of the embedding, since many files do not state it."""
    tensor = file.tensors.get("token_embd.weight")
    if tensor is None or len(tensor.shape) != 2 or not 0 < tensor.shape[0] <= MAX_VOCAB:
        raise incomplete(
            file, "the tensor token_embd.weight is missing or not a matrix [vocabulary, hidden]"
        )
    return tensor.shape[0]
