"""Tests of cache files in shared memory, with a store of objects in place of Ray's."""

from __future__ import annotations

import io
from typing import Any

import pytest
from engine.fetching import check, engine, prompt

from zinc.cluster.options import ClusterOptions, shared_folder
from zinc.cluster.shared_prefixes import Directory, SharedStore
from zinc.core.errors import RequestError
from zinc.kv import cache_file
from zinc.kv.cache_file import Header

HEADER = Header("key", bytes(16), bytes(16), (0,))


class Objects:
    """Objects by number. full: nothing more can be put. lost: numbers that are gone."""

    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.full = False
        self.lost: set[int] = set()

    def put(self, data: bytes) -> int:
        if self.full:
            raise OSError("the object store is full")
        self.data.append(data)
        return len(self.data) - 1

    def get(self, references: Any) -> list[bytes]:
        if self.lost.intersection(references):
            raise OSError("the owner died")
        return [self.data[each] for each in references]


class Shared:
    """A directory with its objects; `store` returns the store of one replica."""

    def __init__(self, limit_bytes: int = 1 << 24) -> None:
        self.directory, self.objects = Directory(limit_bytes), Objects()
        self.is_down = False

    def store(self, key: str = "key") -> SharedStore:
        def call(method: str, *args: object) -> Any:
            if self.is_down:
                raise OSError("the directory is down")
            return getattr(self.directory, method)(*args)

        return SharedStore(key, self.objects, call)


def test_a_file_is_written_once_and_found_under_its_key():
    shared = Shared()
    store = shared.store()
    store.write(HEADER, b"data")
    shared.store().write(HEADER, b"data")
    assert len(shared.objects.data) == 1
    found = store.find([HEADER.name, "missing.kv"])
    assert list(found) == [HEADER.name]
    (data,) = store.read(list(found.values()))
    assert len(data) == found[HEADER.name].n_bytes
    assert cache_file.read_header(io.BytesIO(data), "key").name == HEADER.name
    assert store.touch([HEADER.name, "missing.kv"]) == ["missing.kv"]
    assert shared.store("other").find([HEADER.name]) == {}
    store.remove(HEADER.name)  # another replica may use it
    assert store.find([HEADER.name])
    store.discard(HEADER.name)
    assert store.find([HEADER.name]) == {}


def test_the_directory_drops_the_least_recently_used_file():
    directory = Directory(100)
    for name in ("a", "b"):
        directory.add("key", name, [name], 40)
    directory.add("key", "a", ["a"], 40)  # again
    directory.touch("key", ["b"])
    directory.add("key", "c", ["c"], 40)
    assert directory.find("key", "abc") == {"b": ("b", 40), "c": ("c", 40)}
    directory.add("key", "d", ["d"], 200)
    assert directory.find("key", "abcd") == {}


@pytest.mark.parametrize("kind", ["full", "everything"])
def test_replicas_give_the_same_answers_from_shared_memory(kind):
    shared = Shared()
    first, second = engine(kind, shared.store()), engine(kind, shared.store())
    for seed in range(3):
        check(kind, first, prompt(seed))
        first.flush()
        check(kind, second, prompt(seed))
    assert second.pool.stats.fetched_tokens > 100
    shared.objects.lost = set(range(len(shared.objects.data)))
    third = engine(kind, shared.store())
    check(kind, third, prompt())
    assert third.pool.stats.fetched_tokens == 0
    for each in (first, second, third):
        each.close()


def test_a_full_object_store_or_a_lost_directory_stops_no_request(caplog):
    shared = Shared()
    first = engine("full", shared.store())
    shared.objects.full = True
    check("full", first, prompt())
    first.flush()
    assert caplog.text.count("the object store is full") == 1
    assert "the memory that replicas share" in caplog.text
    shared.is_down = True
    second = engine("full", shared.store())
    check("full", second, prompt())
    assert "the directory is down" in caplog.text
    first.close()
    second.close()


@pytest.mark.parametrize("other", [{"cache_dir": "/tmp/x"}, {"no_prefix_cache": True}])
def test_shared_prefixes_need_a_prefix_cache_of_their_own(other):
    with pytest.raises(RequestError, match="--share-prefixes cannot be used with"):
        ClusterOptions(serve=other, share_prefixes="memory")
    assert ClusterOptions(serve=other)


def test_a_shared_folder_is_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert shared_folder("memory") == "memory"
    assert shared_folder("some/where") == str(tmp_path / "some/where")
