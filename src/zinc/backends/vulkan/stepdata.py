"""The numbers of a step where kernels read them: `struct Step` of kernels/step.slang, and its rows.

One buffer that host and device both see holds the struct, behind it positions and the arrays that
it points to, so recorded commands stay true from step to step. Block tables have another buffer,
which may move as it grows.
"""

from __future__ import annotations

import numpy as np

from zinc.backends.vulkan.memory import Buffer, Kind, Memory
from zinc.ops.step import DRAW, Step

MAX_TABLES = 8
HEADER_BYTES = 168
_POINTERS = 2  # index of the first pointer among the header's 64-bit words
_TABLES = 7  # and of the first table
_STRIDES = 30  # index of the first stride among its 32-bit words
_DRAWS = 19  # of the pointers to how tokens are drawn and to those drawn last


class StepData:
    """Room for steps of at most so many tokens and output rows.

    drawn: the address of the tokens that the last draw gave, if there is one.
    """

    def __init__(self, memory: Memory, max_tokens: int, max_outputs: int, drawn: int = 0) -> None:
        self._memory = memory
        n_rows = 5 * max_tokens + 1 + max_outputs
        draws = HEADER_BYTES + -(-4 * n_rows // 16) * 16
        n_bytes = draws + DRAW.itemsize * max_outputs
        self._buffer = memory.buffer(n_bytes, Kind.STEP)
        self.address = self._buffer.address
        assert self._buffer.bytes is not None
        view = self._buffer.bytes
        self._rows = view[HEADER_BYTES : HEADER_BYTES + 4 * n_rows].view(np.int32)
        self._draws = view[draws:n_bytes].view(DRAW)
        # What is written is put together here and copied at once, if it changed: each write to
        # mapped memory crosses a bus, and to read it back is slower still.
        self._header = np.zeros(HEADER_BYTES, np.uint8)
        self._words = self._header.view(np.uint32)
        self._pointers = self._header.view(np.uint64)
        self._target = view[:HEADER_BYTES]
        self._pointers[_DRAWS : _DRAWS + 2] = self.address + draws, drawn
        self._tables: Buffer | None = None
        self._table_rows = np.empty(0, np.int32)
        # What the header was last written for: rows of each kind, and tables.
        self._counts: tuple[int, ...] = ()
        self._written: list[tuple[tuple[int, ...], bytes]] = []

    def write(self, step: Step) -> None:
        """Makes `step` what kernels see. Nothing that reads the last one may still run."""
        arrays = (
            *(step.positions, step.ids, step.sequence),
            *(step.output_rows, step.seq_start, step.state_slot),
        )
        counts = tuple(map(len, arrays))
        np.concatenate(arrays, out=self._rows[: sum(counts)])
        if step.draws is not None:
            self._draws[: len(step.output_rows)] = step.draws
        tables = [(table.shape, table.tobytes()) for table in step.tables]
        if counts != self._counts or tables != self._written:
            self._write_header(step, counts)
            self._counts, self._written = counts, tables

    def _write_header(self, step: Step, counts: tuple[int, ...]) -> None:
        """Sizes, tables, and where everything is."""
        self._words[:4] = counts[0], counts[3], counts[5], len(step.tables)
        at = self.address + HEADER_BYTES
        for i, n in enumerate(counts[:-1]):  # whoever follows n rows
            at += 4 * n
            self._pointers[_POINTERS + i] = at
        total = sum(table.size for table in step.tables)
        if total > len(self._table_rows):
            self._tables = self._memory.buffer(8 * max(total, 1024), Kind.STEP)
            assert self._tables.bytes is not None
            self._table_rows = self._tables.bytes.view(np.int32)
        at = self._tables.address if self._tables is not None else 0
        for i, table in enumerate(step.tables):
            self._pointers[_TABLES + i] = at
            self._words[_STRIDES + i] = table.shape[1]
            at += 4 * table.size
        if total:
            self._table_rows[:total] = np.concatenate([x.reshape(-1) for x in step.tables])
        self._target[:] = self._header
