"""The data of a step in memory that kernels read: a `StepHeader` and the arrays it points to.

Recorded dispatches refer to the header's address only, so they serve every step. Header and arrays
share one buffer, in which the arrays of a step follow each other without gaps, so that one short
copy transfers them to the device. Block tables and penalties have separate buffers, which are
replaced when they become too small.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate, chain, islice, repeat

import numpy as np

from zinc.core.rounding import round_up
from zinc.gpu.arguments.structs import MAX_TABLES, StepHeader
from zinc.gpu.bucket import Bucket
from zinc.gpu.host import Upload
from zinc.gpu.memory import Allocator, Buffer, MemoryKind
from zinc.ops.penalties import StepPenalties
from zinc.ops.step import SAMPLE_PARAMS, Step

HEADER_BYTES = StepHeader.layout().size


class StepData:
    """Memory for the data of one step at a time, up to `max_tokens` and `max_outputs` rows.

    address: device address of the header. adapters: device address of the scales of adapters: the
    number of adapters as an integer, 0 if no sequence uses any, and float32 [sequences, adapters].
    sampled: device address of the tokens that the previous step sampled; 0 if the plan samples
    none. n_adapters: the most adapters.
    """

    def __init__(
        self,
        allocator: Allocator,
        max_tokens: int,
        max_outputs: int,
        sampled: int = 0,
        n_adapters: int = 0,
    ) -> None:
        self._allocator = allocator
        n_rows = _n_rows(max_tokens, max_outputs, max_tokens)
        scales = _params_offset(4 * n_rows) + SAMPLE_PARAMS.itemsize * max_outputs
        n_scales = 1 + max_tokens * n_adapters if n_adapters else 0
        self._buffer = allocator.buffer(scales + 4 * n_scales, MemoryKind.STEP)
        self.address = self._buffer.address
        assert self._buffer.bytes is not None
        self._memory = self._buffer.bytes.data
        self._scales_at, self._sampled = scales, sampled
        self._scales = self._buffer.bytes[scales : scales + 4 * n_scales].view(np.float32)
        self.adapters = self.address + scales
        self._tables: Buffer | None = None
        self._table_rows = np.empty(0, np.int32)
        self._penalties: Buffer | None = None
        self._end = 0  # bytes of the data that was written last
        # Contents of the header: rows of each array, whether ids are sampled rows, and tables.
        self._counts: tuple[int, ...] = ()
        self._written: list[tuple[tuple[int, ...], bytes]] = []

    def write(self, step: Step) -> None:
        """Write the data of `step`. No kernel that reads the previous data may still be running.

        Kernels see it in a recording with `upload`, or after `flush`.
        """
        sampled = step.sampled_rows
        ids = step.ids if sampled is None else sampled
        slots = step.state_slot
        arrays = (step.positions, ids, step.sequence, step.output_rows, step.seq_start, slots)
        counts = (*map(len, arrays), int(sampled is not None))
        # For few rows, bytes are much faster than arrays of numpy.
        rows = b"".join([x.tobytes() for x in arrays])
        self._memory[HEADER_BYTES : HEADER_BYTES + len(rows)] = rows
        end = params = _params_offset(len(rows))
        if step.sample_params is not None:
            end += step.sample_params.nbytes
            self._memory[params:end] = step.sample_params.tobytes()
        if step.penalties is not None:
            self._write_penalties(step.penalties)
        tables = [(table.shape, table.tobytes()) for table in step.tables]
        if counts != self._counts or tables != self._written:
            self._write_header(step, counts, self.address + params)
            self._counts, self._written = counts, tables
        self._end = end
        if len(self._scales):
            self._write_scales(step)

    def flush(self) -> None:
        """Make the data that was written visible to later submissions."""
        self._allocator.flush(self._buffer, 0, self._end)

    def upload(self, bucket: Bucket) -> Upload:
        """Return a copy of the data of any step of `bucket`."""
        tokens, outputs, sequences = bucket.tokens, bucket.outputs, bucket.sequences
        params = _params_offset(4 * _n_rows(tokens, outputs, sequences))
        return Upload(self._buffer, params + SAMPLE_PARAMS.itemsize * outputs)

    def _write_penalties(self, penalties: StepPenalties) -> None:
        """Write the penalties of the output rows, and the counts of their tokens behind them."""
        n_rows, n_counts = penalties.rows.nbytes, penalties.counts.nbytes
        if self._penalties is None or n_rows + n_counts > self._penalties.size:
            size = 2 * max(n_rows + n_counts, 1024)
            self._penalties = self._allocator.buffer(size, MemoryKind.STEP)
            self._counts = ()  # the header has the address
        assert self._penalties.bytes is not None
        memory = self._penalties.bytes.data
        memory[:n_rows] = penalties.rows.tobytes()
        memory[n_rows : n_rows + n_counts] = penalties.counts.tobytes()
        self._allocator.flush(self._penalties, 0, n_rows + n_counts)

    def _write_scales(self, step: Step) -> None:
        """Write the number of adapters and their scales."""
        n_adapters = 0 if step.adapters is None else step.adapters.shape[1]
        self._scales[:1].view(np.uint32)[0] = n_adapters
        n_scales = 1
        if step.adapters is not None:
            n_scales += step.adapters.size
            self._scales[1:n_scales] = step.adapters.reshape(-1)
        self._allocator.flush(self._buffer, self._scales_at, 4 * n_scales)

    def _write_header(self, step: Step, counts: tuple[int, ...], params: int) -> None:
        """Write the block tables, and a header with all sizes and addresses.

        params: device address of the sampling parameters.
        """
        total = sum(table.size for table in step.tables)
        if total > len(self._table_rows):
            self._tables = self._allocator.buffer(8 * max(total, 1024), MemoryKind.STEP)
            assert self._tables.bytes is not None
            self._table_rows = self._tables.bytes.view(np.int32)
        if total:
            self._table_rows[:total] = np.concatenate([x.reshape(-1) for x in step.tables])
            assert self._tables is not None
            self._allocator.flush(self._tables, 0, 4 * total)
        n_rows = sum(counts[:-1])
        assert params == self.address + _params_offset(4 * n_rows), "the rows of a step are int32"
        # Positions lie right after the header; the other arrays follow them.
        starts = list(accumulate((4 * n for n in counts[:-1]), initial=self.address + HEADER_BYTES))
        _, ids, sequence, output_rows, seq_start, state_slot, _ = starts
        tables_at = self._tables.address if self._tables is not None else 0
        sizes = [4 * table.size for table in step.tables[:-1]]
        header = StepHeader(
            tokens=counts[0],
            outputs=counts[3],
            sequences=counts[5],
            n_tables=len(step.tables),
            ids=ids,
            sequence=sequence,
            output_rows=output_rows,
            seq_start=seq_start,
            state_slot=state_slot,
            tables=_padded(accumulate(sizes, initial=tables_at)),
            table_stride=_padded(table.shape[1] for table in step.tables),
            sample_params=params,
            penalties=self._penalties.address if self._penalties is not None else 0,
            sampled=self._sampled,
            ids_are_sampled_rows=counts[-1],
        )
        # One copy, because mapped memory may lie across a bus.
        self._memory[:HEADER_BYTES] = header.pack()


def _n_rows(tokens: int, outputs: int, sequences: int) -> int:
    """Return the int32 rows of a step with these sizes."""
    return 3 * tokens + outputs + 2 * sequences + 1


def _params_offset(n_bytes: int) -> int:
    """Return the offset of the sampling parameters behind rows of `n_bytes`."""
    return HEADER_BYTES + round_up(n_bytes, 16)


def _padded(values: Iterable[int]) -> tuple[int, ...]:
    """Return the first MAX_TABLES of `values`, with zeros for those that are missing."""
    return tuple(islice(chain(values, repeat(0)), MAX_TABLES))
