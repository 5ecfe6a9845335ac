"""Speculative decoding: the same tokens as without it, and drafts only where they pay."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from effort import EVERY
from guessing import Guessing

from zinc import LLM, SamplingParams
from zinc.backends.plans import Launch
from zinc.core.errors import RequestError
from zinc.engine.constraint import Thinking
from zinc.engine.request import Request
from zinc.engine.speculative.draft import NO_DRAFT, Draft
from zinc.engine.speculative.drafting import Drafting
from zinc.engine.speculative.policy import (
    GUARD_TOKENS,
    LEAST_GAIN,
    PROBE_TOKENS,
    Acceptance,
    Offer,
    Record,
    lengths,
)
from zinc.engine.speculative.step_times import StepTimes

SETTINGS = {
    "greedy": {"temperature": 0},
    "default chain": {},
    "penalties": {"repeat_penalty": 1.3, "frequency_penalty": 0.4, "repeat_last_n": 20},
    "dry": {"dry_multiplier": 0.8, "dry_allowed_length": 1, "temperature": 0},
    "mirostat": {"mirostat": 2},
    "xtc": {"xtc_probability": 0.5, "top_k": 0},
    "logprobs": {"logprobs": 3, "temperature": 0.5},
    "post logprobs": {"logprobs": 2, "post_sampling_probs": True},
    "bias": {"logit_bias": {13: 2.0, 262: -3.0}, "temperature": 0},
}


@pytest.fixture(scope="module")
def llm():
    with LLM(backend="cpu", speculate="off") as found:
        yield found


class Recalling:
    """Run of requests on an LLM with speculation that knows the plain answers to them."""

    def __init__(self, llm):
        self.llm, self.texts = llm, {}
        self.guessing = Guessing(lambda s: self.texts.get(self._key(s), s.ids))

    @staticmethod
    def _key(s):
        return tuple(s.request.ids)

    def run(self, requests, monkeypatch):
        """Return the plain answers and those with drafts, as lists of sequences."""
        plain = self._finish(requests)
        self.texts = {self._key(s): s.ids for s in plain}
        engine = self.llm.engine
        limits = engine.pool, engine.program.plan, engine.longest, engine.plain_context
        with monkeypatch.context() as patch:
            patch.setattr(engine, "_drafting", Drafting(self.guessing, *limits))
            return plain, self._finish(requests)

    def _finish(self, requests):
        engine = self.llm.engine
        waiting, sequences = list(enumerate(requests)), []
        tick = 0
        while waiting or not engine.idle:
            while waiting and tick >= 3 * waiting[0][0]:
                sequences.append(engine.submit(waiting.pop(0)[1]()))
            engine.step()
            tick += 1
        return sequences


def check_same(plain, drafted):
    for one, two in zip(plain, drafted, strict=True):
        assert one.sampled == two.sampled
        assert one.finish_reason == two.finish_reason
        assert one.error is two.error is None
        assert two.n_run == one.n_run


def prompts(llm, n):
    words = [
        "Once",
        "upon",
        "a",
        "time",
        "there",
        "was",
        "a",
        "small",
        "fox",
        "who",
        "liked",
        "to",
        "run",
        "in",
        "the",
        "green",
        "forest",
    ]
    chance = random.Random(n)
    return [llm.tokenizer.encode(" ".join(chance.choices(words, k=12))) for _ in range(n)]


@pytest.mark.parametrize("name", SETTINGS)
def test_drafts_change_no_token(llm, name, monkeypatch):
    recalling = Recalling(llm)

    def request(i, ids):
        params = SamplingParams(max_tokens=30 + i, seed=i, ignore_eos=i % 2 == 0, **SETTINGS[name])
        return lambda: Request(ids, params, llm.tokenizer.eog_ids)

    requests = [request(i, ids) for i, ids in enumerate(prompts(llm, 40 if EVERY else 5))]
    plain, drafted = recalling.run(requests, monkeypatch)
    check_same(plain, drafted)
    assert recalling.guessing.n_accepted > 20
    assert recalling.guessing.n_wrong > 20


def test_drafts_change_no_token_of_constrained_answers(llm, monkeypatch):
    pytest.importorskip("llguidance")
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    recalling = Recalling(llm)

    def request(i, ids):
        params = SamplingParams(max_tokens=60, seed=i, temperature=0 if i % 2 else 0.8)
        grammar = llm.constraint("json_schema", schema)
        eog = llm.tokenizer.eog_ids
        return lambda: Request(ids, params, eog, constraint=grammar.start())

    requests = [request(i, ids) for i, ids in enumerate(prompts(llm, 4))]
    plain, drafted = recalling.run(requests, monkeypatch)
    check_same(plain, drafted)
    assert recalling.guessing.n_accepted > 10


def test_drafts_change_no_token_of_reasoning_with_a_budget(llm, monkeypatch):
    """A token of the text, as end marker, is inserted where the budget ends."""
    recalling = Recalling(llm)
    start, end = (7, 8), (13, 14, 15)

    def request(i, ids):
        params = SamplingParams(max_tokens=40, seed=i, ignore_eos=True)
        thinking = Thinking.after(ids, start, end, budget_tokens=5 + i, opens=True)
        return lambda: Request(ids, params, thinking=thinking)

    requests = [request(i, ids) for i, ids in enumerate(prompts(llm, 4))]
    plain, drafted = recalling.run(requests, monkeypatch)
    check_same(plain, drafted)
    assert recalling.guessing.n_accepted > 20


@pytest.mark.parametrize("stop", [" the", "fox", "e w"])
def test_a_stop_string_ends_the_answer_at_the_same_token(llm, stop, monkeypatch):
    """Tokens that the last step gained behind it are no part of the answer or of its usage."""
    params = SamplingParams(temperature=0, max_tokens=60, stop=stop)
    ids = llm.tokenizer.encode("Once upon a time there was a fox who")
    plain = llm.generate(ids, params)
    whole = llm.generate(ids, replace(params, stop=()))
    engine, text = llm.engine, [*ids, *whole.token_ids]
    limits = engine.pool, engine.program.plan, engine.longest, engine.plain_context
    monkeypatch.setattr(engine, "_drafting", Drafting(Guessing(lambda s: text), *limits))
    drafted = llm.generate(ids, params)
    assert (drafted.text, drafted.token_ids) == (plain.text, plain.token_ids)
    assert drafted.timings.generated_tokens == plain.timings.generated_tokens
    assert plain.finish_reason == drafted.finish_reason


def test_repeated_text_is_drafted_and_a_request_can_refuse():
    with LLM(backend="cpu") as llm:
        prompt = "One two three four. One two three four. One two three four. One two"
        params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
        with_drafts = llm.generate(prompt, params)
        without = llm.generate(prompt, params, speculate=False)
    assert with_drafts.token_ids == without.token_ids
    assert with_drafts.timings.drafted_tokens > 0
    assert without.timings.drafted_tokens == 0


def test_an_unknown_mode_is_an_error():
    with pytest.raises(RequestError, match="no speculation 'always'"):
        LLM(backend="cpu", speculate="always")


# -- the policy ------------------------------------------------------------------------------------


def times(step):
    """Return times of a step of n rows: 1 + `step` for each further row."""
    return StepTimes(lambda rows: 1 + step * (rows - 1))


def offer(*probabilities, n=0, **record):
    draft = Draft([1] * len(probabilities), list(probabilities)) if probabilities else NO_DRAFT
    return Offer(draft, Record(**record), n)


def choose(*offers, step=0.05, streams=None, most=100):
    streams = len(offers) if streams is None else streams
    return lengths(offers, streams, streams, most, times(step), Acceptance())


def test_long_drafts_are_verified_where_rows_are_cheap():
    assert choose(offer(*[0.97] * 12)) == [12]
    assert choose(offer(*[0.97] * 12), most=5) == [5]
    assert choose(offer(*[0.5] * 12), step=0.05)[0] in range(2, 6)
    assert choose(offer(*[0.5] * 12), step=0.6) == [0]
    assert choose(offer()) == [0]


def test_a_full_batch_verifies_nothing():
    """Eight streams at a quarter of a step for each row: a further row pays for itself only."""
    offers = [offer(*[0.88] * 4) for _ in range(8)]
    assert choose(*offers, step=0.25) == [0] * 8
    assert sum(choose(*offers, step=0.02)) > 8


def test_the_best_draft_comes_first():
    assert choose(offer(0.5, 0.5), offer(*[0.97] * 9), most=9, step=0.02) == [0, 9]


def test_a_sequence_without_drafts_is_probed():
    unlikely = [0.5] * 3
    assert choose(offer(*unlikely, n=PROBE_TOKENS - 1), step=0.7) == [0]
    assert choose(offer(*unlikely, n=PROBE_TOKENS), step=0.7) == [1]


def test_acceptance_is_learned():
    acceptance = Acceptance()
    assert acceptance.rate(0.9) > acceptance.rate(0.5) > acceptance.rate(0.3)
    for _ in range(100):
        acceptance.record(0.9, accepted=False)
        acceptance.record(0.5, accepted=True)
    assert acceptance.rate(0.9) < 0.1
    assert acceptance.rate(0.5) > 0.9
    for _ in range(400):
        acceptance.record(0.9, accepted=True)
    assert acceptance.rate(0.9) > 0.8, "old drafts fade"


def test_a_sequence_whose_drafts_fail_gets_shorter_ones():
    record = Record()
    for _ in range(30):
        record.reached(0.9, accepted=False)
    failed = {"expected": record.expected, "accepted": record.accepted}
    assert choose(offer(*[0.97] * 8), step=0.2) == [8]
    assert choose(offer(*[0.97] * 8, **failed), step=0.2) == [0]


def test_the_guard_stops_a_sequence_that_loses_time_for_longer_each_time():
    record, pauses, n = Record(), [], 0
    for _ in range(3):
        n = max(n, record.off_until) + GUARD_TOKENS
        record.saved_s = -0.1
        record.guard(n)
        pauses.append(record.off_until - n)
    assert pauses == [2 * GUARD_TOKENS, 4 * GUARD_TOKENS, 8 * GUARD_TOKENS]
    assert choose(Offer(Draft([1], [0.97]), record, n)) == [0]
    n = record.off_until + GUARD_TOKENS
    record.saved_s = 0.1
    record.guard(n)
    assert record.off_until <= n
    assert choose(Offer(Draft([1], [0.97]), record, n)) == [1]


def test_times_of_steps_replace_the_estimate():
    found = times(0.1)
    assert found.ratio(4) == pytest.approx(1.3)
    for _ in range(60):
        found.record(1, 0.010)
        found.record(4, 0.020)
    assert found.ratio(1) == 1
    assert found.ratio(4) == pytest.approx(2.0, rel=0.05)
    assert found.ratio(5) == pytest.approx(1.4 * 2.0 / 1.3, rel=0.05), "corrected by its neighbour"
    for _ in range(60):  # twice the load: no ratio changes
        found.record(1, 0.020)
        found.record(4, 0.040)
    assert found.unit_s == pytest.approx(0.020, rel=0.05)
    assert found.ratio(4) == pytest.approx(2.0, rel=0.1)


def test_the_estimate_counts_experts_and_arithmetic():
    from zinc.engine.speculative.step_times import estimate_of
    from zinc.ops.registry import Cost
    from zinc.ops.values import Dim

    class Plan:
        def __init__(self, cost):
            self.launches = (Launch("linear", Dim.TOKENS, (), (), (), cost, ""),)

    dense = estimate_of(Plan(Cost(fixed_bytes=560, row_flops=2000)), 0.07)
    assert [dense(n) for n in (1, 4, 8)] == pytest.approx([1, 1, 2])
    experts = Cost(fixed_bytes=100, expert_bytes=10, experts_per_row=8, n_experts=32)
    assert estimate_of(Plan(experts), 0.07)(3) == pytest.approx((100 + 240) / 180)


def test_the_least_gain_is_a_gain():
    assert 1 < LEAST_GAIN < 1.1
