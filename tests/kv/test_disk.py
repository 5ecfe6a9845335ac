"""The prefix cache on disk: found again, and never believed when it is damaged."""

from __future__ import annotations

import logging
import os
import random

import numpy as np
import pytest

from zinc.kv import CachePool, Group, key_of
from zinc.kv.disk import CacheFile

BLOCK, SIZE = 4, 16


class Memory:
    """Blocks and slots as bytes."""

    def __init__(self, groups, n_slots):
        self.groups = [np.zeros((2, g.n_blocks, SIZE), np.uint8) for g in groups]
        self.slots = np.zeros((n_slots, SIZE), np.uint8)

    def copy_block(self, group, source, target):
        self.groups[group][:, target] = self.groups[group][:, source]

    def copy_state(self, source, target):
        self.slots[target] = self.slots[source]

    def block_views(self, group, block):
        return [layer[block] for layer in self.groups[group]]

    def state_views(self, slot):
        return [self.slots[slot]]


def new_pool(n_blocks=40, n_slots=8, recurrent=True):
    groups = [Group(n_blocks, 0, 2 * SIZE), Group(n_blocks, 6, 2 * SIZE)]
    memory = Memory(groups, n_slots)
    return CachePool(groups, BLOCK, n_slots, memory, 16, recurrent=recurrent, state_bytes=SIZE)


def run(pool, ids):
    """A sequence whose every block and state says what it is of."""
    holding, n = pool.attach(key_of(ids), len(ids) - 1)
    pool.grow(holding, len(ids))
    for group, table in enumerate(holding.tables):
        for i, block in enumerate(table):
            if block >= 0 and i >= n // BLOCK:
                for layer, view in enumerate(pool.copier.block_views(group, block)):
                    view[:] = content(ids[: (i + 1) * BLOCK], group, layer)
    pool.copier.slots[holding.slot] = content(ids, 9, 9)
    pool.trim(holding, len(ids))
    pool.release(holding, key_of(ids))


def content(ids, group, layer):
    return np.random.default_rng([*ids, group, layer]).integers(0, 256, SIZE, np.uint8)


def check_contents(pool):
    pool.check()

    def visit(node, key):
        ids = np.frombuffer(key, np.int32).tolist()
        for group, block in enumerate(node.blocks):
            if block >= 0:
                for layer, view in enumerate(pool.copier.block_views(group, block)):
                    assert (view == content(ids, group, layer)).all()
        for offset, slot in node.states.items():
            whole = ids[: len(ids) - node.n_tokens + offset]
            assert (pool.copier.slots[slot] == content(whole, 9, 9)).all()

    pool.tree.walk(visit)


CONVERSATIONS = [
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
    [1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13],
    [1, 2, 3, 4, 20, 21, 22, 23],
    [30, 31],
]


@pytest.fixture
def saved(tmp_path):
    pool = new_pool()
    for ids in CONVERSATIONS:
        run(pool, ids)
    check_contents(pool)
    file = CacheFile(tmp_path / "cache", "key")
    assert file.save(pool) == 4 + 4 + 2 + 3 + 4 + 2
    return file


def test_what_was_kept_is_found_again(saved):
    pool = new_pool()
    assert saved.load(pool) == 19
    check_contents(pool)
    for ids in CONVERSATIONS:
        assert pool.prospect(key_of([*ids, 99]), len(ids)).n_cached == len(ids)
    assert all(a.n_held == 0 for a in pool.allocators)


def test_it_is_readable_by_its_owner_alone(saved):
    assert os.stat(saved.path).st_mode & 0o077 == 0
    assert os.listdir(saved.folder) == [saved.path.name]


def test_a_smaller_cache_takes_what_fits_and_leaves_a_slot(saved, caplog):
    pool = new_pool(n_blocks=3, n_slots=2)
    assert 0 < saved.load(pool) <= 12
    check_contents(pool)
    assert pool.slots.n_free == 1


def test_bytes_are_limited_to_the_most_recent(tmp_path):
    pool = new_pool()
    for ids in CONVERSATIONS:
        run(pool, ids)
    file = CacheFile(tmp_path, "key", limit_bytes=2 * 2 * SIZE + SIZE)
    assert file.save(pool) == 2
    again = new_pool()
    assert file.load(again) == 2
    assert again.prospect(key_of([30, 31, 1]), 2).n_cached == 2


def test_no_file_is_no_trouble(tmp_path, caplog):
    assert CacheFile(tmp_path / "no" / "where", "key").load(new_pool()) == 0
    assert CacheFile(tmp_path, "key").save(new_pool()) == 0
    assert not caplog.records


def test_a_file_of_another_model_is_ignored_with_a_warning(saved, caplog):
    other = CacheFile(saved.folder, "other")
    saved.path.rename(other.path)
    with caplog.at_level(logging.WARNING):
        assert other.load(new_pool()) == 0
    assert "of another model" in caplog.text


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path, caplog):
    pool = new_pool()
    run(pool, CONVERSATIONS[0])
    (tmp_path / "file").write_text("")
    assert CacheFile(tmp_path / "file" / "cache", "key").save(pool) == 0
    assert "was not written" in caplog.text


def test_states_that_a_model_does_not_have_are_refused(saved, caplog):
    assert saved.load(new_pool(recurrent=False)) == 0
    assert "contradicts the model" in caplog.text


@pytest.mark.parametrize("seed", range(60))
def test_damage_is_noticed(saved, caplog, seed):
    """Cut, flipped, overwritten or extended: what is loaded is right, and the pool is whole."""
    rng = random.Random(seed)
    data = bytearray(saved.path.read_bytes())
    match seed % 4:
        case 0:
            del data[rng.randrange(len(data)) :]
        case 1:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case 2:
            at = rng.randrange(len(data))
            data[at : at + 8] = rng.randbytes(8)
        case 3:
            at = rng.randrange(len(data))
            data[at:at] = rng.randbytes(rng.randrange(1, 40))
    saved.path.write_bytes(data)
    pool = new_pool()
    loaded = saved.load(pool)
    check_contents(pool)
    assert all(a.n_held == 0 for a in pool.allocators)
    assert caplog.records or loaded == 19
    run(pool, [1, 2, 3, 4, 5, 6])
    check_contents(pool)
