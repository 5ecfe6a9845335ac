"""The prefix tree, compared with a direct search for the longest common prefix."""

from __future__ import annotations

from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from zinc.kv import BlockAllocator, SlotAllocator, key_of
from zinc.kv import node as nodes
from zinc.kv.tree import PrefixTree

BLOCK = 4


class Keeper:
    """A prefix tree, with methods that insert sequences as the pool does."""

    def __init__(self, n_blocks=200, windows=(0,), n_slots=20, **options):
        self.allocators = [BlockAllocator(n_blocks) for _ in windows]
        self.slots = SlotAllocator(n_slots)
        self.windows = windows
        self.tree = PrefixTree(self.allocators, self.slots, windows, BLOCK, **options)

    def put(self, ids, state=False, last=None, namespace=b""):
        """Insert a sequence that still holds its last `last` blocks of window groups."""
        n = -(-len(ids) // BLOCK)
        tables = [a.acquire(n) for a in self.allocators]
        for table, window, allocator in zip(tables, self.windows, self.allocators, strict=True):
            if window and last is not None:
                allocator.release(table[: n - last])
                table[: n - last] = [-1] * (n - last)
        node, offset = self.tree.insert(key_of(ids), tables, namespace=namespace)
        if state:
            slot = self.slots.acquire()
            if not self.tree.put_state(node, offset, slot):
                self.slots.release(slot)
        for allocator, table in zip(self.allocators, tables, strict=True):
            allocator.release(b for b in table if b >= 0)
        self.check()
        return tables

    def check(self):
        self.tree.check()
        self.slots.check()
        for allocator in self.allocators:
            allocator.check()
            assert allocator.n_held == 0

    def find(self, ids, limit=1000, namespace=b""):
        return self.tree.find(key_of(ids), limit, namespace).n_tokens


def n_common(a, b):
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


IDS = st.lists(st.integers(0, 2), max_size=30)


@settings(deadline=None)
@given(st.lists(IDS, max_size=12), IDS, st.integers(0, 40))
def test_a_match_is_the_longest_common_prefix(sequences, ids, limit):
    keeper = Keeper()
    for other in sequences:
        keeper.put(other)
    want = max((n_common(ids, other) for other in sequences), default=0)
    assert keeper.find(ids, limit) == min(want, limit)
    n_blocks = len({tuple(o[: i + BLOCK]) for o in sequences for i in range(0, len(o), BLOCK)})
    assert keeper.allocators[0].n_idle <= n_blocks  # no block is kept for text that another has


@settings(deadline=None)
@given(st.lists(st.tuples(IDS, st.booleans()), max_size=10), IDS)
def test_a_recurrent_match_ends_at_a_checkpoint(sequences, ids):
    keeper = Keeper(recurrent=True)
    for other, state in sequences:
        keeper.put(other, state)
    ends = [len(o) for o, state in sequences if state and o == ids[: len(o)]]
    assert keeper.find(ids) == max(ends, default=0)
    match = keeper.tree.find(key_of(ids), 1000)
    assert (match.state >= 0) == (match.n_tokens > 0)


@settings(deadline=None)
@given(st.lists(st.tuples(IDS, st.integers(1, 3)), max_size=10), IDS, st.integers(1, 9))
def test_a_match_has_every_block_that_the_window_needs(sequences, ids, window):
    keeper = Keeper(windows=(0, window))
    for other, last in sequences:
        keeper.put(other, last=min(last, -(-len(other) // BLOCK)))
    match = keeper.tree.find(key_of(ids), 1000)
    n = match.n_tokens
    for position in range(max(0, n - window + 1), n):
        assert match.path[position // BLOCK].blocks[1] >= 0
    for i, node in enumerate(match.path):
        part = ids[i * BLOCK : n][:BLOCK]
        assert node.tokens[: 4 * len(part)] == key_of(part)


@settings(deadline=None)
@given(st.lists(IDS, min_size=1, max_size=12), st.data())
def test_eviction_frees_the_returned_count_and_keeps_the_tree_consistent(sequences, data):
    keeper = Keeper(windows=(0, 6), recurrent=True)
    for other in sequences:
        keeper.put(other, state=True)
    while keeper.allocators[0].n_idle:
        group = data.draw(st.integers(0, 1))
        allocator = keeper.allocators[group]
        count = data.draw(st.integers(1, 5))
        before = allocator.n_free
        freed = keeper.tree.evict_blocks(group, count)
        assert allocator.n_free - before == freed
        assert freed >= count or not allocator.n_idle
        keeper.check()
        if group == 1 and not allocator.n_idle:
            keeper.tree.evict_blocks(0, 1)
    assert len(keeper.tree) == 0
    assert keeper.slots.n_free == 20


def test_the_least_recently_used_is_evicted_first():
    keeper = Keeper()
    for first in range(3):
        keeper.put([first] * 8)
    keeper.tree.touch(keeper.tree.find(key_of([0] * 8), 100))
    keeper.tree.evict_blocks(0, 2)
    assert [keeper.find([first] * 8) for first in range(3)] == [8, 0, 8]


def test_a_block_in_use_is_not_evicted():
    keeper = Keeper(n_blocks=4)
    tables = [keeper.allocators[0].acquire(4)]
    keeper.tree.insert(key_of(range(16)), tables)
    assert keeper.tree.evict_blocks(0, 4) == 0
    assert keeper.find(range(16)) == 16
    keeper.allocators[0].release(tables[0])
    assert keeper.tree.evict_blocks(0, 4) == 4


def test_equal_texts_share_blocks():
    keeper = Keeper()
    first = keeper.put(list(range(10)))
    second = keeper.put([*range(10), 11, 12])
    assert second[0][:2] == first[0][:2]
    assert keeper.allocators[0].n_idle == 3


def test_kept_bytes_stay_within_the_limit():
    keeper = Keeper(block_bytes=[100], recurrent=True, state_bytes=50, limit_bytes=1000)
    for first in range(30):
        keeper.put([first] * 11, state=True)
        assert keeper.tree.n_bytes <= 1000
    assert keeper.find([29] * 11) == 11
    assert keeper.find([0] * 11) == 0


def test_a_checkpoint_moves_to_the_node_that_replaces_its_tail():
    keeper = Keeper(recurrent=True)
    keeper.put([1, 2], state=True)
    keeper.put([1, 2, 3, 4, 5, 6], state=True)
    assert keeper.find([1, 2, 9]) == 2
    assert len(keeper.tree) == 2


def test_the_least_recently_used_checkpoint_is_evicted_first():
    keeper = Keeper(recurrent=True)
    for first in range(4):
        keeper.put([first] * 3, state=True)
    keeper.tree.touch(keeper.tree.find(key_of([0] * 3), 10))
    spared = keeper.tree.find(key_of([1] * 3), 10).state
    assert keeper.tree.evict_state(except_slot=spared)
    assert [keeper.find([i] * 3) for i in range(4)] == [3, 3, 0, 3]
    assert keeper.tree.evict_state()
    assert [keeper.find([i] * 3) for i in range(4)] == [3, 0, 0, 3]
    keeper.check()


def test_a_match_among_many_siblings_compares_few(monkeypatch):
    """A thousand conversations share a system prompt and diverge within one block."""
    keeper = Keeper(n_blocks=1000, recurrent=True)
    keeper.put(range(6), state=True)
    for other in range(100, 500):
        keeper.put([*range(6), other, 1, 2, 3])
    plain = Keeper(n_blocks=1000)
    for other in range(100, 500):
        plain.put([*range(6), other, 1, 2, 3])
    compared = []
    common = nodes.common_tokens
    monkeypatch.setattr(nodes, "common_tokens", lambda a, b: compared.append(a) or common(a, b))
    assert plain.find([*range(6), 300, 1, 9]) == 8
    assert plain.find([*range(6), 7]) == 6
    assert keeper.find([*range(6), 300, 1, 9]) == 6
    assert len(compared) < 10


def test_a_growing_text_is_inserted_from_its_last_node(monkeypatch):
    keeper = Keeper()
    tables = [keeper.allocators[0].acquire(50)]
    seen = []
    child = PrefixTree._child
    monkeypatch.setattr(PrefixTree, "_child", lambda *args: seen.append(args) or child(*args))
    ids, after = list(range(200)), None
    for n in range(BLOCK, 200, BLOCK):
        after, _ = keeper.tree.insert(key_of(ids[:n]), tables, after)
    assert len(seen) == 49
    keeper.allocators[0].release(tables[0])
    keeper.tree.evict_blocks(0, 50)
    other = [keeper.allocators[0].acquire(50)]
    assert keeper.tree.insert(key_of(ids), other, after)[0].depth == 50, "it begins anew"
    keeper.allocators[0].release(other[0])
    keeper.check()
    assert keeper.find(ids) == 200


NAMESPACES = st.sampled_from([b"", b"a", b"b"])


@settings(max_examples=examples(200))
@given(st.lists(st.tuples(NAMESPACES, IDS, st.booleans()), max_size=12), NAMESPACES, IDS)
def test_namespaces_do_not_affect_each_other(texts, namespace, wanted):
    """A match is as long as in a tree that holds only its own namespace."""
    together, alone = (Keeper(recurrent=True) for _ in range(2))
    for whose, ids, state in texts:
        if ids:
            together.put(ids, state, namespace=whose)
            if whose == namespace:
                alone.put(ids, state)
    assert together.find(wanted, namespace=namespace) == alone.find(wanted)


def test_an_empty_namespace_leaves_no_root():
    keeper = Keeper()
    for i in range(20):
        keeper.put([1, 2, 3, 4, 5], namespace=b"%d" % i)
    assert keeper.find([1, 2, 3, 4, 5], namespace=b"19") == 5
    keeper.tree.clear()
    keeper.check()
    assert keeper.find([1, 2, 3, 4, 5], namespace=b"19") == 0
    assert len(keeper.tree) == len(keeper.tree._roots) == 0
