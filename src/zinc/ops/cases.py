"""Test cases of ops: a small graph, the tensors it names and a step to run it on.

Rows come from embedding a random float32 table, so a case needs no more from a backend than a model
does. Tests run a case on `ref` and on every backend present and compare the outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field

import numpy as np
import numpy.typing as npt

from zinc.core.dataclass import dataclass
from zinc.core.rounding import ceil_div
from zinc.ops.graph import Graph
from zinc.ops.penalties import StepPenalties
from zinc.ops.random_blocks import random_blocks
from zinc.ops.step import SampleParamsArray, Step
from zinc.ops.values import Constant, Dim, FloatArray, KVState, Value, Weight
from zinc.quant.blocks import GGMLType
from zinc.quant.encode import ENCODERS, encode

_NOT_WEIGHTS = {
    GGMLType.Q8_1, GGMLType.Q8_K,  # activations
    GGMLType.F64, GGMLType.I8, GGMLType.I16, GGMLType.I32, GGMLType.I64,
}  # fmt: skip
WEIGHT_TYPES = tuple(type for type in GGMLType if type not in _NOT_WEIGHTS)
"""Types that matrices of a model may have."""


class RandomData:
    """The data of the weights of a case, generated when it is first read.

    Most users of the registry plan a few of its cases, and the data of all takes seconds. Weights
    draw from one generator in the order in which they were added, so the values do not depend on
    when they are read.
    """

    def __init__(self) -> None:
        self._rng = np.random.default_rng(7)
        self._tensors: dict[str, FloatArray] = {}
        self._blocks: dict[str, npt.NDArray[np.uint8]] = {}
        self._pending: list[Callable[[], None]] = []
        self._encoded: dict[str, npt.NDArray[np.uint8]] = {}
        self._n_weights = 0

    @property
    def rng(self) -> np.random.Generator:
        """The generator, after it has generated the data of all weights so far."""
        self._generate()
        return self._rng

    @property
    def tensors(self) -> dict[str, FloatArray]:
        """Float32 data by the name of the weight."""
        self._generate()
        return self._tensors

    @property
    def blocks(self) -> dict[str, npt.NDArray[np.uint8]]:
        """Bytes by the name of the weight, for types that zinc does not encode."""
        self._generate()
        return self._blocks

    def add(self, shape: tuple[int, ...], type: GGMLType, scale: float) -> Weight:
        """Add a random weight."""
        weight = self._weight(shape, type)

        def generate() -> None:
            if type in ENCODERS:
                values = self._rng.standard_normal(shape).astype(np.float32)
                self._tensors[weight.name] = values * np.float32(scale)
            else:
                self._blocks[weight.name] = random_blocks(self._rng, type, shape, scale)

        self._pending.append(generate)
        return weight

    def give(self, values: FloatArray) -> Weight:
        """Add a float32 weight with these values."""
        weight = self._weight(values.shape, GGMLType.F32)
        self._pending.append(lambda: self._tensors.update({weight.name: values}))
        return weight

    def encoded(self, weight: Weight) -> npt.NDArray[np.uint8]:
        """Return the bytes of a weight, which are encoded once for all backends."""
        if weight.name in self.blocks:
            return self.blocks[weight.name]
        if weight.type is GGMLType.F32:  # tests change these values
            return encode(self.tensors[weight.name], weight.type).reshape(-1)
        if weight.name not in self._encoded:
            data = encode(self.tensors[weight.name], weight.type)
            self._encoded[weight.name] = data.reshape(-1)
        return self._encoded[weight.name]

    def _weight(self, shape: tuple[int, ...], type: GGMLType) -> Weight:
        self._n_weights += 1
        return Weight(f"w{self._n_weights - 1}", type, shape)

    def _generate(self) -> None:
        pending, self._pending = self._pending, []
        for generate in pending:
            generate()


@dataclass(slots=True)
class Case:
    """A small graph with its tensors, whose output is compared between backends.

    sample_params, penalties: how the step samples tokens, if it does. cached: tokens that each
    sequence has before the step. adapters: as in `Step`.
    """

    name: str
    n_tokens: int = 5
    graph: Graph = field(default_factory=Graph)
    sequences: Sequence[int] = ()
    cached: int = 0
    sample_params: SampleParamsArray | None = None
    penalties: StepPenalties | None = None
    adapters: FloatArray | None = None
    random: RandomData = field(default_factory=RandomData)

    @property
    def rng(self) -> np.random.Generator:
        """The generator of the case's data."""
        return self.random.rng

    @property
    def tensors(self) -> dict[str, FloatArray]:
        """Float32 data of each weight by name."""
        return self.random.tensors

    @property
    def blocks(self) -> dict[str, npt.NDArray[np.uint8]]:
        """The bytes of each weight of a type that zinc does not encode, by name."""
        return self.random.blocks

    def rows(self, cols: int, scale: float = 1.0) -> Value:
        """Return random rows [tokens, cols], different for each token of the step and before it."""
        return self.graph.embed(self.matrix(self.n_ids, cols, scale=scale))

    def matrix(
        self, rows: int, cols: int, type: GGMLType = GGMLType.F32, scale: float = 1.0
    ) -> Weight:
        """Return a random matrix [rows, cols]."""
        return self.random.add((rows, cols), type, scale)

    def experts(
        self,
        planes: int,
        rows: int,
        cols: int,
        type: GGMLType = GGMLType.F32,
        scale: float = 1.0,
    ) -> Weight:
        """Return random matrices [planes, rows, cols], one for each expert or head."""
        return self.random.add((planes, rows, cols), type, scale)

    def vector(self, cols: int) -> Weight:
        """Return a random float32 vector [cols]."""
        return self.random.add((cols,), GGMLType.F32, 1.0)

    def given(self, values: FloatArray) -> Weight:
        """Return a float32 tensor with these values."""
        return self.random.give(values)

    @property
    def weights(self) -> set[Weight]:
        return {x for node in self.graph.nodes for x in node.inputs if isinstance(x, Weight)}

    def data(self, weight: Weight) -> npt.NDArray[np.uint8]:
        """Return the bytes of a weight as a file has them, flat."""
        return self.random.encoded(weight)

    def rope_frequencies(self, rope_dims: int) -> Constant:
        """Return the inverse frequencies of RoPE with base 10,000."""
        i = np.arange(rope_dims // 2)
        return Constant("inv_freq", tuple((10000.0 ** (-2.0 * i / rope_dims)).tolist()))

    def kv(self, n_heads: int, head_dim: int, window: int = 0) -> KVState:
        """Return the KV cache of a layer."""
        return KVState("kv", n_heads, head_dim, head_dim, window)

    def selection(self, n_heads: int, head_dim: int, top_k: int) -> Value:
        """Return the positions [tokens, top_k] that `select_keys` selects.

        Index queries, keys and weights are small whole numbers, so scores are exact, and equal ones
        are equal on every backend.
        """

        def whole_numbers(cols: int) -> Value:
            values = self.rng.integers(-2, 3, (self.n_ids, cols)).astype(np.float32)
            return self.graph.embed(self.given(values))

        state = KVState("index", 1, head_dim, head_dim, v_from_k=True)
        q, k, weights = (whole_numbers(n) for n in (n_heads * head_dim, head_dim, n_heads))
        self.graph.kv_store(k, None, state)
        return self.graph.select_keys(q, weights, state, top_k=top_k)

    def returns(self, out: Value) -> Case:
        """Make `out` the output of the graph. If its rows are tokens, all of them are selected."""
        self.graph.output = out if out.dim is Dim.OUTPUTS else self.graph.select_rows(out)
        return self

    @property
    def max_tokens(self) -> int:
        """The most tokens in a step of the case."""
        return max(self.n_tokens, self._n_cached)

    @property
    def n_ids(self) -> int:
        """The tokens of the step and of the one before it, each of which has its own id."""
        return self.n_tokens + self._n_cached

    @property
    def _n_cached(self) -> int:
        return self.cached * max(1, len(self.sequences))

    def step(self, block_tokens: int) -> Step:
        """Return the step of all tokens, with the counts of `sequences`."""
        return self._step(self._lengths, self.cached, 0, block_tokens)

    def before(self, block_tokens: int) -> Step | None:
        """Return the step that puts the `cached` tokens into the cache, if there are any."""
        if not self.cached:
            return None
        return self._step([self.cached] * len(self._lengths), 0, self.n_tokens, block_tokens)

    @property
    def _lengths(self) -> Sequence[int]:
        lengths = list(self.sequences) or [self.n_tokens]
        assert sum(lengths) == self.n_tokens
        return lengths

    def _step(self, lengths: Sequence[int], first: int, first_id: int, block_tokens: int) -> Step:
        n_tokens, n_sequences = sum(lengths), len(lengths)
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        n_blocks = max(ceil_div(self.cached + n, block_tokens) for n in self._lengths)
        table = np.arange(n_sequences * n_blocks, dtype=np.int32).reshape(n_sequences, -1)
        every = np.arange(n_tokens, dtype=np.int32)
        positions = np.concatenate([first + np.arange(n) for n in lengths])
        return Step(
            ids=first_id + every,
            positions=positions.astype(np.int32),
            sequence=np.repeat(np.arange(n_sequences, dtype=np.int32), lengths),
            output_rows=every,
            seq_start=starts,
            state_slot=np.arange(n_sequences, dtype=np.int32),
            tables=(table,),
            sample_params=self.sample_params if first == self.cached else None,
            penalties=self.penalties if first == self.cached else None,
            adapters=self.adapters,
        )
