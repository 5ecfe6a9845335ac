from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from zinc.core.rounding import ceil_div
from zinc.engine.scheduler import Budget, Demand, schedule

BUDGET = Budget(512, 128, 8, (1000,), 8, block_tokens=64)


def runs(id, pending=1, n_run=64, **other):
    """Return a running sequence that has blocks for exactly the tokens that it ran."""
    n_table = ceil_div(n_run, 64)
    n_missing = ceil_div(n_run + pending, 64) - n_table
    fields = {
        "runnable": pending,
        "freeable_blocks": (n_table,),
        "missing_blocks": (n_missing,),
        **other,
    }
    return Demand(id, pending, n_run=n_run, n_table=n_table, admitted=True, **fields)


def waits(id, pending, **other):
    fields = {
        "runnable": pending,
        "pinned_blocks": (0,),
        "missing_blocks": (ceil_div(pending, 64),),
        **other,
    }
    return Demand(id, pending, n_run=0, n_table=0, admitted=False, **fields)


def test_streams_go_first_and_limit_prompt_tokens():
    demands = [waits(0, 3000), runs(1), runs(2)]
    assert schedule(demands, BUDGET).tokens == {1: 1, 2: 1, 0: 128}


def test_a_prompt_alone_gets_the_whole_step():
    assert schedule([waits(0, 3000)], BUDGET).tokens == {0: 512}


def test_a_prompt_stops_where_its_state_is_to_be_copied():
    assert schedule([waits(0, 3000, runnable=100), waits(1, 50)], BUDGET).tokens == {0: 100, 1: 50}


def test_clients_get_equal_shares_and_leave_the_rest_to_others():
    demands = [
        waits(0, 900, client="a"),
        waits(1, 900, client="a"),
        waits(2, 900, client="b"),
        waits(3, 12, client="c"),
    ]
    assert schedule(demands, BUDGET).tokens == {3: 12, 0: 250, 2: 250}


def test_within_a_client_first_come_first_served():
    assert schedule([waits(0, 500), waits(1, 900)], BUDGET).tokens == {0: 500, 1: 12}


def test_a_request_that_does_not_fit_waits_and_is_not_overtaken():
    demands = [waits(0, 300), waits(1, 10)]
    assert schedule(demands, replace(BUDGET, blocks=(4,))).tokens == {}
    assert schedule(demands, replace(BUDGET, blocks=(5,))).tokens == {0: 300}


def test_a_prompt_is_let_in_only_with_room_for_streams_to_grow():
    demands = [runs(0, n_run=70), waits(1, 256)]
    assert schedule(demands, replace(BUDGET, blocks=(4,))).tokens == {0: 1}
    assert schedule(demands, replace(BUDGET, blocks=(5,))).tokens == {0: 1, 1: 128}


def test_blocks_reserved_for_a_running_prompt_are_not_given_away():
    demands = [runs(0, pending=640, n_run=64), waits(1, 128)]
    assert schedule(demands, replace(BUDGET, blocks=(12,))).tokens == {0: 512}
    assert schedule(demands, replace(BUDGET, blocks=(13,), tokens=700)).tokens == {0: 640, 1: 60}


def test_the_last_request_is_preempted_when_blocks_run_out():
    demands = [runs(0), runs(1), runs(2)]
    result = schedule(demands, replace(BUDGET, blocks=(0,)))
    assert result.tokens == {0: 1}
    assert result.preempted == [2]


def test_a_low_priority_is_preempted_even_if_it_came_first():
    demands = [runs(0), runs(1, priority=1), waits(2, 64, priority=2)]
    result = schedule(demands, replace(BUDGET, blocks=(2,), slots=0))
    assert result.preempted == [0]
    assert result.tokens == {1: 1, 2: 64}


def test_a_request_waits_for_a_slot_and_for_a_running_sequence_to_end():
    demands = [runs(0), waits(1, 10), waits(2, 10)]
    assert schedule(demands, replace(BUDGET, slots=1)).tokens == {0: 1, 1: 10}
    assert schedule(demands, replace(BUDGET, slots=0)).tokens == {0: 1}
    assert schedule(demands, replace(BUDGET, sequences=2)).tokens == {0: 1, 1: 10}


DEMANDS = st.lists(
    st.tuples(
        st.booleans(),
        st.integers(1, 2000),
        st.integers(0, 900),
        st.integers(0, 2),
        st.sampled_from("ab"),
    ),
    max_size=12,
)


@settings(deadline=None)
@given(
    DEMANDS,
    st.integers(1, 600),
    st.integers(1, 128),
    st.integers(1, 10),
    st.integers(0, 40),
    st.integers(0, 5),
)
def test_budgets_are_never_exceeded(rows, tokens, prompt_tokens, sequences, blocks, slots):
    sequences = min(sequences, tokens)  # a step has at least a token for each sequence
    rows.sort(key=lambda row: not row[0])
    n_admitted = sum(row[0] for row in rows[:sequences])
    demands = [
        runs(i, pending, n_run, priority=priority, client=client)
        if i < n_admitted
        else waits(i, pending, priority=priority, client=client)
        for i, (_, pending, n_run, priority, client) in enumerate(rows)
    ]
    budget = Budget(tokens, prompt_tokens, sequences, (blocks,), slots, block_tokens=64)
    result = schedule(demands, budget)
    by_id = {d.id: d for d in demands}
    lost = [by_id[i] for i in result.preempted]
    assert len(set(result.preempted)) == len(lost)
    assert all(d.admitted and d.id not in result.tokens for d in lost)
    assert sum(result.tokens.values()) <= tokens
    new = [d for d in demands if d.id in result.tokens and not d.admitted]
    assert len(new) <= slots + len(lost)
    assert n_admitted - len(lost) + len(new) <= sequences
    needed = sum(
        -(-(by_id[i].n_run + n) // 64) - by_id[i].n_table for i, n in result.tokens.items()
    )
    assert needed <= blocks + sum(d.freeable_blocks[0] for d in lost)
    assert all(1 <= n <= by_id[i].pending for i, n in result.tokens.items())
    if any(by_id[i].pending == 1 and by_id[i].admitted for i in result.tokens):
        prompts = sum(n for i, n in result.tokens.items() if by_id[i].pending > 1)
        assert prompts <= prompt_tokens + sum(1 for d in lost)
    if n_admitted and blocks >= 40:
        assert result.tokens
