"""Engines on a store of cache files, with a model whose answers reveal every mistake (fake.py)."""

from __future__ import annotations

import random
import threading
import time

from engine.fake import END, VOCAB, alone, model

from zinc.engine.engine import Engine
from zinc.engine.request import Request
from zinc.engine.sampling import SamplingParams
from zinc.kv import cache_file
from zinc.kv.fetch import FetchRates
from zinc.kv.store import Entry

ENDS = frozenset([END])
N_PROMPT = 150
PATIENCE_S = 300  # long enough for a busy machine


class MemoryStore:
    """A store in memory, as several engines share it.

    damage: changes contents when they are read. lost: names that `read` no longer finds. gate:
    reading waits for it. error: raised by `find`.
    """

    key = "key"

    def __init__(self):
        self.files = {}
        self.damage = lambda name, data: data
        self.lost = set()
        self.gate = threading.Event()
        self.gate.set()
        self.error = None
        self.n_read = self.n_asked = 0

    def write(self, header, data):
        self.files[header.name] = cache_file.file_start(self.key, header, data) + data

    def touch(self, names):
        return [name for name in names if name not in self.files]

    def remove(self, name):
        self.files.pop(name, None)

    def find(self, names):
        self.n_asked += 1
        if self.error is not None:
            raise self.error
        return {name: Entry(name, len(self.files[name])) for name in names if name in self.files}

    def discard(self, name):
        self.remove(name)

    def read(self, entries):
        for name in [entry.name for entry in entries]:
            assert self.gate.wait(PATIENCE_S)
            if name in self.lost:
                return
            self.n_read += 1
            yield self.damage(name, self.files[name])

    def recover(self, pool):
        return {}, 0


class FreeRates(FetchRates):
    """Rates that stay as they are, so that tests do not depend on times."""

    def found(self, seconds):
        pass

    def fetched(self, n_bytes, seconds):
        pass


def engine(kind, store, n_blocks=64, **options):
    program, cache = model(kind, n_blocks)
    e = Engine(program, cache, VOCAB, 400, prompt_tokens_beside_streams=10, **options)
    e.attach_store(store, fetch=True)
    assert e.cache_manager._fetcher is not None
    e.cache_manager._fetcher.rates = FreeRates(0.0, 0.0)
    return e


def ask(e, ids, n=20):
    """Return the sequence of a prompt after its end, and check its answer."""
    s = e.submit(Request(ids, SamplingParams(temperature=0, max_tokens=n), ENDS))
    until = time.monotonic() + PATIENCE_S
    while s.finish_reason is None:
        assert time.monotonic() < until
        e.step()
    assert s.error is None
    return s


def check(kind, e, ids, n=20):
    s = ask(e, ids, n)
    assert s.ids == alone(kind, ids, n, ENDS)
    e.pool.check()
    return s


def prompt(seed=0, n=N_PROMPT):
    """Return a prompt of two turns."""
    ids = random.Random(seed).choices(range(VOCAB - 1), k=n)
    return [*ids[: n // 2], END, *ids[n // 2 + 1 :]]
