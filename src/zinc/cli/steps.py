"""Steps that a command makes itself, to run single launches or random tokens without an engine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from zinc.core.rounding import ceil_div
from zinc.engine.load.model import LoadedModel
from zinc.ops.step import IntArray, Step


class StepMaker:
    """Factory of steps for a model that was loaded for a fixed number of `sequences`.

    Sequence i owns the i-th range of cache blocks, long enough for the whole context.
    """

    def __init__(self, model: LoadedModel) -> None:
        self._layout, self._context = model.cache.layout, model.context
        use = model.adapter_use()
        self._scales = None if use is None else np.array([use.scales], np.float32)

    def step(self, ids: Sequence[int], position: int, *, outputs: int, sequence: int = 0) -> Step:
        """Return a step of `ids` starting at `position`, with logits for the last `outputs` ids."""
        return self._step(np.array([ids], np.int32), position, outputs, sequence)

    def together(self, ids: Sequence[int], position: int) -> Step:
        """Return a step of one token for each sequence at `position`, with logits for all."""
        return self._step(np.array(ids, np.int32)[:, None], position, 1, 0)

    def _step(self, ids: IntArray, position: int, outputs: int, first: int) -> Step:
        """Return a step for `ids` [sequences, tokens] of the sequences starting at `first`."""
        n, tokens = ids.shape
        if position + tokens > self._context:
            last = position + tokens
            raise ValueError(f"position {last} lies beyond the context {self._context}")
        each = ceil_div(self._context, self._layout.block_tokens)
        rows = np.arange(first, first + n, dtype=np.int32)[:, None]
        tables = rows * each + np.arange(each, dtype=np.int32)
        starts = np.arange(n + 1, dtype=np.int32) * tokens
        positions = np.arange(position, position + tokens, dtype=np.int32)
        return Step(
            ids=ids.reshape(-1),
            positions=np.tile(positions, n),
            sequence=np.repeat(np.arange(n, dtype=np.int32), tokens),
            output_rows=(starts[1:, None] - np.arange(outputs, 0, -1)).reshape(-1).astype(np.int32),
            seq_start=starts,
            state_slot=np.arange(first, first + n, dtype=np.int32),
            tables=(tables,) * len(self._layout.n_blocks),
            adapters=None if self._scales is None else np.repeat(self._scales, n, axis=0),
        )
