"""The engine on a model whose answers reveal every mistake of the cache (fake.py)."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import pytest
from effort import examples
from fake import BLOCK, END, KINDS, VOCAB, alone, model, shifted
from guessing import Guessing, guessing_fake
from hypothesis import given, settings
from hypothesis import strategies as st

from zinc.core.errors import DeviceError, QueueFullError, RequestError
from zinc.engine.engine import Engine
from zinc.engine.request import Request
from zinc.engine.sampling import SamplingParams

ENDS = frozenset([END])


@pytest.fixture(scope="module", params=["host", "device", "drafts"], autouse=True)
def device_samples(request):
    """Whether programs sample tokens themselves, a step ahead of the engine.

    With "drafts", steps verify drafted tokens, which the device samples.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("test_engine.model", partial(model, samples=request.param != "host"))
        if request.param == "drafts":
            patch.setattr("test_engine.guessing", guessing_fake)
        yield request.param == "device"


def guessing(kind) -> Guessing | None:
    """Return the speculation of an engine. The fixture replaces this function."""


def greedy(n):
    return SamplingParams(temperature=0, max_tokens=n)


def engine(kind="full", n_blocks=64, context=400, **options):
    names = ("max_tokens", "max_outputs", "slots", "window_blocks", "samples")
    program, cache = model(kind, n_blocks, **{k: options.pop(k) for k in names if k in options})
    options = {"prompt_tokens_beside_streams": 10, "speculation": guessing(kind), **options}
    return Engine(program, cache, VOCAB, context, **options)


def finish(engine, *sequences):
    for _ in range(5000):
        if all(s.finish_reason for s in sequences):
            return
        engine.step()
    raise AssertionError("the engine does not come to an end")


def check_idle(engine):
    """Check that no block or slot is held or lost, and that all can be reused."""
    assert engine.idle
    assert [a.n_held for a in engine.allocators] == [0] * len(engine.allocators)
    engine.pool.check()
    engine.pool.tree.clear()
    engine.pool.check()
    assert engine.pool.available == tuple(a.n_free for a in engine.allocators)
    assert engine.pool.slots.n_free == engine.pool.slots.n_slots
    assert len(engine.pool.tree) == 0


def prompt(n, seed=0):
    return random.Random(seed).choices(range(VOCAB - 1), k=n)


@pytest.mark.alike(60)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, BLOCK - 1, BLOCK, BLOCK + 1, 23, 24, 25, 100, 150])
def test_an_answer_matches_its_definition(kind, n):
    e = engine(kind)
    s = e.submit(Request(prompt(n), greedy(30), ENDS))
    finish(e, s)
    assert s.ids == alone(kind, prompt(n), 30, ENDS)
    assert s.n_cached == 0
    check_idle(e)


@pytest.mark.parametrize("kind", KINDS)
def test_the_second_turn_runs_only_what_is_new(kind, device_samples):
    e = engine(kind, n_blocks=80, slots=10)
    ids = [*prompt(150), END, 3, 4]
    first = e.submit(Request(ids, greedy(20), ENDS))
    finish(e, first)
    second = e.submit(Request([*first.ids, *prompt(12, seed=1)], greedy(20), ENDS))
    before = e.program.n_run
    finish(e, second)
    # The last token has run only if it was in flight before it was known to be the last.
    ran_past = [device_samples and s.finish_reason == "stop" for s in (first, second)]
    assert second.n_cached == len(first.ids) - 1 + ran_past[0]
    n_run = e.program.n_run - before - (second.drafts.n_drafted - second.drafts.n_accepted)
    # So has a last token that was drafted.
    n_accepted_last = n_run - (12 + second.n_generated + ran_past[1] - ran_past[0])
    assert n_accepted_last in (0, second.drafts.n_drafted > 0 and second.finish_reason == "stop")
    assert second.ids == alone(kind, [*first.ids, *prompt(12, seed=1)], 20, ENDS)
    assert second.timings().cached_tokens == second.n_cached
    check_idle(e)


@pytest.mark.parametrize("kind", KINDS)
def test_a_turn_that_differs_in_the_answer_starts_after_the_message(kind):
    """This happens when the template drops the reasoning of earlier turns."""
    e = engine(kind, n_blocks=80, slots=10)
    ids = [*prompt(150), END, 3, 4, 5]
    finish(e, e.submit(Request(ids, greedy(20), ENDS)))
    other = [*prompt(150), END, 3, 4, 9, *prompt(30, seed=2)]
    second = e.submit(Request(other, greedy(20), ENDS))
    finish(e, second)
    assert second.n_cached == (151 if kind in ("everything", "recurrent") else 153)
    assert second.ids == alone(kind, other, 20, ENDS)
    check_idle(e)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_prompt_again_runs_little(kind):
    e = engine(kind)
    for ids in ([*prompt(150), END, 3, 4, 5], prompt(150)):
        for turn in range(3):
            s = e.submit(Request(ids, greedy(9), ENDS))
            finish(e, s)
            assert s.ids == alone(kind, ids, 9, ENDS)
            if turn:
                assert s.n_cached >= len(ids) - 4
    check_idle(e)


def test_without_the_prefix_cache_nothing_is_kept():
    e = engine("everything", prefix_cache=False)
    for _ in range(2):
        s = e.submit(Request(prompt(100), greedy(5), ENDS))
        finish(e, s)
        assert s.n_cached == 0
        assert all(a.n_free == a.n_blocks for a in e.allocators)
    check_idle(e)


def test_the_prefix_cache_stays_within_its_limit():
    e = engine("everything", cache_bytes=20_000)
    block_bytes = e.pool.groups[0].block_bytes
    assert block_bytes == 2 * 32 * BLOCK
    for seed in range(12):
        s = e.submit(Request(prompt(100, seed), greedy(5), ENDS))
        finish(e, s)
        assert 0 < e.pool.cached_bytes <= 20_000
        e.pool.check()
    check_idle(e)


@pytest.mark.parametrize("kind", KINDS)
def test_one_long_text_stays_within_the_limit_of_the_prefix_cache(kind):
    e = engine(kind, cache_bytes=4000)
    s = e.submit(Request(prompt(150), greedy(5), ENDS))
    finish(e, s)
    assert 0 < e.pool.cached_bytes <= 4000
    again = e.submit(Request(prompt(150), greedy(5), ENDS))
    finish(e, again)
    assert again.ids == s.ids
    check_idle(e)


def test_a_long_conversation_in_a_small_cache_reuses_its_windows():
    """The window group is much smaller than the conversation."""
    e = engine("sliding", n_blocks=64, window_blocks=16)
    ids = prompt(100)
    for turn in range(6):
        s = e.submit(Request(ids, greedy(20), ENDS))
        finish(e, s)
        assert s.ids == alone("sliding", ids, 20, ENDS)
        assert turn == 0 or s.n_cached >= len(ids) - 12
        ids = [*s.ids, *prompt(11, seed=turn)]
    check_idle(e)


def test_a_sliding_group_holds_only_its_window():
    e = engine("sliding", n_blocks=64, prefix_cache=False)
    s = e.submit(Request(prompt(300), greedy(40), ()))
    most = e.pool.max_blocks(400)
    while s.finish_reason is None:
        e.step()
        if s.is_running:
            for allocator, limit in zip(e.allocators, most, strict=True):
                assert allocator.n_held <= limit
    assert most[1] < most[0]
    check_idle(e)


# -- scheduling ----------------------------------------------------------------------------------


def test_a_stream_stalls_for_at_most_one_small_chunk():
    e = engine(n_blocks=100)
    stream = e.submit(Request(prompt(5), greedy(60), ()))
    e.step()
    long = e.submit(Request(prompt(300, 1), greedy(5), ()))
    while not long.clock.first_token:
        had = stream.n_generated
        gained = e.step()
        assert stream in gained
        assert stream.n_generated == had + 1
        assert max(e.program.sizes[-1]) <= 10
    finish(e, stream, long)
    check_idle(e)


def test_clients_share_prompt_tokens_equally():
    e = engine(n_blocks=100)
    greedy_client = [e.submit(Request(prompt(200, i), greedy(3), (), client="a")) for i in range(3)]
    other = e.submit(Request(prompt(60, 9), greedy(3), (), client="b"))
    finish(e, other)
    assert not any(s.finish_reason for s in greedy_client)
    assert sum(s.n_run for s in greedy_client) <= 130
    finish(e, *greedy_client)
    check_idle(e)


def test_a_higher_priority_goes_first_and_preempts_others():
    e = engine(n_blocks=30)
    low = [e.submit(Request(prompt(80, i), greedy(60), ())) for i in range(2)]
    for _ in range(12):
        e.step()
    high = e.submit(Request(prompt(150, 7), greedy(10), (), priority=1))
    finish(e, high)
    assert sum(s.n_preempted for s in low) >= 1
    assert not any(s.finish_reason for s in low)
    finish(e, *low)
    for i, s in enumerate(low):
        assert s.ids == alone("full", prompt(80, i), 60)
    check_idle(e)


@pytest.mark.alike(3)
@pytest.mark.parametrize("kind", KINDS)
def test_a_full_cache_preempts_the_last_request_and_changes_no_token(kind):
    e = engine(kind, n_blocks=24, context=150)
    sequences = [e.submit(Request(prompt(20, i), greedy(100), ())) for i in range(6)]
    finish(e, *sequences)
    assert sequences[0].n_preempted == 0
    assert sum(s.n_preempted for s in sequences) > 0
    for i, s in enumerate(sequences):
        assert s.finish_reason == "length"
        assert s.ids == alone(kind, prompt(20, i), 100)
    check_idle(e)


def test_one_slot_is_enough_for_a_conversation():
    e = engine("recurrent", slots=1)
    first = e.submit(Request(prompt(100), greedy(10), ENDS))
    waiting = e.submit(Request(prompt(50, 3), greedy(10), ENDS))
    finish(e, first)
    second = e.submit(Request([*first.ids, 5, 6], greedy(10), ENDS))
    finish(e, second, waiting)
    assert second.ids == alone("recurrent", [*first.ids, 5, 6], 10, ENDS)
    assert waiting.ids == alone("recurrent", prompt(50, 3), 10, ENDS)
    check_idle(e)


def test_a_full_queue_refuses_requests():
    e = engine(max_waiting=2)
    for i in range(2):
        e.submit(Request(prompt(10, i), greedy(5), ()))
    with pytest.raises(QueueFullError, match="2 requests wait and 0 run"):
        e.submit(Request(prompt(10), greedy(5), ()))
    e.step()
    finish(e, e.submit(Request(prompt(10), greedy(5), ())))


@pytest.mark.alike(3)
@pytest.mark.parametrize("scarce", [{"max_outputs": 4}, {"slots": 4}])
def test_no_prefixes_are_searched_while_no_more_sequences_can_run(scarce, monkeypatch):
    e = engine("recurrent", n_blocks=200, **scarce)
    running = [e.submit(Request(prompt(20, i), greedy(120), ())) for i in range(4)]
    while not all(s.n_generated for s in running):
        e.step()
    waiting = [e.submit(Request(prompt(30, 10 + i), greedy(3), ())) for i in range(20)]
    looked, find = [], e.pool.tree.find
    with monkeypatch.context() as counting:
        counting.setattr(e.pool.tree, "find", lambda *args: looked.append(args) or find(*args))
        for _ in range(20):
            e.step()
        assert not looked
        urgent = e.submit(Request(prompt(25, 50), greedy(3), (), priority=1))
        finish(e, urgent)
        assert len(looked) < 20
    finish(e, *running, *waiting)
    for i, s in enumerate(running):
        assert s.ids == alone("recurrent", prompt(20, i), 120)
    check_idle(e)


def test_a_prompt_longer_than_the_context_is_refused_at_once():
    e = engine(n_blocks=10, context=400)
    with pytest.raises(RequestError, match="the context holds 80 including the answer"):
        e.submit(Request(prompt(90), greedy(5), ()))
    s = e.submit(Request(prompt(70), greedy(50), ()))
    finish(e, s)
    assert s.ids == alone("full", prompt(70), 10)


def test_a_failed_step_ends_its_requests_and_the_engine_continues():
    e = engine("everything")
    e.program.fail_at = 95
    lost = e.submit(Request([*[1] * 30, 95, 4], greedy(5), ()))
    finish(e, lost)
    assert lost.finish_reason == "error"
    assert str(lost.error) == "the device is lost"
    e.program.fail_at = None
    s = e.submit(Request([*[1] * 30, 95, 4], greedy(5), ()))
    finish(e, s)
    assert s.ids == alone("everything", [*[1] * 30, 95, 4], 5)
    check_idle(e)


@pytest.mark.parametrize(("kind", "call"), [("full", "copy_block"), ("recurrent", "copy_state")])
def test_a_failed_copy_of_a_prefix_fails_that_request_alone(kind, call, monkeypatch):
    e = engine(kind, slots=10)
    ids = [*prompt(150), END, 3, 4, 5]
    finish(e, e.submit(Request(ids, greedy(9), ENDS)))

    def lost(*_):
        raise DeviceError("the device is lost")

    with monkeypatch.context() as fault:
        fault.setattr(e.pool.copier, call, lost)
        bad = e.submit(Request([*ids[:-1], 9, 9], greedy(5), ENDS))
        finish(e, bad)
    assert bad.finish_reason == "error"
    assert isinstance(bad.error, DeviceError)
    good = e.submit(Request([*ids[:-1], 9, 9], greedy(5), ENDS))
    finish(e, good)
    assert good.n_cached > 0
    assert good.ids == alone(kind, [*ids[:-1], 9, 9], 5, ENDS)
    check_idle(e)


def test_a_row_without_allowed_tokens_fails_its_request_alone():
    e = engine()
    banned = SamplingParams(temperature=0, logit_bias={i: float("-inf") for i in range(VOCAB)})
    bad, good = (
        e.submit(Request(prompt(5), banned, ())),
        e.submit(Request(prompt(6), greedy(5), ())),
    )
    finish(e, bad, good)
    assert isinstance(bad.error, RequestError)
    assert good.ids == alone("full", prompt(6), 5)
    check_idle(e)


SPOTS = st.tuples(
    st.integers(0, 40),  # steps before it arrives
    st.integers(0, 3),  # the conversation whose beginning it has
    st.integers(1, 120),  # tokens of that beginning
    st.integers(0, 20),  # tokens of its own
    st.integers(1, 60),  # tokens to generate
    st.integers(0, 2),  # priority
    st.sampled_from("abc"),  # client
    st.integers(0, 90),  # steps after which it is cancelled (from 60 on: never)
    st.sampled_from([None, None, 0, 5, -1]),  # tokens kept when it outgrows the context
)


@settings(deadline=None, max_examples=examples(120))
@given(
    kind=st.sampled_from(sorted(KINDS)),
    spots=st.lists(SPOTS, min_size=1, max_size=14),
    n_blocks=st.integers(12, 60),
    slots=st.integers(1, 12),
    max_outputs=st.integers(1, 8),
    prefix_cache=st.booleans(),
    swap_bytes=st.sampled_from([0, 8000, 1 << 30]),
    context=st.sampled_from([400, 70]),
)
def test_each_request_gets_the_answer_it_gets_alone(
    kind, spots, n_blocks, slots, max_outputs, prefix_cache, swap_bytes, context
):
    e = engine(
        kind,
        n_blocks,
        context,
        max_outputs=max_outputs,
        slots=slots,
        prefix_cache=prefix_cache,
        swap_bytes=swap_bytes,
        window_blocks=max(12, n_blocks // 2),
    )
    context = e.max_sequence_tokens
    waiting = sorted(enumerate(spots), key=lambda item: item[1][0])
    running = []
    for tick in range(20_000):
        while waiting and waiting[0][1][0] <= tick:
            i, (_, talk, length, own, n, priority, client, cancel, kept) = waiting.pop(0)
            ids = [*prompt(length, seed=talk), *prompt(own, seed=100 + i)]
            params = replace(greedy(n), context_shift=kept)
            try:
                s = e.submit(Request(ids, params, ENDS, client=client, priority=priority))
            except RequestError:
                assert len(ids) >= context or (kept == -1 and 2 * len(ids) > context)
                continue
            running.append((s, ids, n, tick + cancel if cancel < 60 else None))
        for s, _, _, cancel in running:
            if cancel is not None and tick >= cancel:
                e.cancel(s)
        if not waiting and e.idle:
            break
        e.step()
    else:
        raise AssertionError("somebody never came to an end")
    for s, ids, n, _ in running:
        kept = s.sampler.params.context_shift
        if kept is None:
            assert s.max_tokens == min(n, context - len(ids))
            want = alone(kind, ids, s.max_tokens, ENDS)[len(ids) :]
        else:
            want, _ = shifted(kind, ids, n, context, len(ids) if kept == -1 else kept, ENDS)
        if s.finish_reason == "cancelled":
            assert s.generated == want[: s.n_generated]
        else:
            assert s.finish_reason in ("stop", "length")
            assert s.generated == want
    check_idle(e)
