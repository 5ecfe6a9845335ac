"""Tests of `zinc cluster simulate`: step times, traffic, a replica, and a cluster that ran."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from zinc.cli.main import main
from zinc.cluster.prompt_blocks import split
from zinc.cluster.simulation import replica as replicas
from zinc.cluster.simulation.events import SimulatedCluster, simulate
from zinc.cluster.simulation.rates import StepTimes, step_times
from zinc.cluster.simulation.result import Result
from zinc.cluster.simulation.workload import Traffic, generate, read_trace, requests
from zinc.core.errors import RequestError

# 1 ms for a token of a prompt, 10 ms for each decode step, 1 us for a cached key.
TIMES = StepTimes((1, 10, 512), (0.010, 0.010, 0.512), 1e-6, 0.0, 512)
TRAFFIC = Traffic(100, 5.0, systems=3, turns=4, think_s=2.0, system_tokens=160, turn_tokens=64,
                  answer_tokens=32)  # fmt: skip


def report(streams: int, decode: float, prefill: int = 128, speed: float = 1000, depth: int = 0):
    return {
        "streams": streams, "depth": depth, "decode_tokens": 2, "decode_tokens_per_s": decode,
        "prefill_tokens": prefill, "prefill_tokens_per_s": speed, "step_tokens": 512,
    }  # fmt: skip


def run(lines: list[dict[str, Any]], replicas: int = 1, router: str = "prefix", **more: Any):
    given = {"times": TIMES, "kv_tokens": 100_000, "overhead_s": 0.5, **more}
    return simulate(SimulatedCluster(replicas, router, **given), requests(lines))


def line(at: float, n_bytes: int, answer_tokens: int = 1, letter: str = "x") -> dict[str, Any]:
    """Return a request whose prompt has as many tokens as bytes."""
    prompt = {"prompt": letter * n_bytes}
    return {"at": at, "body": prompt, "prompt_tokens": n_bytes, "answer_tokens": answer_tokens}


# -- step times -----------------------------------------------------------------------------------


def test_step_times_pass_through_what_was_measured():
    times = step_times([report(1, 100), report(8, 400)])
    assert times.step_s(1) == pytest.approx(0.01)
    assert times.step_s(8) == pytest.approx(0.02)
    assert times.step_s(128) == pytest.approx(0.128)
    assert times.step_s(68) == pytest.approx((0.02 + 0.128) / 2)
    assert times.step_s(256) == pytest.approx(0.256)  # as long per token as the largest


def test_depths_give_the_cost_of_keys_and_prompts_that_of_pairs():
    key_s, token_s, pair_s = 2e-6, 1e-3, 4e-7
    reports = [
        report(2, 2 / (0.01 + key_s * 2 * (depth + 1)), n, 1 / (token_s + pair_s * n / 2), depth)
        for depth, n in ((0, 100), (1000, 400))
    ]
    times = step_times(reports)
    assert times.key_s == pytest.approx(key_s)
    assert times.pair_s == pytest.approx(pair_s)
    assert times.step_s(2, keys=500) == pytest.approx(0.01 + 500 * key_s)
    assert times.step_s(400, pairs=1000) == pytest.approx(0.4 + 1000 * pair_s)


def test_reports_that_lack_something_are_refused():
    with pytest.raises(RequestError, match="lack prefill or decode"):
        step_times([{**report(1, 100), "prefill_tokens_per_s": None}])
    with pytest.raises(RequestError, match="not a result of `zinc bench`"):
        step_times([{"a": 1}])


# -- traffic --------------------------------------------------------------------------------------


def test_generated_turns_follow_each_other_and_begin_alike():
    lines = generate(TRAFFIC, seed=1)
    assert lines == generate(TRAFFIC, seed=1) != generate(TRAFFIC, seed=2)
    found = requests(lines)
    assert len(found) == 100
    n_following = 0
    for each in found:
        if each.follows is not None:
            before = found[each.follows]
            assert split(each.cached)[: len(split(before.kept))] == split(before.kept)
            n_following += 1
    assert 60 <= n_following <= 75  # 3 of 4 turns, but for conversations that go on
    assert len({split(each.cached)[0] for each in found}) == 3


def test_conversations_arrive_at_the_rate_and_lengths_have_their_mean():
    lines = generate(Traffic(4000, rate=8.0, turns=2, think_s=0.0, system_tokens=16))
    starts = [each["at"] for each in lines if "at" in each]
    gaps = [b - a for a, b in pairwise(starts)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(2 / 8.0, rel=0.1)
    # Of an exponential distribution, a part of 1 / e is longer than the mean.
    assert sum(gap > mean for gap in gaps) / len(gaps) == pytest.approx(1 / math.e, abs=0.04)
    tokens = [each["answer_tokens"] for each in lines]
    assert sum(tokens) / len(tokens) == pytest.approx(150, rel=0.1)


def test_a_trace_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "trace.jsonl"
    lines = generate(TRAFFIC)
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    assert read_trace(path) == lines
    body = {"messages": [{"role": "user", "content": "x" * 400}]}
    path.write_text(json.dumps({"at": 1.5, "body": {**body, "max_tokens": 7}}))
    (found,) = requests(read_trace(path))
    assert (found.at_s, found.answer_tokens, found.kept) == (1.5, 7, found.cached)
    assert found.prompt_tokens == pytest.approx(100, abs=16)


OTHER = ["", "1", "{", '{"at": 0}', '{"body": {}}', '{"body": {}, "at": -1}']


@pytest.mark.parametrize("text", [*OTHER, '{"body": {}, "follows": 0}'])
def test_other_files_are_no_traces(tmp_path, text):
    path = tmp_path / "trace.jsonl"
    path.write_text(text)
    with pytest.raises(RequestError, match=r"the trace (has no requests|cannot be read)"):
        read_trace(path)


# -- a replica ------------------------------------------------------------------------------------


def test_a_request_alone_takes_the_time_of_its_steps():
    result = run([line(3.0, 600, 5)])
    assert result.first_tokens_s == [pytest.approx(0.5 + 0.600)]
    keys = [601, 602, 603, 604]
    total = sum(gap * count for gap, count in result.gaps)
    assert total == pytest.approx(sum(0.010 + 1e-6 * n for n in keys))
    assert result.ends_s - result.begins_s == pytest.approx(1.1 + total)


def test_prompts_stall_a_stream_for_one_small_chunk_at_a_time():
    result = run([line(0.0, 64, 200), line(1.0, 640, 1, "y")])
    # Beside a stream, a step has at most 128 tokens of prompts (and the stream's own).
    stalls = [gap for gap, _ in result.gaps if gap > 0.02]
    assert len(stalls) == 5
    assert max(stalls) == pytest.approx(0.129, rel=0.01)
    assert min(result.first_tokens_s) == pytest.approx(0.5 + 0.064)


def test_streams_share_steps_and_a_second_turn_runs_only_what_is_new():
    both = run([line(0.0, 64, 101), line(0.0, 64, 101, "y")])
    keys = sum(2 * (65 + i) for i in range(100))
    # A step of the first prompt, one of its stream and the second prompt, and 100 of streams.
    assert both.busy_s == pytest.approx(0.064 + 0.065 + 100 * 0.010 + 1e-6 * keys)
    lines = generate(Traffic(2, 1.0, 1, 2, 0.0, 160, 64, 32, even=True))
    result = run(lines)
    first, second = requests(lines)
    kept = len(split(first.kept)) * second.block_tokens
    assert result.cached_tokens == int(kept)
    assert result.hit_rate == result.cached_tokens / result.prompt_tokens


def test_a_small_cache_evicts_the_least_recently_used_prompt():
    lines = [line(i * 10.0, 640, letter=c) for i, c in enumerate("abab")]
    assert run(lines, kv_tokens=1500).cached_tokens == 2 * 639
    # 15 blocks of 64 tokens: the beginnings of both prompts stay, 5 blocks each.
    assert run(lines, kv_tokens=1000).cached_tokens == 2 * 5 * 64
    assert run(lines, kv_tokens=780).cached_tokens == 2 * 2 * 64


def test_a_prompt_that_does_not_fit_is_refused():
    with pytest.raises(RequestError, match="does not fit into a replica"):
        run([line(0.0, 640)], kv_tokens=640)


traffics = st.builds(
    Traffic,
    requests=st.integers(1, 25),
    rate=st.floats(0.5, 200),
    systems=st.integers(1, 3),
    turns=st.integers(1, 4),
    think_s=st.sampled_from([0.0, 1.0]),
    system_tokens=st.integers(1, 300),
    turn_tokens=st.integers(1, 60),
    answer_tokens=st.integers(1, 60),
)


@given(traffics, st.integers(1, 4), st.sampled_from(["prefix", "load", "random"]),
       st.integers(0, 3), st.integers(0, 9))  # fmt: skip
@settings(max_examples=examples(30), deadline=None)
def test_each_request_gets_its_tokens_and_memory_suffices(traffic, n, router, clients, seed):
    lines = generate(traffic, seed)
    longest = max(r.prompt_tokens + r.answer_tokens for r in requests(lines))
    keep = replicas.SimulatedReplica._keep
    room: list[int] = []

    def checked(self: Any, blocks: Any) -> None:
        room.append(self._n_blocks - self._n_own_blocks() - len(self._shared))
        keep(self, blocks)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replicas.SimulatedReplica, "_keep", checked)
        result = run(lines, n, router, kv_tokens=2 * longest + 100, clients=clients, seed=seed)
    assert len(result.first_tokens_s) == len(lines)
    assert result.answer_tokens == sum(each["answer_tokens"] for each in lines)
    assert sum(count for _, count in result.gaps) == result.answer_tokens - len(lines)
    assert min(result.first_tokens_s) > 0.5
    assert result.busy_s <= n * (result.ends_s - result.begins_s)
    assert min(room) >= 0


def test_clients_wait_for_their_answers():
    lines = [line(0.0, 64, letter=c) for c in "abcdef"]
    result = run(lines, replicas=2, router="load", clients=1, overhead_s=0.0)
    assert result.ends_s == pytest.approx(6 * 0.064)
    assert result.first_tokens_s == [pytest.approx(0.064)] * 6


# -- routers --------------------------------------------------------------------------------------


def test_the_prefix_router_keeps_conversations_where_their_cache_is():
    lines = generate(Traffic(200, 5.0, 5, 6, 5.0, 160, 64, 16))
    rates = {name: run(lines, 3, name).hit_rate for name in ("prefix", "random")}
    single = run(lines, 1, "prefix").hit_rate
    assert rates["prefix"] >= 0.95 * single
    assert rates["random"] < 0.85 * single


def test_routers_do_not_matter_to_a_single_replica():
    lines = generate(TRAFFIC)
    first, *others = (run(lines, 1, name).summary() for name in ("prefix", "load", "random"))
    assert all({**each, "router": "prefix"} == first for each in others)


# -- the command ----------------------------------------------------------------------------------


@pytest.fixture
def bench(tmp_path):
    paths = [tmp_path / "1.json", tmp_path / "8.json"]
    for path, n in zip(paths, (1, 8), strict=True):
        path.write_text(json.dumps(report(n, 100 * n**0.5)))
    return [str(path) for path in paths]


def test_the_command_prints_a_table_and_json(bench, capsys, tmp_path):
    trace = str(tmp_path / "trace.jsonl")
    words = ["cluster", "simulate", *bench, "--replicas", "1,1000", "--requests", "20"]
    assert main([*words, "--price", "2", "--save-trace", trace]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].split()[:4] == ["replicas", "router", "TTFT", "p50"]
    assert [row.split()[:2] for row in table[1:7]] == [
        [n, router] for n in ("1", "1,000") for router in ("random", "load", "prefix")
    ]
    assert main([*words, "--json", "--trace", trace, "--rate", "99", "--price", "2"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [f"{run['hit_rate']:.0%}" for run in runs] == [row.split()[8] for row in table[1:7]]
    for run in runs:
        hours = run["replicas"] * run["seconds"] / 3600
        tokens = run["answer_tokens_per_s"] * run["seconds"]
        assert run["cost_per_million_tokens"] == pytest.approx(2 * hours / tokens * 1e6)


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        ([], 2, "name a result of `zinc bench MODEL --json`"),
        (["1.json", "--routers", "best"], 2, "'best' is not one of random, load, prefix"),
        (["1.json", "--replicas", "0"], 2, "'0' is not a whole number of at least 1"),
        (["1.json", "--rate", "0"], 2, "--rate 0 sends no requests"),
        (["1.json"], 1, "zinc: 1.json is not a result of `zinc bench`"),
        (["2.json"], 1, "zinc: cannot read 2.json: No such file or directory. Check the path."),
        (["1.json", "--context", "5"], 2, "there is no option --context"),
    ],
)
def test_wrong_usage_is_one_line(capsys, tmp_path, monkeypatch, words, status, text):
    monkeypatch.chdir(tmp_path)
    Path("1.json").write_text("[]")
    assert main(["cluster", "simulate", *words]) == status
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") == 1


# -- a cluster that ran ---------------------------------------------------------------------------

RAN = json.loads(
    (Path(__file__).parents[2] / "benchmarks/results/cluster-simulation.json").read_text()
)


def as_it_ran(found: dict[str, Any], replicas: int, clients: int) -> Result:
    """Return the result of simulating a run of `benchmarks/simulation.py`."""
    lines = generate(Traffic(**RAN["traffic"]))
    known = [
        {**line, "prompt_tokens": n} for line, n in zip(lines, found["prompt_tokens"], strict=True)
    ]
    cluster = SimulatedCluster(
        replicas, found["router"], step_times(RAN["bench"]), found["kv_tokens"],
        found["overhead_s"], clients,
    )  # fmt: skip
    return simulate(cluster, requests(known))


@pytest.mark.parametrize("index", range(3))
def test_three_replicas_that_ran_are_predicted_within_20_percent(index):
    found = RAN["runs"][index]
    was = found["measured"]
    predicted = as_it_ran(found, RAN["replicas"], found["clients"]).summary()
    assert predicted["hit_rate"] == pytest.approx(was["hit_rate"], rel=0.2)
    assert predicted["requests_per_s"] == pytest.approx(was["requests_per_s"], rel=0.2)
    assert predicted["ttft_ms"]["p50"] == pytest.approx(was["ttft_ms"]["p50"], rel=0.2)


def test_three_replicas_with_a_core_each_answer_more_than_2_5_times_as_much():
    traffic = Traffic(**{**RAN["traffic"], "requests": 500})
    lines = generate(traffic)
    kv_tokens = RAN["runs"][0]["kv_tokens"]
    more = {"times": step_times(RAN["bench"]), "kv_tokens": kv_tokens, "clients": 24}
    three, one = (run(lines, n, **more).summary() for n in (3, 1))
    assert three["requests_per_s"] >= 2.5 * one["requests_per_s"]
    by_chance = run(lines, 3, "random", **more).summary()
    assert by_chance["requests_per_s"] < 1.5 * one["requests_per_s"]
