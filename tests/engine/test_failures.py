"""Failures in a step end only the requests concerned, and leave a correct cache."""

from __future__ import annotations

import pytest
from fake import KINDS, alone
from test_engine import ENDS, check_idle, engine, finish, greedy, prompt

from zinc.core.errors import DeviceError
from zinc.engine.preemption import Rates
from zinc.engine.request import Request


@pytest.fixture
def copying(monkeypatch):
    monkeypatch.setattr(Rates, "swap_pays", lambda rates, n_tokens, n_bytes: n_tokens > 0)


def failing(call, times=1, error=DeviceError):
    """Return a function that fails on its first calls."""
    left = [times]

    def fails_first(*args):
        if left[0]:
            left[0] -= 1
            raise error("the device is lost")
        return call(*args)

    return fails_first


@pytest.mark.parametrize("call", ["put_block", "block_views"])
@pytest.mark.parametrize("kind", ["full", "everything"])
def test_a_failed_copy_ends_its_request_alone(kind, call, copying, monkeypatch):
    e = engine(kind, n_blocks=24, context=150, swap_bytes=1 << 30)
    sequences = [e.submit(Request(prompt(20, i), greedy(100), ())) for i in range(6)]
    monkeypatch.setattr(e.pool.copier, call, failing(getattr(e.pool.copier, call)))
    finish(e, *sequences)
    failed = [s for s in sequences if s.finish_reason == "error"]
    assert len(failed) == 1
    assert isinstance(failed[0].error, DeviceError)
    for i, s in enumerate(sequences):
        assert s in failed or s.ids == alone(kind, prompt(20, i), 100)
    check_idle(e)


def test_a_request_without_memory_for_a_copy_is_run_again(copying, monkeypatch):
    e = engine(n_blocks=24, context=150, swap_bytes=1 << 30)
    views = failing(e.pool.copier.block_views, 3, MemoryError)
    monkeypatch.setattr(e.pool.copier, "block_views", views)
    sequences = [e.submit(Request(prompt(20, i), greedy(100), ())) for i in range(6)]
    finish(e, *sequences)
    for i, s in enumerate(sequences):
        assert s.ids == alone("full", prompt(20, i), 100)
    check_idle(e)


@pytest.mark.parametrize("samples", [False, True])
def test_a_failed_checkpoint_ends_its_request_alone(samples, monkeypatch):
    e = engine("everything", n_blocks=80, slots=10, max_tokens=200, samples=samples)
    good = e.submit(Request(prompt(40, 1), greedy(9), ()))
    bad = e.submit(Request(prompt(90), greedy(9), ()))
    copy_state = e.pool.copier.copy_state
    monkeypatch.setattr(e.pool.copier, "copy_state", failing(copy_state, 1))
    finish(e, good, bad)
    assert sorted(s.finish_reason for s in (good, bad)) == ["error", "length"]
    for s, ids in ((good, prompt(40, 1)), (bad, prompt(90))):
        assert s.finish_reason == "error" or s.ids == alone("everything", ids, 9)
    check_idle(e)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("moment", [1, 2, 5, 12])
def test_ctrl_c_during_a_step_leaves_a_correct_cache(kind, moment, monkeypatch):
    """The device has run the step, and the engine has not recorded it."""
    e = engine(kind, max_tokens=60, slots=10)
    first = e.submit(Request(prompt(90), greedy(30), ()))
    other = e.submit(Request(prompt(30, 1), greedy(30), ()))
    step, made = e.program.step, [0]

    def interrupted(step_):
        logits = step(step_)
        made[0] += 1
        if made[0] == moment:
            raise KeyboardInterrupt
        return logits

    monkeypatch.setattr(e.program, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        finish(e, first, other)
    e.cancel(first)
    again = e.submit(Request([*first.ids, 5], greedy(9), ENDS))
    finish(e, other, again)
    assert other.ids == alone(kind, prompt(30, 1), 30)
    assert again.ids == alone(kind, [*first.ids, 5], 9, ENDS)
    check_idle(e)


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_of_a_lost_step_are_not_kept_in_the_prefix_cache(kind, monkeypatch):
    """A device may report a failed step only when its tokens are read."""
    e = engine(kind, max_tokens=60, samples=True)
    bad = e.submit(Request(prompt(90), greedy(9), ()))
    sample = e.program.sample

    class Lost:
        def tokens(self):
            raise DeviceError("the device is lost")

    monkeypatch.setattr(e.program, "sample", lambda step: Lost())
    finish(e, bad)
    assert isinstance(bad.error, DeviceError)
    monkeypatch.setattr(e.program, "sample", sample)
    good = e.submit(Request(prompt(90), greedy(9), ENDS))
    finish(e, good)
    assert good.ids == alone(kind, prompt(90), 9, ENDS)
    check_idle(e)
