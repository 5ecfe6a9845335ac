"""Step times on a busy machine: delays by other processes, and drafts that truly lose."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from zinc.engine.speculative.draft import Draft
from zinc.engine.speculative.policy import GUARD_TOKENS, Offer, Record, lengths
from zinc.engine.speculative.speculation import Speculation
from zinc.engine.speculative.step_times import StepTimes, TypicalTime
from zinc.engine.speculative.tracker import DraftTracker

# Rows and milliseconds of the steps of a small model whose two cores ran three other processes. On
# the idle machine, 1, 3, 4 and 5 rows take 0.45, 0.65, 0.7 and 0.8 ms.
BUSY = """
1:11.9 1:2.21 1:0.69 1:0.88 3:5.33 1:0.51 3:0.64 3:0.6 5:0.99 1:0.55 2:0.62 3:2.09 5:9.88 5:8.91
1:0.75 1:0.57 5:25.05 4:0.88 4:0.78 4:6.07 4:18.01 4:0.81 4:0.76 4:12.33 4:11.63 4:4.56 1:2.82
4:8.42 1:0.81 3:0.87 3:0.79 3:25.78 3:0.87 3:0.74 3:21.6 1:0.92 3:2.12 3:6.06 3:12.12 1:0.7
3:0.73 3:0.7 3:0.7 3:1.04 3:0.84 3:2.73 3:2.23 3:7.79 4:0.86 1:0.53 1:1.86 1:0.62 4:0.82 4:0.75
4:0.67 4:9.86 4:0.81 1:0.51 1:1.04 1:0.43 1:0.41 1:0.41 1:2.29 1:0.37 1:0.36 4:0.67 2:0.45
1:0.36 2:0.44 4:0.72 2:0.53 4:0.68 4:0.68 4:0.73 4:0.68 4:0.63 4:0.72 4:0.68 4:0.6 4:0.61 4:0.57
4:4.64 4:0.65 4:0.63 4:2.66 4:0.6 4:0.58 4:0.59 4:4.65 4:0.67 4:0.72 4:0.67 4:1.29 4:0.61 4:0.6
4:0.6 4:4.81 4:0.44 4:0.43 4:0.4 4:0.39 4:0.39 4:12.93 4:0.71 4:0.71 4:12.7 4:0.76 4:0.68 4:9.74
4:0.53 4:0.48 4:0.52 4:0.47 4:0.46 3:0.41 4:8.05 4:0.82 3:0.62 4:0.62 4:0.6 4:0.6 4:8.36 4:0.94
4:0.81 4:3.39 4:0.83 4:0.76 4:5.35 4:0.78 4:0.72 4:0.65 4:20.97 4:3.38 4:0.76 4:17.67 4:0.92
4:0.8 4:14.45 4:5.68 4:12.19 4:0.8 4:17.56 3:0.79 3:0.7 3:0.67 3:16.95 3:0.83 3:0.75 3:0.74
3:0.67 3:3.25 3:2.7 3:8.18 3:0.69 3:0.63 3:0.57 3:20.97 3:0.82 3:11.48 3:0.63 3:14.53 3:7.51
3:3.57 6:5.04 6:5.45 5:0.87 5:0.81 5:0.76 5:20.95 5:0.9 5:0.83 5:16.23 5:3.19 5:12.49 5:0.96
5:0.89 5:0.89 5:3.5 5:0.78 5:0.76 5:16.81 5:3.49 5:1 5:0.91 5:0.87 5:1.07 5:0.96 5:0.99 5:0.89
5:0.87 1:0.44
"""


def estimate(rows):
    return 1 + 0.15 * (rows - 1)


def n_verified(times, n=4):
    """Return how many of `n` likely tokens a step verifies."""
    offer = Offer(Draft([1] * n, [0.97] * n), [0.9] * n, Record(), 1)
    return lengths([offer], 1, 1, 16, times)[0]


def test_delays_of_a_busy_machine_do_not_stop_drafts():
    times, verified = StepTimes(estimate), []
    for step in BUSY.split():
        rows, ms = step.split(":")
        times.record(int(rows), float(ms) / 1e3)
        verified.append(n_verified(times))
    assert sum(verified) / len(verified) > 2.5
    assert verified[-1] == 4
    assert all(1 <= times.ratio(rows) < 2.5 for rows in range(2, 6))


@pytest.mark.parametrize("rows", [1, 4])
def test_a_delayed_step_changes_nothing(rows):
    times = StepTimes(estimate)
    for _ in range(5):
        times.record(1, 0.010)
        times.record(4, 0.015)
    before = times.unit_s, times.ratio(4)
    usual_s = times.unit_s * times.ratio(rows)
    assert times.record(rows, 15 * usual_s) == pytest.approx(usual_s, rel=0.01)
    assert (times.unit_s, times.ratio(4)) == pytest.approx(before, rel=0.01)


def test_a_load_that_stays_changes_the_unit_and_not_the_ratios():
    times = StepTimes(estimate)
    for ms in [10] * 40 + [40] * 40:
        times.record(1, ms / 1e3)
        times.record(4, 1.5 * ms / 1e3)
    assert times.unit_s == pytest.approx(0.040, rel=0.05)
    assert times.ratio(4) == pytest.approx(1.5, rel=0.1)


def test_rows_that_are_dear_stop_drafts():
    times = StepTimes(estimate)
    for _ in range(20):
        for rows, seconds in {1: 0.010, 2: 0.025, 3: 0.040, 5: 0.060}.items():
            times.record(rows, seconds)
    assert n_verified(times) == 0


def test_the_first_times_replace_an_estimate():
    found = TypicalTime(0.2)
    assert found.record(3.0) == found.value == 0.2, "one may be a delay"
    found.record(0.3)
    assert found.value == 0.2
    found.record(0.3)
    assert found.value == 0.3
    for i in range(30):
        found.record(3.0 if i % 2 else 0.1)
    assert found.value == 0.1, "half of the times have a delay"


def test_more_rows_never_take_less_time():
    """Delays of the only steps of two rows do not hide that four rows are cheap."""
    times = StepTimes(estimate)
    for _ in range(10):
        times.record(1, 0.010)
        times.record(4, 0.015)
    for _ in range(5):
        times.record(2, 0.150)
    assert times.ratio(2) == times.ratio(3) == times.ratio(4) == pytest.approx(1.5, rel=0.05)


def test_a_delay_of_the_first_step_is_forgotten_at_once():
    times = StepTimes(estimate)
    times.record(1, 0.230)
    times.record(1, 0.010)
    assert times.unit_s == pytest.approx(0.010)


def drafting(accepts, seconds):
    """Return the drafts of a sequence whose steps verify one drafted token each.

    accepts: for each step, whether the token is accepted. seconds: what each step takes.
    """
    speculation = Speculation(estimate)
    s = SimpleNamespace(id=0, n_generated=1, drafts=DraftTracker(draft=Draft([7], [0.5])))
    s.drafts.record.rates = [0.5]
    for accepted, step_s in zip(accepts, seconds, strict=True):
        plain = SimpleNamespace(running=[s], complete=[s], counts=[1], drafts={})
        speculation.step_done(plain, 0.010)
        s.n_generated += 2 + accepted
        s.drafts.verified(int(accepted), 1)
        verifying = SimpleNamespace(running=[s], complete=[s], counts=[1], drafts={0: [7]})
        speculation.step_done(verifying, step_s)
    return s.drafts


def test_a_single_delayed_step_does_not_switch_drafts_off():
    """The drafts of this sequence save a tenth of a step each."""
    accepts = [i % 5 == 0 for i in range(100)]
    for at in range(0, 100, 7):
        seconds = [0.011] * 100
        seconds[at] *= 15
        assert drafting(accepts, seconds).record.off_until == 0


@pytest.mark.parametrize(
    ("every", "step_s"), [pytest.param(50, 0.011, id="wrong"), pytest.param(5, 0.014, id="dear")]
)
def test_drafts_that_lose_time_are_switched_off(every, step_s):
    accepts = [i % every == 0 for i in range(GUARD_TOKENS)]
    seconds = [step_s * (15 if i % 20 == 10 else 1) for i in range(GUARD_TOKENS)]
    assert drafting(accepts, seconds).record.off_until > GUARD_TOKENS
