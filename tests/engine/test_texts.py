"""Which texts of an encoder run in a step, and the step's arrays."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zinc.core.errors import MemoryLimitError
from zinc.engine.readout import NO_ANSWER, Pooled
from zinc.engine.request import Request
from zinc.engine.sampling import Sampler
from zinc.engine.sequence import Sequence
from zinc.engine.texts import first_texts, make_text_step
from zinc.kv import CachePool, Group

BLOCK_TOKENS = 64
SAMPLER = Sampler(NO_ANSWER, 100)


def text(id: int, n_tokens: int, priority: int = 0) -> Sequence:
    ids = [(id + at) % 100 for at in range(n_tokens)]
    request = Request(ids, NO_ANSWER, readout=Pooled(), priority=priority)
    return Sequence.of(id, request, 0, 100, SAMPLER)


def pool_of(*blocks: int) -> CachePool:
    return CachePool([Group(n) for n in blocks], BLOCK_TOKENS, 8, copier=SimpleNamespace())


def chosen(texts: Seq[Sequence], blocks: int = 100, most: int = 64) -> list[int]:
    return [s.id for s in first_texts(texts, pool_of(blocks, blocks + 3), 512, most)]


def test_texts_run_in_order_until_one_does_not_fit():
    texts = [text(0, 300), text(1, 300), text(2, 10)]
    assert chosen(texts) == [0]
    assert chosen(texts[1:]) == [1, 2]
    assert chosen([text(0, 512), text(1, 4)]) == [0]
    assert chosen(texts[1:], most=1) == [1]


def test_texts_run_by_priority():
    assert chosen([text(0, 300), text(1, 300, priority=1), text(2, 10)]) == [1]
    assert chosen([text(0, 100), text(1, 300, priority=1), text(2, 10)]) == [1, 0, 2]


def test_texts_wait_for_blocks():
    texts = [text(0, 64), text(1, 65), text(2, 1)]
    assert chosen(texts, blocks=4) == [0, 1, 2]
    assert chosen(texts, blocks=3) == [0, 1]
    assert chosen(texts, blocks=2) == [0]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 512), st.integers(0, 2)), max_size=12), st.integers(8, 40))
def test_every_text_runs_in_the_end(rows, blocks):
    waiting = [text(i, n, priority) for i, (n, priority) in enumerate(rows)]
    while waiting:
        found = chosen(waiting, blocks)
        assert found
        assert sum(len(s.ids) for s in waiting if s.id in found) <= 512
        waiting = [s for s in waiting if s.id not in found]


@pytest.mark.parametrize("lengths", [(3, 130, 64, 1), (5,), (64, 64), (70, 128)])
def test_a_step_holds_each_text_with_its_blocks(lengths):
    texts = [text(i, n) for i, n in enumerate(lengths)]
    counts = [-(-n // BLOCK_TOKENS) for n in lengths]
    pool = pool_of(10, 12)
    with pool.borrowed(sum(counts)) as blocks:
        step = make_text_step(texts, blocks, BLOCK_TOKENS)
        assert [a.n_held for a in pool.allocators] == [sum(counts)] * 2
    pool.check()
    assert [a.n_held for a in pool.allocators] == [0, 0]
    held = [table[table >= 0] for table in step.tables]
    assert all(len(set(each.tolist())) == sum(counts) for each in held)
    for i, s in enumerate(texts):
        rows = slice(*step.seq_start[i : i + 2])
        assert step.ids[rows].tolist() == s.ids
        np.testing.assert_array_equal(step.positions[rows], np.arange(len(s.ids)))
        assert set(step.sequence[rows].tolist()) == {i}
        for table in step.tables:
            assert table[i].tolist()[counts[i] :] == [-1] * (table.shape[1] - counts[i])
            assert min(table[i, : counts[i]]) >= 0
    np.testing.assert_array_equal(step.output_rows, np.arange(sum(lengths)))
    arrays = (step.ids, step.positions, step.sequence, step.output_rows, step.seq_start)
    assert {a.dtype for a in (*arrays, step.state_slot, *step.tables)} == {np.dtype(np.int32)}


def test_blocks_are_given_back_if_a_group_has_too_few():
    pool = pool_of(10, 2)
    with pytest.raises(MemoryLimitError), pool.borrowed(3):
        pass
    pool.check()
    assert [a.n_held for a in pool.allocators] == [0, 0]
