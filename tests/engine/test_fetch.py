"""Prefixes of other processes: answers stay the same, whatever a store does (fake.py)."""

from __future__ import annotations

import random

import pytest
from engine.fake import BLOCK, KINDS, alone
from engine.fetching import ENDS, N_PROMPT, MemoryStore, check, engine, prompt

from zinc.engine.request import Request
from zinc.engine.sampling import SamplingParams
from zinc.kv.fetch import FetchRates


def filled(kind, *prompts):
    """Return a store with the cache files of an engine that has answered the prompts."""
    store = MemoryStore()
    e = engine(kind, store)
    for ids in prompts:
        check(kind, e, ids)
    e.close()
    return store


@pytest.mark.parametrize("kind", KINDS)
def test_another_engine_fetches_what_one_has_run(kind):
    store = MemoryStore()
    first = engine(kind, store)
    check(kind, first, prompt())
    own = check(kind, first, prompt()).n_cached
    first.flush()
    second = engine(kind, store)
    s = check(kind, second, prompt())
    assert s.n_cached >= own // BLOCK * BLOCK
    assert second.program.n_run <= N_PROMPT - s.n_cached + 20
    assert second.pool.stats.fetched_tokens > 0
    first.close()
    second.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_that_differs_later_gets_the_common_blocks(kind):
    store, common = filled(kind, prompt()), N_PROMPT // 2
    e = engine(kind, store)
    n_cached = check(kind, e, [*prompt()[:common], *prompt(1)[common:]]).n_cached
    # The checkpoint of a recurrent model lies within a block that differs.
    assert n_cached >= (0 if e.pool.recurrent else common // BLOCK * BLOCK)
    e.close()


@pytest.mark.parametrize("kind", ["full", "sliding", "recurrent"])
def test_what_was_fetched_is_not_written_or_fetched_again(kind):
    store = filled(kind, prompt())
    e = engine(kind, store)
    before = dict(store.files)
    check(kind, e, prompt())
    n_read = store.n_read
    check(kind, e, prompt())
    assert store.n_read == n_read
    e.flush()
    assert {name: store.files[name] for name in before if name in store.files} == before
    e.close()


def test_namespaces_share_nothing():
    store = filled("full", prompt())
    e = engine("full", store)
    params = SamplingParams(temperature=0, max_tokens=4)
    s = e.submit(Request(prompt(), params, ENDS, namespace=b"other"))
    while s.finish_reason is None:
        e.step()
    assert s.n_cached == e.pool.stats.fetched_tokens == 0
    e.close()


def flip(name, data):
    return data[:-1] + bytes([data[-1] ^ 1])


DAMAGE = {
    "data": flip,
    "header": lambda name, data: data[:40] + b"x" + data[41:],
    "short": lambda name, data: data[:-5],
    "long": lambda name, data: data + b"x",
    "empty": lambda name, data: b"",
    "foreign": lambda name, data: data.replace(b'"key":"key"', b'"key":"kez"'),
}


@pytest.mark.parametrize("kind", ["full", "everything"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files_are_run_instead(kind, damage, caplog):
    store = filled(kind, prompt())
    names = list(store.files)
    for at in (0, len(names) // 2):
        store.damage = lambda name, data, bad=names[at]: (
            DAMAGE[damage](name, data) if name == bad else data
        )
        e = engine(kind, store)
        check(kind, e, prompt())
        e.close()
    assert "is ignored" in caplog.text


@pytest.mark.parametrize("kind", KINDS)
def test_files_that_vanish_are_run_instead(kind):
    store = filled(kind, prompt())
    for n in range(0, len(store.files), 3):
        store.lost = set(random.Random(n).sample(sorted(store.files), n))
        e = engine(kind, store)
        check(kind, e, prompt())
        e.close()


def test_a_store_that_fails_is_reported_once(caplog):
    store = filled("full", prompt())
    store.error = OSError("the network is down")
    e = engine("full", store)
    for seed in range(3):
        check("full", e, prompt(seed))
    assert caplog.text.count("the network is down") == 1
    e.close()


def test_other_requests_run_while_a_prefix_is_fetched():
    store = filled("full", prompt())
    e = engine("full", store)
    store.gate.clear()
    params = SamplingParams(temperature=0, max_tokens=20)
    slow = e.submit(Request(prompt(), params, ENDS))
    assert check("full", e, prompt(5)).finish_reason
    assert slow.n_run == 0
    store.gate.set()
    while slow.finish_reason is None:
        e.step()
    assert slow.ids == alone("full", prompt(), 20, ENDS)
    assert slow.n_cached > 0
    e.close()


def test_a_fetch_that_takes_too_long_is_given_up(monkeypatch):
    monkeypatch.setattr("zinc.kv.fetch._PATIENCE_S", 0.05)
    store = filled("full", prompt())
    e = engine("full", store)
    check("full", e, prompt(5))  # measures how long tokens take
    store.gate.clear()
    assert check("full", e, prompt()).n_cached == 0
    store.gate.set()
    e.close()


def test_a_cancelled_request_stops_its_fetch():
    store = filled("full", prompt())
    e = engine("full", store)
    store.gate.clear()
    s = e.submit(Request(prompt(), SamplingParams(temperature=0, max_tokens=20), ENDS))
    e.step()
    e.cancel(s)
    store.gate.set()
    while not e.idle:
        e.step()
    assert check("full", e, prompt(6)).finish_reason
    e.close()


def test_a_prefix_is_run_if_that_is_faster():
    store = filled("full", prompt())
    e = engine("full", store)
    check("full", e, prompt(5))
    fetcher = e.cache_manager._fetcher
    assert fetcher is not None
    fetcher.rates.byte_s, n_read = 1.0, store.n_read
    assert check("full", e, prompt()).n_cached == 0
    assert store.n_read == n_read
    e.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_prefix_that_is_larger_than_the_cache_is_run(kind):
    store = filled(kind, prompt())
    e = engine(kind, store, n_blocks=24)
    check(kind, e, prompt(5))
    check(kind, e, prompt())
    check(kind, e, prompt(7))
    e.close()


def test_rates_follow_what_is_measured():
    rates = FetchRates(find_s=0.0, byte_s=0.0)
    for _ in range(40):
        rates.found(1.0)
        rates.fetched(100, 1.0)
        rates.fetched(0, 1.0)
    assert rates.find_s == pytest.approx(1.0, rel=1e-3)
    assert rates.byte_s == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_looked_up_that_no_file_can_have(kind):
    store = MemoryStore()
    e = engine(kind, store)
    for first in (1, 2):
        check(kind, e, [first] * (BLOCK - 1))
    assert store.n_asked == 0
    e.close()
