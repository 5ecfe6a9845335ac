"""The context in which a block of one layer adds its nodes to the graph."""

from __future__ import annotations

from dataclasses import field

from zinc.core.dataclass import dataclass
from zinc.models.parts.rope import Rope
from zinc.models.parts.spec import Attention, ModelSpec, Norm
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph
from zinc.ops.values import ActivationFn, Value


@dataclass(slots=True)
class RopeTables:
    """One table of cosines and sines for each distinct RoPE of a model."""

    tables: dict[Rope, Value] = field(default_factory=dict)

    def get(self, g: Graph, rope: Rope) -> Value:
        """Return the table for `rope`, and add it to the graph when a layer first needs it."""
        if rope not in self.tables:
            self.tables[rope] = g.rope_table(
                rope.inverse_frequencies(),
                scale=rope.scale,
                log_scale=rope.log_scale,
                period=rope.original_context or 1,
                offset=rope.offset,
            )
        return self.tables[rope]


@dataclass(slots=True)
class KeySelection:
    """The positions that the last layer with an indexer selected (zinc.models.parts.indexer)."""

    keys: Value | None = None


def normalise(
    g: Graph, spec: ModelSpec, w: Weights, x: Value, name: str, eps: float | None = None
) -> Value:
    """Return rows x [rows, hidden] after the model's kind of norm, with the weight `name`.

    eps: that of the model by default.
    """
    weight, eps = w.norm(name, spec.hidden), eps or spec.eps
    if spec.norm is Norm.RMS:
        return g.rms_norm(x, weight, eps=eps)
    bias = w.vector(name, spec.hidden, "bias") if spec.norm is Norm.LAYER_WITH_BIAS else None
    return g.layer_norm(x, weight, bias, eps=eps)


@dataclass(frozen=True, slots=True)
class Layer:
    """Layer `index` of a model: `w` holds its tensors; all layers share `ropes` and `selection`."""

    g: Graph
    spec: ModelSpec
    index: int
    w: Weights
    ropes: RopeTables
    selection: KeySelection = field(default_factory=KeySelection)

    @property
    def name(self) -> str:
        """Name of the layer in the file, which also names its cache and its launches."""
        return f"blk.{self.index}"

    @property
    def attention(self) -> Attention:
        return self.spec.attention[self.index]

    def norm(self, x: Value, name: str) -> Value:
        """Return the norm of rows x [tokens, hidden] with the weight `name`."""
        return normalise(self.g, self.spec, self.w, x, name)

    def activation(self, limits: tuple[float, ...]) -> tuple[ActivationFn, dict[str, float]]:
        """Return the activation function of an MLP or of experts, and its attributes.

        limits: the limit of activations in each layer, 0 for no limit; () if no layer has one.
        """
        limit = limits[self.index] if limits else 0.0
        if limit and self.spec.activation is ActivationFn.SILU:
            return ActivationFn.LIMITED_SILU, {"limit": limit}
        if self.spec.activation is ActivationFn.CLAMPED_SWIGLU:
            return self.spec.activation, {"alpha": 1.702, "limit": 7.0}
        return self.spec.activation, {}

    def residual(self, h: Value, x: Value, norm: str) -> Value:
        """Return x + h for the output h [tokens, hidden] of a mixer or an MLP.

        With `post_norms`, h is normalised with the weight `norm`.
        """
        if self.spec.post_norms:
            h = normalise(self.g, self.spec, self.w, h, norm, self.spec.post_eps)
        return self.g.add(h, x)

    def linear(self, x: Value, name: str, rows: int, cols: int | None = None) -> Value:
        """Return rows x [tokens, cols] times matrix `name` [rows, cols], plus its bias if any.

        `cols` is the hidden width by default.
        """
        cols = self.spec.hidden if cols is None else cols
        return self.g.linear(x, self.w.matrix(name, rows, cols), self.w.bias(name, rows))
