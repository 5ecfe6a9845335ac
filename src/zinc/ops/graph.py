"""The graph that a model file builds: semantic ops over rows of activations.

A `Graph` is a list of nodes in program order. Values are matrices [rows, cols] whose number of rows
follows from a `Dim` in each step (tokens, output rows, sequences), so one graph serves prefill,
decode and any mix of sequences. Devices, fusions and addresses are added by the plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from zinc.ops.node import Node
from zinc.ops.values import (
    ActivationFn,
    AttrValue,
    Constant,
    Dim,
    Input,
    KVState,
    RecurrentState,
    RowFormat,
    Value,
    Weight,
)


class Graph:
    """A builder of nodes. Each method adds one op; `zinc.ops` defines what it computes.

    output: the logits, or other rows of outputs. given: rows that the host writes before a step.
    hidden: rows that the host can read after a step, in addition to the output.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.output: Value | None = None
        self.given: Value | None = None
        self.hidden: Value | None = None
        self._n_values = 0
        self._label = ""

    def at(self, label: str) -> None:
        """Set the label of the nodes that are added next."""
        self._label = label

    def value(self, dim: Dim, cols: int, format: RowFormat = RowFormat.F32) -> Value:
        """Return a new value."""
        self._n_values += 1
        return Value(self._n_values, dim, cols, format)

    def node(
        self,
        op: str,
        inputs: Sequence[Input],
        cols: int | None,
        *,
        dim: Dim = Dim.TOKENS,
        **attrs: AttrValue,
    ) -> Value | None:
        """Append a node with one output of `cols` columns, or without output if `cols` is None."""
        out = None if cols is None else self.value(dim, cols)
        self._append(op, inputs, () if out is None else (out,), attrs)
        return out

    def _append(
        self,
        op: str,
        inputs: Sequence[Input],
        outputs: tuple[Value, ...],
        attrs: Mapping[str, AttrValue],
    ) -> None:
        frozen = MappingProxyType(dict(attrs))
        self.nodes.append(Node(op, tuple(inputs), outputs, frozen, self._label))

    def _make(
        self, op: str, inputs: Sequence[Input], cols: int, dim: Dim, **attrs: AttrValue
    ) -> Value:
        out = self.node(op, inputs, cols, dim=dim, **attrs)
        assert out is not None
        return out

    def given_rows(self, cols: int) -> Value:
        """Return the rows [tokens, cols] that the host writes before a step."""
        self.given = self.value(Dim.TOKENS, cols)
        return self.given

    def embed(self, table: Weight, *, scale: float = 1.0) -> Value:
        """Return the embedding of each token, times `scale`."""
        return self._make("embed", [table], table.cols, Dim.TOKENS, scale=scale)

    def embed_positions(self, table: Weight) -> Value:
        """Return the row of `table` [positions, cols] of the position of each token."""
        attrs = {"scale": 1.0, "by_position": 1}
        return self._make("embed", [table], table.cols, Dim.TOKENS, **attrs)

    def rms_norm(
        self,
        x: Value,
        weight: Weight | Constant | None,
        *,
        eps: float,
        group: int | None = None,
    ) -> Value:
        """Normalise each run of `group` columns (default: the row) and scale it by `weight`."""
        group = group or x.cols
        return self._make("rms_norm", [x, weight, None], x.cols, x.dim, eps=eps, group=group)

    def layer_norm(
        self,
        x: Value,
        weight: Weight | None,
        bias: Weight | None,
        *,
        eps: float,
        group: int | None = None,
    ) -> Value:
        """Normalise each run of `group` columns (default: the row) to mean 0 and variance 1.

        weight and bias have an element for each column of x.
        """
        group = group or x.cols
        return self._make("layer_norm", [x, weight, bias], x.cols, x.dim, eps=eps, group=group)

    def match_rms(self, x: Value, like: Value, *, eps: float) -> Value:
        """Return each run of columns of x, as wide as `like`, scaled to the RMS of `like`.

        eps: lower bound of the mean square of x.
        """
        assert x.cols % like.cols == 0
        return self._make("match_rms", [x, like], x.cols, x.dim, eps=eps)

    def statistical_top(self, x: Value, *, cut: float) -> Value:
        """Return max(0, x - mean(x) - cut * std(x)) for each row."""
        return self._make("statistical_top", [x], x.cols, x.dim, cut=cut)

    def linear(self, x: Value, weight: Weight, bias: Weight | Constant | None = None) -> Value:
        """Return x [rows, cols] times weight [out, cols] transposed, plus bias [out]."""
        return self._make("linear", [x, weight, bias, None], weight.rows, x.dim, n_parts=1)

    def lora(
        self, x: Value, parts: Sequence[tuple[Value, Weight | None, Weight]], *, adapter: int
    ) -> list[Value]:
        """Return y + scale * (x @ a.T) @ b.T for each part (y, a, b): an adapter of products of x.

        a [rank, cols], b [out, rank]. Without a, x has `rank` columns. The step has the scales.
        """
        outputs = tuple(self.value(x.dim, y.cols) for y, _, _ in parts)
        attrs = {"adapter": adapter, "of_outputs": int(x.dim is Dim.OUTPUTS)}
        inputs = (x, *(operand for part in parts for operand in part))
        self._append("lora", inputs, outputs, attrs)
        return list(outputs)

    def glu(
        self, gate: Value, up: Value | None, *, activation: ActivationFn, **attrs: float
    ) -> Value:
        """Return activation(gate) * up, or activation(gate) if `up` is None."""
        return self._make(
            "glu", [gate, up], gate.cols, gate.dim, activation=int(activation), **attrs
        )

    def rope_table(
        self,
        inv_freq: Constant,
        *,
        scale: float = 1.0,
        log_scale: float = 0.0,
        period: int = 1,
        offset: int = 0,
    ) -> Value:
        """Return the cosines and sines of a step, for `rope`.

        With `log_scale`, `scale` grows by the factor
        1 + log_scale * log(1 + (position + offset) // period).
        """
        grows = {"log_scale": log_scale, "period": period} if log_scale else {}
        attrs = {"scale": scale, **grows, **({"offset": offset} if offset else {})}
        return self._make("rope_table", [inv_freq], 2 * inv_freq.cols, Dim.TOKENS, **attrs)

    def rope(self, x: Value, table: Value, *, head_dim: int, neox: bool) -> Value:
        """Rotate the first `table.cols` dimensions of every head."""
        return self._make(
            "rope", [x, table], x.cols, x.dim, head_dim=head_dim, rope_dims=table.cols, neox=neox
        )

    def kv_store(self, k: Value, v: Value | None, state: KVState) -> None:
        """Store keys and values. v is None if and only if the state has its values in the keys."""
        assert (v is None) == state.v_from_k
        self.node("kv_store", [k, v, state], None)

    def attention(
        self,
        q: Value,
        state: KVState,
        sinks: Weight | None = None,
        *,
        scale: float,
        softcap: float = 0.0,
        causal: bool = True,
        window: int | None = None,
        chunked: bool = False,
        slopes: Weight | Constant | None = None,
        keys: Value | None = None,
    ) -> Value:
        """Return attention of q [tokens, heads * head_dim] over the cached keys and values.

        Without `causal`, a token also sees the tokens of its sequence that follow it in the step.
        window: the number of last positions that a token sees (default: that of the cache; 0: all).
        chunked: a window starts at a multiple of its size instead of sliding. slopes: ALiBi, a
        factor of the distance for each head. keys: the positions that each token sees
        (`select_keys`); None for all.
        """
        assert causal or not chunked
        n_heads = q.cols // state.head_dim
        return self._make(
            "attention",
            [q, state, sinks, slopes, keys],
            n_heads * state.head_dim_v,
            q.dim,
            n_heads=n_heads,
            scale=scale,
            window=state.window if window is None else window,
            softcap=softcap,
            **({} if causal else {"causal": 0}),
            **({"chunked": 1} if chunked else {}),
        )

    def select_keys(self, q: Value, weights: Value, state: KVState, *, top_k: int) -> Value:
        """Return the cached positions [tokens, top_k] with the largest index scores.

        The heads of q have the width of the keys in `state`, and a weight each.
        """
        assert state.n_heads == 1
        assert q.cols == weights.cols * state.head_dim
        return self._make("select_keys", [q, weights, state], top_k, q.dim, top_k=top_k)

    def add(self, a: Value, b: Value) -> Value:
        """Return a + b."""
        return self._make("add", [a, b], a.cols, a.dim)

    def mix(
        self,
        x: Value,
        coefficients: Value | None,
        *,
        n_inputs: int = 1,
        n_outputs: int = 1,
        weight: Weight | None = None,
    ) -> Value:
        """Return y_i = weight * sum over j of c_ij x_j for `n_inputs` runs of columns x_j.

        A row of `coefficients` is [n_outputs, n_inputs]; without them all are 1. The weight has an
        element for each column of a run.
        """
        assert x.cols % n_inputs == 0
        assert coefficients is None or coefficients.cols == n_outputs * n_inputs
        cols = x.cols // n_inputs * n_outputs
        attrs = {"n_inputs": n_inputs, "n_outputs": n_outputs}
        return self._make("mix", [x, coefficients, weight, None], cols, x.dim, **attrs)

    def columns(self, x: Value, first: int, cols: int) -> Value:
        """Return columns [first, first + cols) of x. The planner makes it a view, never a copy."""
        assert 0 <= first <= first + cols <= x.cols
        return self._make("columns", [x], cols, x.dim, first=first, width=cols)

    def scale(self, x: Value, factor: float) -> Value:
        """Return x * factor."""
        return self._make("scale", [x], x.cols, x.dim, factor=factor)

    def softcap(self, x: Value, cap: float) -> Value:
        """Return cap * tanh(x / cap)."""
        return self._make("softcap", [x], x.cols, x.dim, cap=cap)

    def select_rows(self, x: Value) -> Value:
        """Return the token rows whose logits the step wants."""
        return self._make("select_rows", [x], x.cols, Dim.OUTPUTS)

    def sample(self, logits: Value) -> Value:
        """Return the token sampled for each output row, and the largest logit of the row."""
        return self._make("sample", [logits], 2, Dim.OUTPUTS)

    def gate(self, x: Value, g: Value, *, softplus: bool = False) -> Value:
        """Return x * sigmoid(g), where each column of g scales x.cols / g.cols columns of x.

        With `softplus`, return x * softplus(g).
        """
        assert x.cols % g.cols == 0
        return self._make("gate", [x, g], x.cols, x.dim, **({"softplus": 1} if softplus else {}))

    def gated_norm(
        self,
        x: Value,
        z: Value,
        weight: Weight,
        *,
        eps: float,
        group: int = 0,
        gate_first: bool = False,
    ) -> Value:
        """Return rms_norm(x) * weight * silu(z) for each run of weight.cols columns.

        With `gate_first`, return rms_norm(x * silu(z)) * weight for each run of `group` columns,
        and the weight has an element for each column.
        """
        assert x.cols == z.cols
        assert weight.cols == x.cols or not gate_first
        return self._make(
            "gated_norm",
            [x, z, weight],
            x.cols,
            x.dim,
            eps=eps,
            group=group or weight.cols,
            gate_first=int(gate_first),
        )

    def causal_conv(
        self,
        x: Value,
        weight: Weight,
        state: RecurrentState,
        *,
        bias: Weight | None = None,
        silu: bool = True,
    ) -> Value:
        """Return a causal convolution along the sequence, separately for each channel.

        weight is flat, [channels * taps]; the last tap multiplies the row itself. The bias has an
        element for each channel. With `silu`, SiLU is applied to the sum.
        """
        taps = weight.cols // x.cols
        assert weight.cols == taps * x.cols
        assert state.floats == (taps - 1) * x.cols
        return self._make(
            "causal_conv", [x, weight, bias, state], x.cols, x.dim, taps=taps, silu=int(silu)
        )

    def delta_rule(
        self,
        qkv: Value,
        alpha: Value,
        beta: Value,
        decay: Weight,
        decay_bias: Weight,
        state: RecurrentState,
        *,
        n_k_heads: int,
        k_dim: int,
        v_dim: int,
        grouped: bool,
        floor: float = 0.0,
    ) -> Value:
        """Run the gated delta rule on rows [q heads | k heads | v heads] (zinc.ops.recurrent).

        beta has a column, decay an element for each value head, and so do alpha and decay_bias, or
        they have k_dim of them for each. A value head reads key head h // (n_v_heads / n_k_heads)
        if `grouped`, else h mod n_k_heads. floor: the lowest logarithm of a decay, 0 for none.
        """
        n_v_heads = decay.cols
        channels = alpha.cols // n_v_heads
        assert beta.cols == n_v_heads
        assert alpha.cols == decay_bias.cols == channels * n_v_heads
        assert channels in (1, k_dim)
        assert qkv.cols == 2 * n_k_heads * k_dim + n_v_heads * v_dim
        return self._make(
            "delta_rule",
            [qkv, alpha, beta, decay, decay_bias, state],
            n_v_heads * v_dim,
            qkv.dim,
            n_k_heads=n_k_heads,
            n_v_heads=n_v_heads,
            k_dim=k_dim,
            v_dim=v_dim,
            grouped=int(grouped),
            **({"per_channel": 1} if channels > 1 else {}),
            **({"floor": floor} if floor else {}),
        )

    def ssm_scan(
        self,
        xbc: Value,
        dt: Value,
        decay: Weight,
        dt_bias: Weight,
        skip: Weight,
        state: RecurrentState,
        *,
        n_groups: int,
        state_dim: int,
        head_dim: int,
    ) -> Value:
        """Run the scan of Mamba-2 on rows [x of all heads | B | C of all groups] (zinc.ops.ssm).

        dt has a column, decay, dt_bias and skip an element for each head. A head reads B and C of
        group h // (heads / n_groups).
        """
        n_heads = dt.cols
        assert decay.cols == dt_bias.cols == skip.cols == n_heads
        assert xbc.cols == n_heads * head_dim + 2 * n_groups * state_dim
        return self._make(
            "ssm_scan",
            [xbc, dt, decay, dt_bias, skip, state],
            n_heads * head_dim,
            xbc.dim,
            n_k_heads=n_groups,
            n_v_heads=n_heads,
            k_dim=state_dim,
            v_dim=head_dim,
        )

    def selective_scan(
        self,
        x: Value,
        dt: Value,
        b: Value,
        c: Value,
        decay: Weight,
        dt_bias: Weight,
        skip: Weight,
        state: RecurrentState,
    ) -> Value:
        """Run the scan of Mamba over rows of channels x (zinc.ops.selective_scan).

        B and C have a column for each number of a channel's state; decay is flat, [channels, size].
        """
        assert x.cols == dt.cols == dt_bias.cols == skip.cols
        assert b.cols == c.cols
        assert decay.cols == x.cols * b.cols
        return self._make(
            "selective_scan", [x, dt, b, c, decay, dt_bias, skip, state], x.cols, x.dim
        )

    def token_shift(self, x: Value, weight: Weight, state: RecurrentState) -> Value:
        """Return x + weight * (the row before it - x), for each run of columns of the weight.

        weight is flat, [runs * x.cols], and so is a row of the result.
        """
        assert weight.cols % x.cols == 0
        assert state.floats == x.cols
        return self._make("token_shift", [x, weight, state], weight.cols, x.dim)

    def wkv7(
        self,
        r: Value,
        w: Value,
        k: Value,
        v: Value,
        a: Value,
        first: Value | None,
        mix: Value | None,
        *,
        removal: Weight,
        scaling: Weight,
        bonus: Weight,
        state: RecurrentState,
        head_dim: int,
    ) -> Value:
        """Run the recurrence of RWKV-7 over heads of `head_dim` columns (zinc.ops.wkv).

        A row of the result is [output of each head | bonus of each head]. first, mix: values of the
        first layer and the logits of their shares, None in that layer.
        """
        assert r.cols % head_dim == 0
        assert (first is None) == (mix is None)
        inputs: list[Input] = [r, w, k, v, a, first, mix, removal, scaling, bonus, state]
        return self._make("wkv7", inputs, 2 * r.cols, r.dim, head_dim=head_dim)

    def concat_heads(self, a: Value, b: Value, *, n_heads: int) -> Value:
        """Concatenate each head of a with the same head of b."""
        return self._make("concat_heads", [a, b], a.cols + b.cols, a.dim, n_heads=n_heads)

    def head_linear(self, x: Value, weight: Weight, n_heads: int | None = None) -> Value:
        """Return each head of x times its own plane of weight [heads, rows, cols], transposed.

        A weight [heads * rows, cols] is divided into `n_heads` planes.
        """
        n_heads = n_heads or weight.planes
        assert x.cols == n_heads * weight.cols
        return self._make(
            "head_linear", [x, weight], weight.planes * weight.rows, x.dim, n_heads=n_heads
        )

    def route(
        self,
        logits: Value,
        bias: Weight | None,
        *,
        top_k: int,
        scoring: int,
        renormalise: bool = False,
        scale: float = 1.0,
        n_groups: int = 1,
        top_groups: int = 1,
        group_top: int = 1,
    ) -> Value:
        """Return expert ids and weights [tokens, 2 top_k] from logits [tokens, experts]."""
        return self._make(
            "route",
            [logits, bias],
            2 * top_k,
            logits.dim,
            top_k=top_k,
            scoring=scoring,
            renormalise=int(renormalise),
            scale=scale,
            n_groups=n_groups,
            top_groups=top_groups,
            group_top=group_top,
        )

    def group_experts(self, routes: Value, *, n_experts: int) -> tuple[Value, Value]:
        """Return the slots (token * top_k + rank) by expert, and where each expert starts."""
        order = self.value(routes.dim, routes.cols // 2)
        starts = self.value(Dim.CONSTANT, n_experts + 1)
        self._append("group_experts", [routes], (order, starts), {"n_experts": n_experts})
        return order, starts

    def moe_glu(
        self,
        x: Value,
        order: Value,
        starts: Value,
        gate: Weight,
        up: Weight | None,
        gate_bias: Weight | None = None,
        up_bias: Weight | None = None,
        *,
        activation: ActivationFn,
        **attrs: float,
    ) -> Value:
        """Return activation(gate(x)) * up(x) for the experts of each token's slots.

        Without `up`, return activation(gate(x)). Experts are [experts, ff, hidden].
        """
        out = replace(self.value(x.dim, order.cols * gate.rows), runs=order.cols)
        inputs = (x, order, starts, gate, up, gate_bias, up_bias)
        self._append("moe_glu", inputs, (out,), {"activation": int(activation), **attrs})
        return out

    def moe_down(
        self,
        h: Value,
        order: Value,
        starts: Value,
        routes: Value,
        down: Weight,
        bias: Weight | None = None,
        scale: Weight | None = None,
    ) -> Value:
        """Return the weighted sum of down(h) over the slots of each token.

        Experts are [experts, hidden, ff].
        """
        assert h.cols == order.cols * down.cols
        inputs: list[Input] = [h, order, starts, routes, down, bias, scale, None]
        return self._make("moe_down", inputs, down.rows, h.dim)
