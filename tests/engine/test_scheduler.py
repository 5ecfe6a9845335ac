from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zinc.engine.scheduler import Budget, Demand, schedule


def test_a_stream_goes_before_a_long_prompt():
    demands = [Demand(0, pending=3000), Demand(1, pending=1), Demand(2, pending=1)]
    assert schedule(demands, Budget(tokens=512, sequences=8, blocks=0)) == {1: 1, 2: 1, 0: 510}


def test_a_request_that_does_not_fit_waits_and_nobody_overtakes_it():
    demands = [Demand(0, 10, blocks_wanted=5), Demand(1, 10, blocks_wanted=1)]
    assert schedule(demands, Budget(tokens=512, sequences=8, blocks=4)) == {}
    assert schedule(demands, Budget(tokens=512, sequences=8, blocks=5)) == {0: 10}


def test_a_request_without_a_slot_waits_and_the_running_ones_go_on():
    demands = [Demand(0, 1), Demand(1, 10, blocks_wanted=1), Demand(2, 10, blocks_wanted=1)]
    assert schedule(demands, Budget(512, 8, blocks=9, slots=1)) == {0: 1, 1: 10}
    assert schedule(demands, Budget(512, 8, blocks=9, slots=0)) == {0: 1}


DEMANDS = st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 10)), max_size=20)


@given(DEMANDS, st.integers(1, 600), st.integers(1, 10), st.integers(0, 30), st.integers(0, 5))
def test_budgets_are_never_exceeded_and_work_never_idles(rows, tokens, sequences, blocks, slots):
    demands = [Demand(i, pending, wanted) for i, (pending, wanted) in enumerate(rows)]
    budget = Budget(tokens, sequences, blocks, slots)
    chosen = schedule(demands, budget)
    by_id = {d.id: d for d in demands}
    assert sum(chosen.values()) <= tokens
    assert len(chosen) <= sequences
    assert sum(by_id[i].blocks_wanted for i in chosen) <= blocks
    assert sum(by_id[i].blocks_wanted > 0 for i in chosen) <= slots
    assert all(1 <= n <= by_id[i].pending for i, n in chosen.items())
    runnable = [d for d in demands if d.pending and d.blocks_wanted == 0]
    assert chosen or not runnable
