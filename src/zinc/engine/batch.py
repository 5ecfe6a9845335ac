"""Building steps: sequences that run together as the arrays of one `Step`."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from zinc.engine.sequence import Sequence
from zinc.kv import Allocation
from zinc.ops.step import IntArray, Step
from zinc.ops.values import FloatArray

NO_DRAFTS: Mapping[int, Seq[int]] = MappingProxyType({})


def make_step(
    running: Seq[Sequence],
    counts: Mapping[int, int],
    n_groups: int,
    every_row: bool = False,
    drafts: Mapping[int, Seq[int]] = NO_DRAFTS,
) -> Step:
    """Return a step with `counts[id]` tokens of each sequence, and its drafted tokens.

    It has an output row for every sequence that is complete with it, and one for each drafted
    token; or one for every token. drafts: by id, of complete sequences.
    """
    if not drafts and all(counts[s.id] == 1 and s.pending == 1 for s in running):
        return _streams(running, [s.ids[-1] for s in running], n_groups)
    tables, slots = _tables(_allocations(running), n_groups)
    parts = [s.ids[s.n_run : s.n_run + counts[s.id]] for s in running]
    if drafts:
        parts = [[*part, *drafts.get(s.id, ())] for s, part in zip(running, parts, strict=True)]
    n_tokens = np.array([len(part) for part in parts], np.int32)
    starts = np.concatenate([[0], np.cumsum(n_tokens)]).astype(np.int32)
    rows = np.arange(starts[-1], dtype=np.int32)
    outputs = rows
    if not every_row:
        wanted = [
            rows[end - 1 - len(drafts.get(s.id, ())) : end]
            for s, end in zip(running, starts[1:], strict=True)
            if counts[s.id] == s.pending
        ]
        outputs = np.concatenate([rows[:0], *wanted])
    first_positions = np.array([s.n_run for s in running], np.int32)
    return Step(
        ids=np.array(list(itertools.chain.from_iterable(parts)), np.int32),
        positions=rows + np.repeat(first_positions - starts[:-1], n_tokens),
        sequence=np.repeat(np.arange(len(running), dtype=np.int32), n_tokens),
        output_rows=outputs,
        seq_start=starts,
        state_slot=slots,
        tables=tables,
        adapters=adapter_scales(running),
    )


def uses_adapters(running: Seq[Sequence]) -> bool:
    """Return whether any of these sequences uses an adapter."""
    return any(s.request.adapters is not None for s in running)


def make_next_step(running: Seq[Sequence], rows: Seq[int], n_groups: int) -> Step:
    """Return a step of one token for each sequence: the token sampled for its row of the last step.

    rows: output row of each sequence in that step, which may still run.
    """
    step = _streams(running, [0] * len(running), n_groups)
    return replace(step, sampled_rows=np.array(rows, np.int32))


def make_draft_step(
    allocations: Seq[Allocation],
    first: Seq[int],
    parts: Seq[Seq[int]],
    n_groups: int,
    *,
    outputs: bool,
) -> Step:
    """Return a step of a drafter: for sequence i, `parts[i]` starting at position `first[i]`.

    outputs: whether there is an output row for the last token of each sequence.
    """
    tables, slots = _tables(allocations, n_groups)
    n_tokens = np.array([len(part) for part in parts], np.int32)
    starts = np.concatenate([[0], np.cumsum(n_tokens)]).astype(np.int32)
    positions = [np.arange(at, at + n) for at, n in zip(first, n_tokens, strict=True)]
    return Step(
        ids=np.array(list(itertools.chain.from_iterable(parts)), np.int32),
        positions=np.concatenate(positions).astype(np.int32),
        sequence=np.repeat(np.arange(len(allocations), dtype=np.int32), n_tokens),
        output_rows=starts[1:] - 1 if outputs else starts[:0],
        seq_start=starts,
        state_slot=slots,
        tables=tables,
    )


def _streams(running: Seq[Sequence], ids: Seq[int], n_groups: int) -> Step:
    """Return a step of one token and one output row for each sequence."""
    tables, slots = _tables(_allocations(running), n_groups)
    rows = np.arange(len(running) + 1, dtype=np.int32)
    positions = np.array([s.n_run for s in running], np.int32)
    return Step(
        np.array(ids, np.int32),
        positions,
        rows[:-1],
        rows[:-1],
        rows,
        slots,
        tables,
        adapters=adapter_scales(running),
    )


def adapter_scales(running: Seq[Sequence]) -> FloatArray | None:
    """Return the scales of adapters, float32 [sequences, adapters]; None if none is used."""
    uses = [s.request.adapters for s in running]
    n_adapters = next((len(use.scales) for use in uses if use is not None), 0)
    if not n_adapters:
        return None
    nothing = (0.0,) * n_adapters
    return np.array([nothing if use is None else use.scales for use in uses], np.float32)


def _allocations(running: Seq[Sequence]) -> list[Allocation]:
    return [s.cache.allocation for s in running if s.cache.allocation is not None]


def _tables(allocations: Seq[Allocation], n_groups: int) -> tuple[tuple[IntArray, ...], IntArray]:
    """Return the block tables of each group, int32 [sequences, blocks], and the state slots."""
    sizes = [len(h.tables[0]) for h in allocations]
    width = max(sizes)
    slots = np.array([h.slot for h in allocations], np.int32)
    if min(sizes) == width:
        full = (
            np.array([h.tables[group] for h in allocations], np.int32) for group in range(n_groups)
        )
        return tuple(full), slots
    tables = np.full((n_groups, len(allocations), width), -1, np.int32)
    for i, allocation in enumerate(allocations):
        for group, table in enumerate(allocation.tables):
            tables[group, i, : len(table)] = table
    return tuple(tables), slots
