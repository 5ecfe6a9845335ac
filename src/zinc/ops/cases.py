"""Generated op tests: a case is a small graph, the tensors it names and a step to run it on.

Rows come from embedding a random float32 table, so a case needs nothing from a backend that a model
does not. The harness runs the case on `ref` and on every backend present and compares outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from zinc.ops.graph import Constant, Dim, FloatArray, Graph, KVState, Value, Weight
from zinc.ops.step import Step
from zinc.quant.blocks import GGMLType


@dataclass(slots=True)
class Case:
    """`graph.output` is what is compared; `tensors` holds float32 data for each Weight by name."""

    name: str
    n_tokens: int = 5
    graph: Graph = field(default_factory=Graph)
    tensors: dict[str, FloatArray] = field(default_factory=dict)
    types: dict[str, GGMLType] = field(default_factory=dict)
    sequences: Sequence[int] = ()
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))

    def rows(self, cols: int, scale: float = 1.0) -> Value:
        """Random rows [tokens, cols]."""
        return self.graph.embed(self.matrix(self.n_tokens, cols, scale=scale))

    def matrix(
        self, rows: int, cols: int, type: GGMLType = GGMLType.F32, scale: float = 1.0
    ) -> Weight:
        data = self.rng.standard_normal((rows, cols)).astype(np.float32) * np.float32(scale)
        return self._add(data, type)

    def experts(
        self,
        planes: int,
        rows: int,
        cols: int,
        type: GGMLType = GGMLType.F32,
        scale: float = 1.0,
    ) -> Weight:
        """A matrix of each expert, or of each head: [planes, rows, cols]."""
        data = self.rng.standard_normal((planes, rows, cols)).astype(np.float32)
        return self._add(data * np.float32(scale), type)

    def vector(self, cols: int) -> Weight:
        return self._add(self.rng.standard_normal(cols).astype(np.float32), GGMLType.F32)

    def given(self, values: FloatArray) -> Weight:
        """A float32 tensor of these values."""
        return self._add(values, GGMLType.F32)

    def _add(self, data: FloatArray, type: GGMLType) -> Weight:
        weight = Weight(f"w{len(self.tensors)}", type, tuple(data.shape))
        self.tensors[weight.name] = data
        return weight

    def rope_frequencies(self, rope_dims: int) -> Constant:
        i = np.arange(rope_dims // 2)
        return Constant("inv_freq", tuple((10000.0 ** (-2.0 * i / rope_dims)).tolist()))

    def kv(self, n_heads: int, head_dim: int, window: int = 0) -> KVState:
        return KVState("kv", n_heads, head_dim, head_dim, window)

    def returns(self, out: Value) -> Case:
        """Selects every row when `out` has one a token, so that the step has outputs."""
        self.graph.output = out if out.dim is Dim.OUTPUTS else self.graph.select_rows(out)
        return self

    def step(self, block_tokens: int) -> Step:
        """All tokens at once: `sequences` lists how many tokens each sequence has."""
        lengths = list(self.sequences) or [self.n_tokens]
        assert sum(lengths) == self.n_tokens
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        n_blocks = max(-(-n // block_tokens) for n in lengths)
        table = np.arange(len(lengths) * n_blocks, dtype=np.int32).reshape(len(lengths), -1)
        every = np.arange(self.n_tokens, dtype=np.int32)
        return Step(
            ids=every,
            positions=np.concatenate([np.arange(n, dtype=np.int32) for n in lengths]),
            sequence=np.repeat(np.arange(len(lengths), dtype=np.int32), lengths),
            output_rows=every,
            seq_start=starts,
            state_slot=np.arange(len(lengths), dtype=np.int32),
            tables=(table,),
        )
