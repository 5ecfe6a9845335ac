"""Tests of prompt blocks, sketches and the choice of a replica. They need no Ray."""

from __future__ import annotations

import json
import random

from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from zinc.cluster.prompt_blocks import (
    BLOCK_BYTES,
    DIGEST_BYTES,
    prompt_blocks,
    request_fields,
    split,
)
from zinc.cluster.routing import SLACK, RoutingTable, Sketch


def blocks_of(*messages: str, namespace: bytes = b"", **fields: object) -> list[bytes]:
    rows = [{"role": "user", "content": text} for text in messages]
    return split(prompt_blocks({"messages": rows, **fields}, namespace))


def n_common(a: list[bytes], b: list[bytes]) -> int:
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


LONG = "a fox and a bird " * 100
turns = st.lists(st.text(max_size=400), min_size=1, max_size=6)


@given(turns, turns)
@settings(max_examples=examples(100))
def test_a_longer_conversation_begins_with_the_blocks_of_the_shorter(first, more):
    assert blocks_of(*first, *more)[: len(blocks_of(*first))] == blocks_of(*first)


def test_texts_that_differ_share_the_blocks_before_the_difference():
    a, b = blocks_of(LONG + "x" * 1000), blocks_of(LONG + "y" * 1000)
    assert len(a) == len(b) > 8
    assert n_common(a, b) in (len(LONG) // BLOCK_BYTES, len(LONG) // BLOCK_BYTES + 1)
    assert not set(a[n_common(a, b) :]) & set(b)


def test_namespaces_models_and_salts_share_no_blocks():
    kinds = [
        blocks_of(LONG),
        blocks_of(LONG, namespace=b"key"),
        blocks_of(LONG, model="a"),
        blocks_of(LONG, cache_salt="a"),
    ]
    assert len({block for kind in kinds for block in kind}) == sum(map(len, kinds))


def test_system_prompts_and_tools_come_before_messages():
    with_system = [blocks_of(text, system=LONG) for text in ("one", "two")]
    assert n_common(*with_system) >= len(LONG) // BLOCK_BYTES
    tools = [{"name": "f", "description": LONG}]
    with_tools = [blocks_of(text, tools=tools) for text in ("one", "two")]
    assert n_common(*with_tools) >= len(LONG) // BLOCK_BYTES


def test_other_fields_and_their_order_do_not_matter():
    row = {"role": "user", "content": LONG}
    bodies = [
        {"messages": [row], "temperature": 0, "stream": True},
        {"stream": False, "max_tokens": 7, "messages": [row]},
    ]
    first, second = (prompt_blocks(body) for body in bodies)
    assert first == second != b""


def test_bodies_without_a_prompt_have_no_blocks():
    for body in (b"", b"{", b"[1]", b"null", b"{}", b'{"messages": 3}', b"[" * 100_000, b"\xff"):
        assert prompt_blocks(request_fields(body)) == b""
    body = json.dumps({"prompt": LONG}).encode()
    assert len(prompt_blocks(request_fields(body))) % DIGEST_BYTES == 0


def digests(prompt: str, count: int) -> list[bytes]:
    return [f"{prompt}{i}".encode() for i in range(count)]


def test_a_sketch_drops_the_least_recent_prompt_from_its_end():
    sketch = Sketch(10)
    sketch.add(digests("a", 6))
    sketch.add(digests("b", 6))
    assert len(sketch) == 10
    assert sketch.n_matching(digests("b", 6)) == 6
    assert sketch.n_matching(digests("a", 6)) == 4


def test_a_sketch_survives_the_report():
    sketch, table = Sketch(100), RoutingTable(100)
    rng = random.Random(1)
    first, second = ([rng.randbytes(DIGEST_BYTES) for _ in range(7)] for _ in range(2))
    sketch.add(first)
    sketch.add(second)
    table.report("x", 1, sketch.newest(100))
    assert table.rank({"a": 0, "x": SLACK}, first) == ["x", "a"]
    table = RoutingTable(100)
    table.report("x", 1, sketch.newest(7))
    assert table.rank({"a": 0, "x": SLACK}, first) == ["a", "x"]
    assert table.rank({"a": 0, "x": SLACK}, second) == ["x", "a"]


def test_the_longest_prefix_wins_then_the_least_load():
    table = RoutingTable(1000)
    table.sent("b", digests("p", 3))
    table.sent("c", digests("p", 5))
    loads = {"a": 0, "b": 2, "c": 4}
    assert table.rank(loads, digests("p", 9)) == ["c", "b", "a"]
    assert table.rank(loads, digests("q", 9)) == ["a", "b", "c"]
    assert table.rank(loads, []) == ["a", "b", "c"]


def test_of_equally_loaded_replicas_the_one_with_the_least_cached_comes_first():
    table = RoutingTable(1000)
    table.sent("a", digests("p", 5))
    table.sent("b", digests("q", 3))
    loads = {"a": 0, "b": 0, "c": 0}
    assert table.rank(loads, digests("r", 2)) == ["c", "b", "a"]
    assert table.rank({**loads, "c": 1}, digests("r", 2)) == ["b", "a", "c"]
    assert table.rank(loads, digests("p", 2)) == ["a", "c", "b"]


def test_a_replica_that_is_much_busier_is_not_preferred():
    table = RoutingTable(1000)
    table.sent("b", digests("p", 5))
    assert table.rank({"a": 1, "b": 1 + SLACK}, digests("p", 5))[0] == "b"
    assert table.rank({"a": 1, "b": 2 + SLACK}, digests("p", 5))[0] == "a"


def test_avoided_replicas_come_last_and_do_not_count_for_the_load():
    table = RoutingTable(1000)
    table.sent("a", digests("p", 5))
    table.sent("b", digests("p", 5))
    loads = {"a": 0, "b": 2 + SLACK, "c": 5 + SLACK}
    assert table.rank(loads, digests("p", 5), avoid=["a"]) == ["b", "c", "a"]
    assert table.rank({"a": 0}, [], avoid=["a"]) == ["a"]


def test_prompts_that_were_just_sent_outlive_one_report_and_no_more():
    table = RoutingTable(1000)
    prompt, loads = digests("p", 5), {"a": 0, "b": 1}
    table.report("b", 1, b"")
    table.sent("b", prompt)
    table.report("b", 1, b"")
    table.report("b", 2, b"")
    assert table.rank(loads, prompt)[0] == "b"
    table.report("b", 3, b"")
    assert table.rank(loads, prompt)[0] == "a"


def test_replicas_that_are_gone_are_forgotten():
    table = RoutingTable(1000)
    table.sent("b", digests("p", 5))
    table.keep(["a"])
    assert table.rank({"a": 0, "b": 1}, digests("p", 5))[0] == "a"
