"""What a model is, read from metadata once: numbers only, no tensors and no device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from zinc.core.errors import ModelError
from zinc.formats.gguf import GGUFArray, GGUFFile
from zinc.models.parts.rope import Rope, incomplete, rope_from

# Larger than any published model; what lies beyond is a damaged file, not a model.
MAX_LAYERS, MAX_HEADS, MAX_WIDTH, MAX_VOCAB = 1024, 1024, 1 << 20, 1 << 22


@dataclass(frozen=True, slots=True)
class Attention:
    """One attention layer: query heads share KV heads in groups of n_heads / n_kv_heads.

    `k_is_v`: values are the K projection before norm and RoPE, and there is no attn_v. `v_norm`:
    RMS norm without weight on every value head. `kv_layer`: the layer whose cache this one reads
    instead of having its own. `sinks`: a learned logit a head in the softmax denominator. `gated`:
    attn_q makes a gate beside each query head, whose sigmoid scales the output of that head.
    """

    n_heads: int
    n_kv_heads: int
    head_dim: int
    head_dim_v: int
    scale: float
    rope: Rope | None
    window: int = 0
    softcap: float = 0.0
    qk_norm: bool = False
    k_is_v: bool = False
    v_norm: bool = False
    kv_layer: int | None = None
    sinks: bool = False
    gated: bool = False

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
    """A feed-forward layer of `count` experts of width `ffn`, `top_k` of which a token runs.

    Scoring, groups and weights are those of the op `route`. `shared_ffn` is the width of the shared
    experts together (0: none), which `shared_gate` scales by sigmoid(gate(x)). `biases`: router and
    experts have biases.
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


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Sizes of a decoder: hidden width, feed-forward width, layers, vocabulary, context.

    The first `n_dense_layers` of a model with experts have none. `n_nextn` blocks follow the
    layers: they predict further tokens, for speculation, and are no part of the trunk.

    plain_context: sequences of more tokens run with other RoPE frequencies
    (zinc.models.parts.context); 0 when all run with the same. scaling_is_optional: the scaling that
    a file asks for extends a model that was trained without it, and costs quality in texts that do
    not need it.
    """

    arch: str
    n_layers: int
    hidden: int
    ffn: int
    vocab: int
    context: int
    eps: float
    attention: tuple[Attention, ...]  # one a layer
    activation: int = 0
    embed_scale: float = 1.0
    logit_softcap: float = 0.0
    experts: Experts | None = None
    n_dense_layers: int = 0
    n_nextn: int = 0
    post_norms: bool = False  # a norm after attention and one after the MLP, before the residual
    plain_context: int = 0
    scaling_is_optional: bool = False

    def ropes(self) -> list[Rope]:
        """The RoPE of every layer that has one."""
        return [a.rope for a in self.attention if a.rope is not None]

    def map_ropes(self, change: Callable[[Rope], Rope]) -> ModelSpec:
        """The same with each layer's RoPE changed."""
        layers = (a if a.rope is None else replace(a, rope=change(a.rope)) for a in self.attention)
        return replace(self, attention=tuple(layers))


class Metadata:
    """Numbers under `{arch}.` with their bounds checked."""

    def __init__(self, file: GGUFFile, arch: str) -> None:
        self.file, self.arch = file, arch

    def size(self, key: str, limit: int, default: int | None = None) -> int:
        """A positive integer of at most `limit`; raises ModelError otherwise."""
        name = f"{self.arch}.{key}"
        value = self.file.int(name) if default is None else self.file.int(name, default=default)
        if not 0 < value <= limit:
            raise ModelError(
                f"cannot load {self.file.path}",
                f"{name} is {value}, and it must lie between 1 and {limit}",
                "the file is damaged; download or convert it again",
            )
        return value

    def require(self, *keys: str) -> None:
        """Raises ModelError for a key whose default is right for other families only."""
        for key in keys:
            if f"{self.arch}.{key}" not in self.file.metadata:
                raise incomplete(self.file, f"{self.arch}.{key}")

    def layers(self) -> tuple[int, int]:
        """Layers of the trunk, and blocks after it that predict further tokens (NextN, MTP).

        `block_count` counts both.
        """
        n_blocks = self.size("block_count", MAX_LAYERS)
        n_nextn = self.optional_size("nextn_predict_layers", MAX_LAYERS)
        if n_nextn >= n_blocks:
            raise ModelError(
                f"cannot load {self.file.path}",
                f"{self.arch}.nextn_predict_layers is {n_nextn} of {n_blocks} blocks in all",
                "the file is damaged; download or convert it again",
            )
        return n_blocks - n_nextn, n_nextn

    def optional_size(self, key: str, limit: int) -> int:
        """A size, or 0 when the key is missing or 0: the feature is not there."""
        if self.file.int(f"{self.arch}.{key}", default=0) == 0:
            return 0
        return self.size(key, limit)

    def dense_width(self) -> int:
        """Width of the plain feed-forward layers; files of models that have none may omit it."""
        if self.optional_size("expert_count", MAX_WIDTH):
            return self.optional_size("feed_forward_length", MAX_WIDTH)
        return self.size("feed_forward_length", MAX_WIDTH)

    def optional_positive(self, key: str) -> float:
        """A positive number, or 0 when the key is missing or 0: the feature is not there."""
        if self.file.float(f"{self.arch}.{key}", default=0.0) == 0:
            return 0.0
        return self.positive(key)

    def sizes(self, key: str, limit: int, n_layers: int, default: int | None = None) -> list[int]:
        """One size for each layer: an array of at least `n_layers`, or one integer for all."""
        name = f"{self.arch}.{key}"
        if not isinstance(self.file.metadata.get(name), GGUFArray):
            return [self.size(key, limit, default)] * n_layers
        values = self.layer_values(key, n_layers)
        for i, value in enumerate(values):
            if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= limit:
                raise ModelError(
                    f"cannot load {self.file.path}",
                    f"{name} is {value!r} for layer {i}, and it must lie between 1 and {limit}",
                    "the file is damaged; download or convert it again",
                )
        return values

    def layer_values(self, key: str, n_layers: int) -> list[Any]:
        """The first `n_layers` elements of an array; raises ModelError when it is shorter."""
        array = self.file.array(f"{self.arch}.{key}")
        if len(array) < n_layers:
            raise ModelError(
                f"cannot load {self.file.path}",
                f"{self.arch}.{key} has {len(array)} elements for {n_layers} layers",
                "the file is damaged; download or convert it again",
            )
        return array[:n_layers]

    def sliding_layers(self, n_layers: int, period: int) -> list[bool]:
        """Which layers attend to a window only: by default all but the last of each `period`."""
        key = "attention.sliding_window_pattern"
        if isinstance(self.file.metadata.get(f"{self.arch}.{key}"), GGUFArray):
            pattern = self.layer_values(key, n_layers)
            if not all(isinstance(slides, int) for slides in pattern):
                raise ModelError(
                    f"cannot load {self.file.path}",
                    f"{self.arch}.{key} does not say yes or no for each layer",
                    "the file is damaged; download or convert it again",
                )
            return [bool(slides) for slides in pattern]
        period = self.size(key, MAX_LAYERS, default=period)
        return [(i + 1) % period != 0 for i in range(n_layers)]

    def query_scale(self, spec: ModelSpec, layers_of_largest: int) -> float:
        """1 / sqrt(d) of Gemma 2 and 3: d is the head size, hidden / heads in the largest model.

        No key of the files says so; it is known by its number of layers (google/gemma_pytorch,
        query_pre_attn_scalar). `attention.scale` goes before both.
        """
        a = spec.attention[0]
        d = spec.hidden // a.n_heads if spec.n_layers == layers_of_largest else a.head_dim
        return self.positive("attention.scale", default=max(1, d) ** -0.5)

    def check_sharing(self, n_heads: int, n_kv_heads: int) -> None:
        """Raises ModelError unless query heads share KV heads evenly."""
        if n_heads % n_kv_heads:
            raise ModelError(
                f"cannot load {self.file.path}",
                f"{n_heads} query heads cannot share {n_kv_heads} KV heads evenly",
                "the file is damaged; download or convert it again",
            )

    def positive(self, key: str, default: float | None = None) -> float:
        name = f"{self.arch}.{key}"
        value = self.file.float(name) if default is None else self.file.float(name, default=default)
        if not 0 < value < float("inf"):
            raise ModelError(
                f"cannot load {self.file.path}",
                f"{name} is {value}, and it must be a positive number",
                "the file is damaged; download or convert it again",
            )
        return value


def dense_spec(
    file: GGUFFile,
    arch: str,
    *,
    neox: bool,
    qk_norm: bool = False,
    scaling_is_optional: bool = False,
) -> ModelSpec:
    """The spec of a plain decoder whose layers are all alike."""
    m = Metadata(file, arch)
    hidden = m.size("embedding_length", MAX_WIDTH)
    n_layers, n_nextn = m.layers()
    n_heads = m.size("attention.head_count", MAX_HEADS)
    n_kv_heads = m.size("attention.head_count_kv", MAX_HEADS, default=n_heads)
    m.check_sharing(n_heads, n_kv_heads)
    head_dim = m.size("attention.key_length", MAX_WIDTH, default=max(1, hidden // n_heads))
    head_dim_v = m.size("attention.value_length", MAX_WIDTH, default=head_dim)
    rope: Rope = rope_from(file, arch, head_dim, neox=neox)
    attention = Attention(
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        scale=head_dim**-0.5,
        rope=rope,
        qk_norm=qk_norm,
    )
    return ModelSpec(
        arch=arch,
        n_layers=n_layers,
        hidden=hidden,
        ffn=m.dense_width(),
        vocab=vocab_size(file),
        context=m.size("context_length", 1 << 30),
        eps=m.positive("attention.layer_norm_rms_epsilon"),
        attention=(attention,) * n_layers,
        n_nextn=n_nextn,
        scaling_is_optional=scaling_is_optional,
    )


def vocab_size(file: GGUFFile) -> int:
    """Rows of the embedding: the metadata's own count is missing in many files."""
    tensor = file.tensors.get("token_embd.weight")
    if tensor is None or len(tensor.shape) != 2 or not 0 < tensor.shape[0] <= MAX_VOCAB:
        raise ModelError(
            f"cannot load {file.path}",
            "the tensor token_embd.weight is missing or not a matrix [vocabulary, hidden]",
            "the file is incomplete; download or convert it again",
        )
    return tensor.shape[0]
