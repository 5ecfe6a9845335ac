"""The prefix cache on disk: restored after a restart, and never used if damaged."""

from __future__ import annotations

import errno
import logging
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from zinc.core.errors import DeviceError, RequestError
from zinc.kv import CachePool, Group, cache_file, key_of
from zinc.kv.disk import FIRST_PAUSE_S, LONGEST_PAUSE_S, DiskCache, check_folder
from zinc.kv.store import FolderStore

BLOCK, SIZE = 4, 16


class Memory:
    """A copier whose blocks and slots are byte arrays."""

    def __init__(self, groups, n_slots):
        self.groups = [np.zeros((2, g.n_blocks, SIZE), np.uint8) for g in groups]
        self.slots = np.zeros((n_slots, SIZE), np.uint8)

    def copy_block(self, group, source, target):
        self.groups[group][:, target] = self.groups[group][:, source]

    def copy_state(self, source, target):
        self.slots[target] = self.slots[source]

    def block_views(self, group, block):
        return [layer[block].copy() for layer in self.groups[group]]

    def put_block(self, group, block, views):
        for layer, view in zip(self.groups[group], views, strict=True):
            layer[block] = view

    def state_views(self, slot):
        return [self.slots[slot].copy()]

    def put_state(self, slot, views):
        self.slots[slot] = views[0]


def new_pool(n_blocks=40, n_slots=8, recurrent=True):
    groups = [Group(n_blocks, 0, 2 * SIZE), Group(n_blocks, 6, 2 * SIZE)]
    memory = Memory(groups, n_slots)
    return CachePool(groups, BLOCK, n_slots, memory, 16, recurrent=recurrent, state_bytes=SIZE)


def run(pool, ids, namespace=b""):
    """Run a sequence; each block and state contains a value derived from its text."""
    allocation, n = pool.attach(key_of(ids), len(ids) - 1, namespace)
    pool.grow(allocation, len(ids))
    for group, table in enumerate(allocation.tables):
        for i, block in enumerate(table):
            if block >= 0 and i >= n // BLOCK:
                views = [content(ids[: (i + 1) * BLOCK], group, layer) for layer in range(2)]
                pool.copier.put_block(group, block, views)
    pool.copier.slots[allocation.slot] = content(ids, 9, 9)
    pool.trim(allocation, len(ids))
    pool.release(allocation, key_of(ids))


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
N_TOKENS = 4 + 4 + 2 + 3 + 4 + 2
BLOCKS_BYTES, STATE_BYTES = 2 * 2 * SIZE, SIZE


def write(folder, conversations=CONVERSATIONS, limit_bytes=None, pool=None):
    pool = pool or new_pool()
    disk = DiskCache(FolderStore(folder, "key"), pool, limit_bytes)
    disk.load()
    for ids in conversations:
        run(pool, ids)
    check_contents(pool)
    disk.close()
    return pool


def read(folder, pool=None, key="key"):
    """Return a pool restored from the folder, and the number of restored tokens."""
    pool = pool or new_pool()
    disk = DiskCache(FolderStore(folder, key), pool, 1 << 20)
    n_tokens = disk.load()
    check_contents(pool)
    assert all(a.n_held == 0 for a in pool.allocators)
    assert not disk.has_pending
    disk.close()
    return pool, n_tokens


def files(folder, suffix=""):
    return sorted(p for p in (folder / "key").iterdir() if p.name.endswith(suffix))


@pytest.fixture
def saved(tmp_path):
    write(tmp_path)
    return tmp_path


def test_kept_prefixes_are_restored(saved):
    pool, n_tokens = read(saved)
    assert n_tokens == N_TOKENS
    for ids in CONVERSATIONS:
        assert pool.prefix_hit(key_of([*ids, 99]), len(ids)).n_cached == len(ids)


def test_a_restored_namespace_matches_only_itself(tmp_path):
    pool = new_pool(n_blocks=80, n_slots=20)
    disk = DiskCache(FolderStore(tmp_path, "key"), pool)
    for namespace, ids in zip([b"a", b"b", b"a", b""], CONVERSATIONS, strict=True):
        run(pool, ids, namespace)
    disk.close()
    pool, n_tokens = read(tmp_path, new_pool(n_blocks=80, n_slots=20))
    assert n_tokens == sum(map(len, CONVERSATIONS)) - 4  # two begin with one block
    for namespace in (b"", b"a", b"b"):
        found = [
            pool.prefix_hit(key_of([*ids, 99]), len(ids), namespace).n_cached == len(ids)
            for ids in CONVERSATIONS
        ]
        assert found == [each == namespace for each in (b"a", b"b", b"a", b"")]
    assert pool.prefix_hit(key_of([1, 2, 3, 4, 5]), 5).n_cached == 0


def test_files_are_readable_by_their_owner_alone(saved):
    assert len(files(saved)) == 6 + 4
    for path in (saved / "key", *files(saved)):
        assert path.stat().st_mode & 0o077 == 0


def test_a_file_is_written_once(saved):
    for path in files(saved):  # long ago, by any clock
        os.utime(path, (1, 1))
    before = {p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in files(saved)}
    pool = new_pool()
    disk = DiskCache(FolderStore(saved, "key"), pool)
    disk.load()
    run(pool, CONVERSATIONS[0])
    disk.close()
    after = {p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in files(saved)}
    assert {n: inode for n, (inode, _) in before.items()} == {n: i for n, (i, _) in after.items()}
    used = [n for n in before if after[n][1] > before[n][1]]
    assert len(used) == 3 + 1  # so that they are known to be the most recent


def test_bytes_written_per_step_are_bounded_and_parents_come_first(tmp_path):
    pool = new_pool()
    disk = DiskCache(FolderStore(tmp_path, "key"), pool)
    run(pool, list(range(40)))
    sizes = []
    while disk.has_pending:
        disk.collect(limit_bytes=2 * BLOCKS_BYTES)
        for _ in range(9):
            disk.wait()
        sizes.append(len(files(tmp_path, ".kv")))
        # Killed now, all of it is found again.
        assert read(tmp_path)[1] == 4 * sizes[-1]
    assert sizes[-1] == 10
    # Those that have left the window are half as large.
    assert max(np.diff([0, *sizes])) <= 4
    disk.close()


def test_prefixes_committed_by_a_running_sequence_are_written(tmp_path):
    pool = new_pool()
    disk = DiskCache(FolderStore(tmp_path, "key"), pool)
    allocation, _ = pool.attach(b"", 0)
    pool.grow(allocation, 8)
    pool.checkpoint(allocation, key_of([1, 2, 3, 4, 5]))
    disk.flush()
    assert [len(files(tmp_path, suffix)) for suffix in (".kv", ".state")] == [2, 1]
    pool.release(allocation, key_of([1, 2, 3, 4, 5, 6]))
    disk.flush()
    assert [len(files(tmp_path, suffix)) for suffix in (".kv", ".state")] == [2, 2]
    disk.close()


def test_a_longer_text_replaces_its_shorter_tail(tmp_path):
    write(tmp_path, [[1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6]])
    assert len(files(tmp_path, ".kv")) == 2
    assert len(files(tmp_path, ".state")) == 2  # of a recurrent layer each is good for a branch
    pool, n_tokens = read(tmp_path)
    assert n_tokens == 6
    assert pool.tree.n_states == 2
    write(tmp_path, [[1, 2, 3, 4, 5, 6, 7, 8]])
    assert len(files(tmp_path, ".kv")) == 2


def test_a_smaller_cache_restores_the_most_recent_and_leaves_a_slot(saved):
    pool, n_tokens = read(saved, new_pool(n_blocks=3, n_slots=2))
    assert 0 < n_tokens <= 12
    assert pool.slots.n_free == 1
    assert pool.prefix_hit(key_of([30, 31, 1]), 2).n_cached == 2
    assert len(files(saved)) == 6 + 4  # the rest is there for a larger one


def test_order_of_use_survives_a_restart(tmp_path):
    for first in (1, 5, 9):
        write(tmp_path, [[first] * 4])
    write(tmp_path, [[1] * 4])
    pool, _ = read(tmp_path, new_pool(n_blocks=3))
    allocation, _ = pool.attach(key_of([40] * 8), 7)
    pool.grow(allocation, 8)
    pool.release(allocation)
    assert pool.prefix_hit(key_of([1] * 5), 4).n_cached == 4
    assert pool.prefix_hit(key_of([5] * 5), 4).n_cached == 0


def test_the_limit_keeps_the_most_recent_files(tmp_path):
    write(tmp_path, limit_bytes=BLOCKS_BYTES + STATE_BYTES)
    assert len(files(tmp_path)) == 2
    pool, n_tokens = read(tmp_path)
    assert n_tokens == 2
    assert pool.prefix_hit(key_of([30, 31, 1]), 2).n_cached == 2


def test_the_limit_keeps_the_beginning_of_a_long_text(tmp_path):
    write(tmp_path, [list(range(40))], limit_bytes=4 * BLOCKS_BYTES)
    n_blocks = len(files(tmp_path, ".kv"))
    assert 4 <= n_blocks < 10
    assert read(tmp_path)[1] == 4 * n_blocks


def test_prefixes_evicted_from_memory_stay_on_disk(tmp_path):
    pool = write(tmp_path, [[i] * 8 for i in range(1, 7)], pool=new_pool(n_blocks=4))
    assert len(pool.tree) <= 4
    write(tmp_path, [[i] * 8 for i in range(1, 7)], limit_bytes=1 << 20)
    assert read(tmp_path)[1] == 48


def test_removed_files_are_written_again_when_used(tmp_path):
    pool = new_pool()
    disk = DiskCache(FolderStore(tmp_path, "key"), pool)
    for ids in CONVERSATIONS:
        run(pool, ids)
    disk.flush()
    shutil.rmtree(tmp_path / "key")
    for _ in range(2):  # it is missed, and then written
        for ids in CONVERSATIONS:
            run(pool, [*ids, 99])
        disk.flush()
    disk.close()
    found, n_tokens = read(tmp_path)
    assert n_tokens == N_TOKENS + len(CONVERSATIONS)
    assert len(found.tree) == len(pool.tree)


def test_a_missing_folder_restores_nothing_without_a_warning(tmp_path, caplog):
    assert read(tmp_path / "no" / "where")[1] == 0
    write(tmp_path, [])
    assert not caplog.records
    assert not list(tmp_path.iterdir())


def test_a_folder_of_another_model_is_ignored_with_a_warning(saved, caplog):
    (saved / "key").rename(saved / "other")
    with caplog.at_level(logging.WARNING):
        assert read(saved, key="other")[1] == 0
    assert "belongs to another model" in caplog.text
    assert not list((saved / "other").iterdir())


@pytest.mark.parametrize(
    ("folder", "why"),
    [("/dev/null", "it is not a folder"), ("/dev/null/a", "it is not a folder"), ("/proc/a", "")],
)
def test_a_folder_that_cannot_be_written_is_refused(folder, why):
    with pytest.raises(RequestError, match=f"cannot be kept in {folder}: {why}"):
        check_folder(Path(folder))


def test_a_folder_is_made_readable_by_its_owner_alone(tmp_path):
    check_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").stat().st_mode & 0o077 == 0
    assert not list((tmp_path / "a" / "b").iterdir())
    check_folder(tmp_path / "a" / "b")


class FullDisk:
    """A replacement of write_file that fails while `error` is set and counts its calls."""

    def __init__(self, monkeypatch, number=errno.ENOSPC):
        self.error = OSError(number, os.strerror(number))
        self.n_tries = 0
        self._write = cache_file.write_file
        monkeypatch.setattr(cache_file, "write_file", self.write)

    def write(self, *arguments):
        self.n_tries += 1
        if self.error is not None:
            raise self.error
        self._write(*arguments)


def messages(caplog):
    return [record.message for record in caplog.records]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EIO])
def test_writing_goes_on_after_a_pause(tmp_path, caplog, monkeypatch, number):
    now = 1000.0
    full = FullDisk(monkeypatch, number)
    pool = new_pool()
    disk = DiskCache(FolderStore(tmp_path, "key"), pool, clock=lambda: now)
    for ids in CONVERSATIONS:
        run(pool, ids)
        disk.flush()
    assert full.n_tries == 1
    assert not disk.has_pending
    now += FIRST_PAUSE_S - 1
    disk.flush()
    assert full.n_tries == 1
    now += 2
    disk.flush()
    assert full.n_tries == 2
    now += FIRST_PAUSE_S + 1  # the second pause is twice as long
    disk.flush()
    assert full.n_tries == 2
    assert len(messages(caplog)) == 1
    assert "cannot be written" in messages(caplog)[0]

    full.error = None
    now += FIRST_PAUSE_S
    disk.flush()
    assert "again" in messages(caplog)[-1]
    assert len(messages(caplog)) == 2
    check_contents(pool)
    assert read(tmp_path)[1] == N_TOKENS  # also what was kept before and during the pause
    full.error = OSError(errno.ENOSPC, "full again")
    run(pool, [50, 51, 52, 53, 54])
    disk.flush()
    assert len(messages(caplog)) == 3
    full.error = None
    now += FIRST_PAUSE_S + 1  # the pauses start short again
    disk.flush()
    assert read(tmp_path)[1] == N_TOKENS + 5
    disk.close()


def test_pauses_grow_to_a_limit(tmp_path, monkeypatch):
    now = 0.0
    full = FullDisk(monkeypatch)
    pool = new_pool()
    disk = DiskCache(FolderStore(tmp_path, "key"), pool, clock=lambda: now)
    run(pool, CONVERSATIONS[0])
    tried_at = []
    while now < 10 * LONGEST_PAUSE_S:
        before = full.n_tries
        disk.flush()
        tried_at += [now] * (full.n_tries > before)
        now += 5
    pauses = np.diff(tried_at)
    assert pauses[0] == FIRST_PAUSE_S
    assert pauses[-1] == LONGEST_PAUSE_S
    assert (np.diff(pauses) >= 0).all()
    disk.close()


def test_closing_tries_once_more(tmp_path, monkeypatch):
    full = FullDisk(monkeypatch)
    pool = new_pool()
    disk = DiskCache(FolderStore(tmp_path, "key"), pool, clock=lambda: 0.0)
    for ids in CONVERSATIONS:
        run(pool, ids)
        disk.flush()
    full.error = None
    disk.close()
    assert read(tmp_path)[1] == N_TOKENS


def test_a_long_pause_queues_only_nodes_in_the_tree(tmp_path, monkeypatch):
    FullDisk(monkeypatch)
    pool = new_pool(n_blocks=8)
    disk = DiskCache(FolderStore(tmp_path, "key"), pool, clock=lambda: 0.0)
    for first in range(300):
        run(pool, [first + 1] * 8)
        disk.collect()
    assert len(pool.tree.watch()) < 100
    disk.close()


def test_files_are_removed_during_a_pause(tmp_path, monkeypatch):
    now = 0.0
    full = FullDisk(monkeypatch)
    full.error = None
    pool = new_pool()
    disk = DiskCache(FolderStore(tmp_path, "key"), pool, 4 * BLOCKS_BYTES, clock=lambda: now)
    run(pool, [1, 2])
    disk.flush()
    (old,) = files(tmp_path, ".kv")
    full.error = OSError(errno.ENOSPC, "full")
    run(pool, [1, 2, 3])  # takes the place of its beginning
    disk.flush()
    assert not old.exists()
    disk.close()


def test_a_device_error_warns_once(tmp_path, caplog, monkeypatch):
    now = 0.0
    pool = new_pool()
    disk = DiskCache(FolderStore(tmp_path, "key"), pool, clock=lambda: now)
    block_views = pool.copier.block_views

    def lost(group, block):
        raise DeviceError("the device is lost")

    monkeypatch.setattr(pool.copier, "block_views", lost)
    for ids in CONVERSATIONS:
        run(pool, ids)
        disk.collect()
    assert not disk.has_pending
    assert len(messages(caplog)) == 1
    assert "the device is lost" in messages(caplog)[0]
    monkeypatch.setattr(pool.copier, "block_views", block_views)
    now += FIRST_PAUSE_S
    disk.close()
    assert read(tmp_path)[1] == N_TOKENS


def test_states_of_a_model_without_recurrent_layers_are_ignored(saved, caplog):
    _, n_tokens = read(saved, new_pool(recurrent=False))
    assert n_tokens == N_TOKENS
    assert "does not fit the model" in caplog.text


def test_temporary_files_of_a_killed_process_are_removed(saved):
    old, new = (saved / "key" / f"tmp-{name}" for name in ("old", "new"))
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    read(saved)
    assert new.exists()
    assert not old.exists()


@pytest.mark.alike(14)
@pytest.mark.parametrize("seed", range(60))
def test_damaged_files_are_ignored(saved, caplog, seed):
    """Files are cut, overwritten or extended; restored data is right and the pool consistent."""
    rng = random.Random(seed)
    path = rng.choice(files(saved))
    data = bytearray(path.read_bytes())
    match seed % 5:
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
        case 4:
            data = rng.choice(files(saved)).read_bytes()  # another one under its name
    same = data == path.read_bytes()
    path.write_bytes(data)
    pool, n_tokens = read(saved)
    assert caplog.records or same
    assert n_tokens <= N_TOKENS
    assert path.exists() == same
    # What is lost is run again, and written again.
    write(saved, pool=pool)
    caplog.clear()
    assert read(saved)[1] == N_TOKENS
    assert not caplog.records
