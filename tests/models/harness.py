"""Steps of a model file on any backend, run as the engine runs them, for parity tests.

The cache is as difficult as the engine can make it: blocks are small, those of different sequences
are interleaved, each window has its own block tables, and blocks that a window has passed are
removed before a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from present import computing

from zinc.backends import api
from zinc.backends.api import Backend, CacheLayout
from zinc.backends.plans import Plan
from zinc.core.errors import UnsupportedError
from zinc.formats.gguf import GGUFArray, GGUFFile
from zinc.formats.gguf_writer import GGUFWriter
from zinc.models import load
from zinc.models.parts.context import RopeScaling
from zinc.ops.step import Step
from zinc.ops.values import KVState
from zinc.plan.planner import make_plan
from zinc.plan.rollback import rollback_graph
from zinc.plan.weights import tensor_data
from zinc.quant.blocks import GGMLType

FIXTURES = Path(__file__).parents[1] / "data" / "fixtures"
ENCODERS = FIXTURES.parent / "encoders"  # whose tokens see the ones after them
BACKENDS = ["ref", *computing()]
BLOCK_TOKENS = 16
MAX_TOKENS = 96

Ids = npt.NDArray[np.int32]
Logits = npt.NDArray[np.float32]


def fixture_names() -> list[str]:
    """Return the names of all fixtures: model files with expected logits."""
    return sorted(path.stem for path in FIXTURES.glob("*.npz"))


def expected(name: str, prefix: str = "") -> tuple[Ids, Logits]:
    """Return the token ids of a fixture and the logits [tokens, vocab] of the published code."""
    with np.load(FIXTURES / f"{name}.npz") as data:
        return data[f"{prefix}tokens"].astype(np.int32), data[f"{prefix}logits"]


def relative_error(got: Logits, want: Logits) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


@cache
def planned(
    path: Path,
    backend_name: str,
    fuse: bool = True,
    rope: RopeScaling | None = None,
    extended: bool = False,
    batch_invariant: bool = False,
    rollback: bool = False,
    max_tokens: int = MAX_TOKENS,
) -> tuple[Backend, Plan]:
    """Return a backend with the weights of the file, and the plan."""
    with GGUFFile.open(path) as file:
        _, graph = load(file, rope=rope, extended=extended)
        if rollback:
            graph = rollback_graph(graph)
        options = {"batch_invariant": "true"} if batch_invariant else {}
        backend = api.create(backend_name, options=options)
        try:
            plan = make_plan(
                graph, backend, max_tokens=max_tokens, max_outputs=max_tokens, fuse=fuse
            )
        except UnsupportedError as error:
            # Every family runs on every backend; only parts that fusion removes may lack.
            if fuse:
                raise
            pytest.skip(str(error))
        for w in plan.weights:
            backend.upload(w, tensor_data(w, file.tensors[w.tensor]))
    return backend, plan


class Runner:
    """Sequences of one model; `feed` appends tokens and returns their logits.

    extended: use the graph for sequences beyond the plain context. room: tokens that the cache
    holds for each sequence. loaded: a backend and plan to use in place of a new one.
    """

    def __init__(
        self,
        path: Path,
        backend: str = "ref",
        *,
        n_sequences: int = 1,
        rope: RopeScaling | None = None,
        extended: bool = False,
        fuse: bool = True,
        room: int = MAX_TOKENS,
        batch_invariant: bool = False,
        loaded: tuple[Backend, Plan] | None = None,
        kv_dtype: str = "f16",
    ) -> None:
        device, plan = loaded or planned(path, backend, fuse, rope, extended, batch_invariant)
        layers = [state for state in plan.states if isinstance(state, KVState)]
        self.windows = sorted({layer.window for layer in layers})
        n_blocks = -(-room // BLOCK_TOKENS)
        layout = CacheLayout(
            block_tokens=BLOCK_TOKENS,
            n_blocks=(n_blocks * n_sequences,) * len(self.windows),
            kv_dtype=kv_dtype,
            group_of={layer.name: self.windows.index(layer.window) for layer in layers},
            state_slots=n_sequences,
        )
        self.cache = device.allocate(plan.states, layout)
        self.program = device.prepare(plan, self.cache)
        self.lengths = [0] * n_sequences
        # Block b of sequence s, counted from the end so that no table is the identity.
        blocks = np.arange(n_blocks * n_sequences, dtype=np.int32)[::-1]
        self.blocks = blocks.reshape(n_blocks, n_sequences).T.copy()

    def feed(self, *parts: tuple[int, Ids]) -> list[Logits]:
        """Run one step of (sequence, ids) parts; return the logits of each part's tokens."""
        lengths = [len(part) for _, part in parts]
        logits = self.feed_for(range(sum(lengths)), *parts)
        return np.split(logits, np.cumsum(lengths)[:-1])

    def feed_for(self, rows: Sequence[int], *parts: tuple[int, Ids]) -> Logits:
        """Run the same step with the given output rows; return their logits."""
        return np.array(self.program.step(self.make_step(rows, *parts)))

    def make_step(self, rows: Sequence[int], *parts: tuple[int, Ids]) -> Step:
        """Return the step of (sequence, ids) parts with the given output rows, which then runs."""
        ids = np.concatenate([part for _, part in parts]).astype(np.int32)
        lengths = [len(part) for _, part in parts]
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        sequences = [s for s, _ in parts]
        positions = [self.lengths[s] + np.arange(len(part)) for s, part in parts]
        step = Step(
            ids=ids,
            positions=np.concatenate(positions).astype(np.int32),
            sequence=np.repeat(np.arange(len(parts)), lengths).astype(np.int32),
            output_rows=np.array(rows, np.int32),
            seq_start=starts,
            state_slot=np.array(sequences, np.int32),
            tables=tuple(self._table(window, sequences) for window in self.windows),
        )
        for s, part in parts:
            self.lengths[s] += len(part)
        return step

    def _table(self, window: int, sequences: Sequence[int]) -> Ids:
        table = self.blocks[list(sequences)].copy()
        for row, s in enumerate(sequences):
            gone = max(0, self.lengths[s] - window + 1) // BLOCK_TOKENS if window else 0
            table[row, :gone] = -1
        return table

    def feed_in_chunks(self, ids: Ids, size: int, sequence: int = 0) -> Logits:
        chunks = [ids[i : i + size] for i in range(0, len(ids), size)]
        return np.concatenate([self.feed((sequence, chunk))[0] for chunk in chunks])


def rewrite(
    source: Path,
    target: Path,
    *,
    metadata: Mapping[str, Any] | None = None,
    drop: Iterable[str] = (),
    tensors: Mapping[str, npt.NDArray[np.float32] | None] | None = None,
    edit: Callable[[str, npt.NDArray[np.float32]], npt.NDArray[np.float32]] | None = None,
) -> Path:
    """Write a changed copy of a model file in float32.

    metadata: keys to set. drop: keys to remove. tensors: tensors to replace, or to remove if None.
    edit: called with the name and values of each other tensor.
    """
    changed = dict(tensors or {})
    with GGUFFile.open(source) as file, GGUFWriter(target) as writer:
        for key, value in {**file.metadata, **(metadata or {})}.items():
            if key not in set(drop):
                is_as_read = key not in (metadata or {}) and not isinstance(value, GGUFArray)
                writer.add(key, value, file.value_types[key] if is_as_read else None)
        for name, tensor in file.tensors.items():
            values = changed.pop(name, tensor.to_float32())
            if values is None:
                continue
            if edit is not None and name not in (tensors or {}):
                values = edit(name, values)
            writer.add_tensor(name, values, GGMLType.F32, values.shape)
        for name, values in changed.items():
            assert values is not None, f"{source.name} has no tensor {name}"
            writer.add_tensor(name, values, GGMLType.F32, values.shape)
    return target


def with_blocks(
    name: str, folder: Path, suffix: str | tuple[str, ...], type: GGMLType
) -> tuple[Path, Path]:
    """Write a fixture with some tensors in a block format, and the same in float32.

    gguf-py encodes the tensors whose names end in `suffix`, or in one of several, and decodes them
    for the second file.
    """
    path, plain = folder / "blocks.gguf", {}
    kind = gguf.GGMLQuantizationType(type)
    with GGUFFile.open(FIXTURES / f"{name}.gguf") as file, GGUFWriter(path) as writer:
        for key, value in file.metadata.items():
            if not key.startswith("tokenizer."):
                writer.add(key, value, file.value_types[key])
        for tensor_name, tensor in file.tensors.items():
            values = tensor.to_float32()
            if not tensor_name.endswith(suffix):
                writer.add_tensor(tensor_name, values, GGMLType.F32, values.shape)
                continue
            data = gguf.quants.quantize(values, kind)
            plain[tensor_name] = gguf.quants.dequantize(data, kind)
            writer.add_tensor(tensor_name, data, type, values.shape)
    assert plain
    return path, rewrite(FIXTURES / f"{name}.gguf", folder / "plain.gguf", tensors=plain)
