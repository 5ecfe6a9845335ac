"""Sizes and traits of a model, read once from its metadata."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum

from zinc.core.dataclass import dataclass
from zinc.models.parts.rope import Rope
from zinc.ops.values import ActivationFn


class ModelKind(Enum):
    """The purpose of a model."""

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
class QKNorm:
    """A norm of queries and keys, of the model's kind.

    joint: all heads of a row are normalised together, not each by itself. after_rope: it follows
    RoPE, not precedes it. weighted: it has weights.
    """

    joint: bool = False
    after_rope: bool = False
    weighted: bool = True


@dataclass(frozen=True, slots=True)
class AttentionGate:
    """A gate that scales the output of attention before attn_output.

    in_query: the gates are rows of attn_q, behind the query of each head, not a matrix attn_gate.
    per_head: a head has one gate for all of its columns. softplus: the factor is the softplus of a
    gate, not its sigmoid.
    """

    in_query: bool = False
    per_head: bool = False
    softplus: bool = False


@dataclass(frozen=True, slots=True)
class Attention:
    """One attention layer, in which n_heads / n_kv_heads query heads share each KV head.

    Positions that a query sees:

        window    the last ones, 0 for all. In an encoder, those less than this far before or after.
        chunked   those since the last multiple of `window` instead.
        top_k     at most this many, which an indexer selects; 0 for all.

    Scores:

        scale     multiplies them.
        softcap   caps them; 0 for no cap.
        alibi     they fall with the distance of query and key.
        sinks     each head has a learned logit in the denominator of the softmax.

    Queries, keys and values:

        rope, query_rope   RoPE of keys, and that of queries if it differs.
        qk_norm            norm of queries and keys, None for no norm.
        stacked_heads      attn_qkv has the rows of q, k and v for each head in turn.
        k_is_v             values are the K projection before norm and RoPE; there is no attn_v.
        v_norm             each value head has an RMS norm without weights.
        v_scale            multiplies the values.
        kv_layer           the layer whose cache this one reads instead of its own.

    gate: scales the output, None for no gate.
    """

    n_heads: int
    n_kv_heads: int
    head_dim: int
    head_dim_v: int
    scale: float
    rope: Rope | None
    window: int = 0
    chunked: bool = False
    top_k: int = 0
    softcap: float = 0.0
    alibi: bool = False
    sinks: bool = False
    query_rope: Rope | None = None
    qk_norm: QKNorm | None = None
    stacked_heads: bool = False
    k_is_v: bool = False
    v_norm: bool = False
    v_scale: float = 1.0
    kv_layer: int | None = None
    gate: AttentionGate | None = None

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
class ModelSpec:
    """Sizes and traits of a decoder or an encoder.

    Layers:

        attention         one for each layer; () if none attends.
        recurrence        recurrent layers in place of attention.
        mlp_layers        for each layer, whether it is an MLP without a mixer. The others are
                          mixers without an MLP. () if each layer has both.
        experts           layers of experts in place of MLPs.
        n_dense_layers    in a model with experts, the number of leading layers without.
        parallel          mixer and MLP read the same rows, and both outputs are added to them.
        activation, gated_mlp
                          the activation function of an MLP, and whether it multiplies by a gate.
        mlp_limits        as `Experts.limits`, for MLPs and shared experts.
        required_tensors  tensors that every layer must have, although the shared parts treat them
                          as optional.

    Norms:

        norm, eps         kind and epsilon of all norms.
        pre_norms         the inputs of the mixer and of the MLP are normalised.
        post_norms        their outputs are normalised before they are added, with `post_eps` if
                          there is one.
        mixer_norm, mlp_norm, head_norm
                          tensors that normalise the input of the mixer, the MLP and the head.
        embed_norm        the embedding is normalised, without weight.

    Embedding and head:

        embed_scale       multiplies the embedding.
        learned_positions the embedding of a token's position is added to that of its id.
        logit_scale       multiplies the logits.
        logit_softcap     caps the logits; 0 for no cap.

    NextN blocks, which follow the layers and predict further tokens for speculation:

        n_nextn           their number.
        raw_nextn         they read hidden rows before the final norm, not after it.
        nextn_input       the rows that they read for further tokens.

    Encoders and rerankers:

        causal            a token sees the tokens before it only, as in every decoder.
        ranks             a head scores documents for queries.
        task_prompts      pairs of a purpose (query, document, classification, clustering,
                          similarity) and the text that the model expects before a text to embed
                          for it.

    Context:

        plain_context     longer sequences run with other RoPE frequencies
                          (zinc.models.parts.context); 0 if all run with the same.
        scaling_is_optional
                          the RoPE scaling in the file extends a model that was trained without it,
                          and costs quality in texts that do not need it.
    """

    arch: str
    n_layers: int
    hidden: int
    ffn: int
    vocab: int
    context: int
    eps: float
    attention: tuple[Attention, ...]
    recurrence: Recurrence | None = None
    mlp_layers: tuple[bool, ...] = ()
    experts: Experts | None = None
    n_dense_layers: int = 0
    parallel: bool = False
    activation: ActivationFn = ActivationFn.SILU
    gated_mlp: bool = True
    mlp_limits: tuple[float, ...] = ()
    required_tensors: tuple[str, ...] = ()
    norm: Norm = Norm.RMS
    pre_norms: bool = True
    post_norms: bool = False
    post_eps: float | None = None
    mixer_norm: str = "attn_norm"
    mlp_norm: str = "ffn_norm"
    head_norm: str = "output_norm"
    embed_norm: bool = False
    embed_scale: float = 1.0
    learned_positions: bool = False
    logit_scale: float = 1.0
    logit_softcap: float = 0.0
    n_nextn: int = 0
    raw_nextn: bool = False
    nextn_input: NextNInput = NextNInput.OWN
    causal: bool = True
    ranks: bool = False
    task_prompts: tuple[tuple[str, str], ...] = ()
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
        """Most tokens of a sequence for which sparse attention is dense; 0 if none is sparse."""
        return min((a.top_k for a in self.attention if a.top_k), default=0)

    def with_dense_attention(self) -> ModelSpec:
        """Return a copy whose queries see all positions, not those that an indexer selects."""
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
