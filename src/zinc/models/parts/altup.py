"""Alternating updates (Baykal et al. 2023, AltUp): several hidden states of each token.

A row holds the states side by side, [n * hidden]. A layer predicts every state from all states, and
runs on the prediction of the active state only. It then corrects every prediction by the change of
the active state.
"""

from __future__ import annotations

from zinc.core.dataclass import dataclass
from zinc.models.parts.layer import Layer
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph
from zinc.ops.values import Constant, Value, Weight

MIN_SQUARE = 1e-5  # least mean square of a projection that is scaled to the RMS of its source


@dataclass(frozen=True, slots=True)
class AltUp:
    """The `n` hidden states of a token. Layers run on the one of index `active`.

    hidden: columns of a state.
    """

    n: int
    active: int
    hidden: int

    def activated(self, g: Graph, states: Value) -> Value:
        """Return the active one of `states` [tokens, n * hidden]."""
        return g.columns(states, self.active * self.hidden, self.hidden)

    def first(self, g: Graph, states: Value) -> Value:
        return g.columns(states, 0, self.hidden)

    def others(self, g: Graph, states: Value) -> Value:
        """Return all states but the first."""
        return g.columns(states, self.hidden, (self.n - 1) * self.hidden)

    def expanded(self, g: Graph, w: Weights, x: Value) -> Value:
        """Return the states of rows x [tokens, hidden]: x and its projections of the same RMS."""
        repeated = g.mix(x, None, n_outputs=self.n - 1)
        projected = g.head_linear(repeated, self._projections(w, "altup_proj"))
        return g.concat_heads(x, g.match_rms(projected, x, eps=MIN_SQUARE), n_heads=1)

    def merged(self, g: Graph, w: Weights, states: Value) -> Value:
        """Return the mean [tokens, hidden] of the first state and the projections of the others.

        Projections are scaled to the RMS of the first state.
        """
        first = self.first(g, states)
        others = g.head_linear(self.others(g, states), self._projections(w, "altup_unembd_proj"))
        others = g.match_rms(others, first, eps=MIN_SQUARE)
        return g.scale(g.add(g.mix(others, None, n_inputs=self.n - 1), first), 1 / self.n)

    def _projections(self, w: Weights, name: str) -> Weight:
        return w.matrix(name, self.hidden, self.hidden, self.n - 1)

    def predicted(self, layer: Layer, states: Value) -> Value:
        """Return predictions of all states: sums of the states with the token's coefficients."""
        g, n = layer.g, self.n
        modes = self._modes(layer, self.activated(g, states))
        coefficients = g.linear(modes, layer.w.matrix("altup_predict_coef", n * n, n))
        return g.add(g.mix(states, coefficients, n_inputs=n, n_outputs=n), states)

    def corrected(self, layer: Layer, predicted: Value, x: Value) -> Value:
        """Return the states after a layer with output x [tokens, hidden] for the active state."""
        g, n = layer.g, self.n
        one = Constant(f"ones_{n}", (1.0,) * n)
        coefficients = layer.w.matrix("altup_correct_coef", n, n)
        factors = g.linear(self._modes(layer, x), coefficients, one)
        change = g.add(g.scale(self.activated(g, predicted), -1.0), x)
        return g.add(g.mix(change, factors, n_outputs=n), predicted)

    def _modes(self, layer: Layer, x: Value) -> Value:
        """Return the numbers [tokens, n] from which the coefficients of a token are made."""
        normed = layer.norm(x, "altup_router_norm")
        routed = layer.g.linear(normed, layer.w.matrix("altup_router", self.n, self.hidden))
        return layer.g.softcap(layer.g.scale(routed, 1 / self.hidden), 1.0)
