"""The numbers of a step where kernels read them: `struct Step` of kernels/step.slang, and its rows.

One buffer that host and device both see holds the struct and the arrays it points to, so recorded
commands stay true from step to step. Block tables are behind them and may move when they grow.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from zinc.backends.vulkan.memory import Buffer, Kind, Memory
from zinc.ops.step import DRAW, Step

MAX_TABLES = 8
HEADER_BYTES = 176
_POINTERS = 2  # index of the first pointer among the header's 64-bit words
_TABLES = 8  # and of the first table
_STRIDES = 32  # index of the first stride among its 32-bit words
_DRAWS = 20  # of the pointers to how tokens are drawn and to those drawn last


class StepData:
    """Room for steps of at most so many tokens and output rows.

    drawn: the address of the tokens that the last draw gave, if there is one.
    """

    def __init__(self, memory: Memory, max_tokens: int, max_outputs: int, drawn: int = 0) -> None:
        self._memory = memory
        draw_words = DRAW.itemsize // 4
        sizes = [max_tokens, max_tokens, max_tokens, max_outputs, max_tokens + 1, max_tokens]
        sizes.append(draw_words * max_outputs)
        starts = HEADER_BYTES + 4 * np.cumsum([0, *(-(-n // 4) * 4 for n in sizes)])
        self._buffer = memory.buffer(int(starts[-1]), Kind.STEP)
        self.address = self._buffer.address
        assert self._buffer.bytes is not None
        view = self._buffer.bytes
        self._arrays: list[npt.NDArray[np.int32]] = [
            view[a : a + 4 * n].view(np.int32) for a, n in zip(starts, sizes[:-1], strict=False)
        ]
        # The header is put together here and copied whole: mapped memory is slow to read back.
        self._header = np.zeros(HEADER_BYTES, np.uint8)
        self._words = self._header.view(np.uint32)
        self._pointers = self._header.view(np.uint64)
        self._target = view[:HEADER_BYTES]
        *integers, draws = (int(start) for start in starts[:-1])
        for i, start in enumerate(integers):
            self._pointers[_POINTERS + i] = self.address + start
        self._draws = view[draws : draws + DRAW.itemsize * max_outputs].view(DRAW)
        self._pointers[_DRAWS : _DRAWS + 2] = self.address + draws, drawn
        self._tables: Buffer | None = None
        self._table_rows = np.empty(0, np.int32)

    def write(self, step: Step) -> None:
        """Makes `step` what kernels see. Nothing that reads the last one may still run."""
        ids, positions, sequence, rows, starts, slots = self._arrays
        n, n_outputs, n_sequences = len(step.ids), len(step.output_rows), len(step.state_slot)
        ids[:n] = step.ids
        positions[:n] = step.positions
        sequence[:n] = step.sequence
        rows[:n_outputs] = step.output_rows
        starts[: n_sequences + 1] = step.seq_start
        slots[:n_sequences] = step.state_slot
        if step.draws is not None:
            self._draws[:n_outputs] = step.draws
        words, at = self._words, 0
        words[0], words[1], words[2], words[3] = n, n_outputs, n_sequences, len(step.tables)
        total = sum(table.size for table in step.tables)
        if total > len(self._table_rows):
            self._grow(total)
        for i, table in enumerate(step.tables):
            size = table.size
            self._table_rows[at : at + size] = table.reshape(-1)
            assert self._tables is not None or not size
            if self._tables is not None:
                self._pointers[_TABLES + i] = self._tables.address + 4 * at
            words[_STRIDES + i] = table.shape[1]
            at += size
        self._target[:] = self._header

    def _grow(self, n: int) -> None:
        self._tables = self._memory.buffer(8 * max(n, 1024), Kind.STEP)
        assert self._tables.bytes is not None
        self._table_rows = self._tables.bytes.view(np.int32)
