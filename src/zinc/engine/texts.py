"""Steps of an encoder, which run whole texts.

A text of an encoder cannot be divided into steps, because its tokens attend to those behind them.
Texts run by priority, then first come, first served. They leave nothing in the cache, so they hold
blocks only while their step runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from collections.abc import Sequence as Seq

import numpy as np

from zinc.engine.batch import adapter_scales
from zinc.engine.sequence import Sequence
from zinc.kv import CachePool
from zinc.ops.step import IntArray, Step


def first_texts(
    waiting: Iterable[Sequence], pool: CachePool, tokens: int, max_texts: int
) -> list[Sequence]:
    """Return the texts that the next step runs: the first ones that fit into it and into `pool`.

    A smaller text behind one that does not fit waits too, and so cannot starve it. tokens,
    max_texts: the most of a step.
    """
    chosen: list[Sequence] = []
    blocks = min(pool.available)
    for s in sorted(waiting, key=lambda s: -s.request.priority):
        tokens -= len(s.ids)
        blocks -= pool.blocks(len(s.ids))
        if tokens < 0 or blocks < 0 or len(chosen) == max_texts:
            break
        chosen.append(s)
    return chosen


def make_text_step(texts: Seq[Sequence], blocks: Seq[Seq[int]], block_tokens: int) -> Step:
    """Return a step that runs `texts`, with an output row for every token.

    blocks: the blocks of all texts in each group of layers, those of the first text first.
    """
    n_tokens = np.array([len(s.ids) for s in texts], np.int32)
    starts = np.concatenate([[0], np.cumsum(n_tokens)]).astype(np.int32)
    rows = np.arange(starts[-1], dtype=np.int32)
    numbers = np.arange(len(texts), dtype=np.int32)
    return Step(
        ids=np.fromiter(itertools.chain.from_iterable(s.ids for s in texts), np.int32, len(rows)),
        positions=rows - np.repeat(starts[:-1], n_tokens),
        sequence=np.repeat(numbers, n_tokens),
        output_rows=rows,
        seq_start=starts,
        state_slot=numbers,
        tables=_tables(-(-n_tokens // block_tokens), blocks),
        adapters=adapter_scales(texts),
    )


def _tables(n_blocks: IntArray, blocks: Seq[Seq[int]]) -> tuple[IntArray, ...]:
    """Return the block table of each group, int32 [texts, blocks], -1 behind the end of a text.

    n_blocks: int32 [texts], blocks of each text. blocks: as in `make_text_step`.
    """
    width = int(n_blocks.max())
    if len(n_blocks) * width == len(blocks[0]):
        return tuple(np.array(blocks, np.int32).reshape(len(blocks), -1, width))
    is_held = np.arange(width) < n_blocks[:, None]
    tables = np.full((len(blocks), *is_held.shape), -1, np.int32)
    for table, group in zip(tables, blocks, strict=True):
        table[is_held] = group  # in the order of rows
    return tuple(tables)
