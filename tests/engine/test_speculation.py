"""Speculative decoding: the same tokens as without it, and drafts only where they pay."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace

import pytest
from effort import EVERY
from guessing import Guessing
from present import computing
from test_prefix_models import FIXTURES

from zinc import LLM, SamplingParams
from zinc.backends.plans import Launch
from zinc.core.errors import MemoryLimitError, RequestError, UnsupportedError
from zinc.engine.constraint import Thinking
from zinc.engine.load import memory
from zinc.engine.load.device_map import DeviceMap
from zinc.engine.load.model import LoadedModel
from zinc.engine.load.options import LoadOptions
from zinc.engine.load.planning import plan_model
from zinc.engine.request import Request
from zinc.engine.speculative.draft import NO_DRAFT, Draft
from zinc.engine.speculative.draft_scheduler import DraftScheduler
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


@pytest.fixture(scope="module", params=["qwen35", "qwen35moe", "qwen3next", "gemma3", "deepseek2"])
def fixture_model(request):
    """A model with recurrent states, sliding windows or latent attention, on the CPU."""
    path = FIXTURES / f"{request.param}.gguf"
    options = LoadOptions(path, backend="cpu", threads=2, rollback=16, speculate="off")
    with LoadedModel.open(options) as found:
        yield found


class Recalling:
    """Run of requests on an engine with speculation that knows the plain answers to them."""

    def __init__(self, engine):
        self.engine, self.texts = engine, {}
        self.guessing = Guessing(lambda s: self.texts.get(self._key(s), s.ids))

    @staticmethod
    def _key(s):
        return tuple(s.request.ids)

    def run(self, requests, monkeypatch):
        """Return the plain answers and those with drafts, as lists of sequences."""
        plain = self._finish(requests)
        self.texts = {self._key(s): s.ids for s in plain}
        engine = self.engine
        limits = engine.pool, engine.program.plan, engine.max_sequence_tokens, engine.plain_context
        with monkeypatch.context() as patch:
            patch.setattr(engine, "_draft_scheduler", DraftScheduler(self.guessing, *limits))
            return plain, self._finish(requests)

    def _finish(self, requests):
        engine = self.engine
        waiting, sequences = list(enumerate(requests)), []
        tick = 0
        while waiting or not engine.idle:
            while waiting and tick >= 3 * waiting[0][0]:
                sequences.append(engine.submit(waiting.pop(0)[1]()))
            engine.step()
            tick += 1
        return sequences


def check_same(plain, drafted, n_run=True):
    for one, two in zip(plain, drafted, strict=True):
        assert one.sampled == two.sampled
        assert one.finish_reason == two.finish_reason
        assert one.error is two.error is None
        # On a device the last token may have run ahead.
        assert two.n_run == one.n_run or not n_run


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
    recalling = Recalling(llm.engine)

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
    recalling = Recalling(llm.engine)

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
    recalling = Recalling(llm.engine)
    start, end = (7, 8), (13, 14, 15)

    def request(i, ids):
        params = SamplingParams(max_tokens=40, seed=i, ignore_eos=True)
        thinking = Thinking.after(ids, start, end, budget_tokens=5 + i, opens=True)
        return lambda: Request(ids, params, thinking=thinking)

    requests = [request(i, ids) for i, ids in enumerate(prompts(llm, 4))]
    plain, drafted = recalling.run(requests, monkeypatch)
    check_same(plain, drafted)
    assert recalling.guessing.n_accepted > 20


@pytest.mark.alike(4)
@pytest.mark.parametrize("temperature", [0, 0.8])
def test_drafts_change_no_token_of_any_kind_of_layer(fixture_model, temperature, monkeypatch):
    """States are rolled back across the ends of chunks and windows."""
    engine, n_vocab = fixture_model.engine, fixture_model.spec.vocab
    recalling = Recalling(engine)

    def request(i):
        ids = random.Random(i).choices(range(n_vocab), k=20 + 9 * i)
        params = SamplingParams(max_tokens=60, seed=i, temperature=temperature)
        return lambda: Request(ids, params)

    requests = [request(i) for i in range(40 if EVERY else 4)]
    plain, drafted = recalling.run(requests, monkeypatch)
    check_same(plain, drafted)
    assert recalling.guessing.n_accepted > 50
    assert recalling.guessing.n_wrong > 50
    engine.pool.check()


ON_DEVICES = [
    ("qwen35", None),
    ("qwen35", DeviceMap(gpu_layers=3)),
    *[(name, None) for name in ("qwen3", "gemma3", "deepseek2", "qwen3next") if EVERY],
]


@pytest.mark.parametrize(("name", "device_map"), ON_DEVICES, ids=str)
@pytest.mark.parametrize("backend", [b for b in computing() if b != "cpu"])
def test_drafts_change_no_token_on_a_device_in_batch_invariant_mode(
    backend, name, device_map, monkeypatch
):
    """Tokens are sampled on the device, those of a draft with the noise of their places."""
    options = LoadOptions(
        FIXTURES / f"{name}.gguf",
        backend=backend,
        context=256,
        backend_options={"batch_invariant": "true"},
        device_map=device_map,
        rollback=16,
        speculate="off",
    )
    with LoadedModel.open(options) as model:
        recalling = Recalling(model.engine)

        def request(i):
            ids = random.Random(i).choices(range(model.spec.vocab), k=10 + 5 * i)
            params = SamplingParams(max_tokens=24, seed=i, temperature=0.9 * (i % 2))
            return lambda: Request(ids, params)

        plain, drafted = recalling.run([request(i) for i in range(3)], monkeypatch)
        check_same(plain, drafted, n_run=False)
    assert recalling.guessing.n_accepted > 10
    assert recalling.guessing.n_wrong > 5


@pytest.mark.parametrize("stop", [" the", "fox", "e w"])
def test_a_stop_string_ends_the_answer_at_the_same_token(llm, stop, monkeypatch):
    """Tokens that the last step gained behind it are no part of the answer or of its usage."""
    params = SamplingParams(temperature=0, max_tokens=60, stop=stop)
    ids = llm.tokenizer.encode("Once upon a time there was a fox who")
    plain = llm.generate(ids, params)
    whole = llm.generate(ids, replace(params, stop=()))
    engine, text = llm.engine, [*ids, *whole.token_ids]
    limits = engine.pool, engine.program.plan, engine.max_sequence_tokens, engine.plain_context
    monkeypatch.setattr(
        engine, "_draft_scheduler", DraftScheduler(Guessing(lambda s: text), *limits)
    )
    drafted = llm.generate(ids, params)
    assert (drafted.text, drafted.token_ids) == (plain.text, plain.token_ids)
    assert drafted.timings.generated_tokens == plain.timings.generated_tokens
    assert plain.finish_reason == drafted.finish_reason


def test_repeated_text_is_drafted_and_a_request_can_refuse(monkeypatch):
    monkeypatch.setattr(StepTimes, "ratio", lambda self, rows: 1.0)  # on a busy machine, too
    with LLM(backend="cpu") as llm:
        prompt = "One two three four. One two three four. One two three four. One two"
        params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
        with_drafts = llm.generate(prompt, params)
        without = llm.generate(prompt, params, speculate=False)
    assert with_drafts.token_ids == without.token_ids
    assert with_drafts.timings.drafted_tokens > 0
    assert without.timings.drafted_tokens == 0


def test_an_unknown_mode_is_an_error():
    with pytest.raises(RequestError, match="no speculation mode 'always'"):
        LLM(backend="cpu", speculate="always")


# -- the policy ------------------------------------------------------------------------------------


def times(step):
    """Return times of a step of n rows: 1 + `step` for each further row."""
    return StepTimes(lambda rows: 1 + step * (rows - 1))


def offer(*probabilities, n=0, **record):
    draft = Draft([1] * len(probabilities), list(probabilities)) if probabilities else NO_DRAFT
    return Offer(draft, Acceptance().rates(probabilities), Record(**record), n)


def choose(*offers, step=0.05, streams=None, most=100):
    streams = len(offers) if streams is None else streams
    return lengths(offers, streams, streams, most, times(step))


def test_long_drafts_are_verified_where_rows_are_cheap():
    assert choose(offer(*[0.97] * 12)) == [12]
    assert choose(offer(*[0.97] * 12), most=5) == [5]
    assert choose(offer(*[0.7] * 12), step=0.05)[0] in range(2, 6)
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
    assert choose(Offer(Draft([1], [0.97]), [0.97], record, n)) == [0]
    n = record.off_until + GUARD_TOKENS
    record.saved_s = 0.1
    record.guard(n)
    assert record.off_until <= n
    assert choose(Offer(Draft([1], [0.97]), [0.97], record, n)) == [1]


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


# -- loading ---------------------------------------------------------------------------------------


def test_a_hybrid_is_speculated_where_its_states_can_be_rolled_back():
    options = LoadOptions(FIXTURES / "qwen35.gguf", threads=1)
    runs = [("cpu", "auto", {}, 8), ("cpu", "off", {}, 0), ("ref", "auto", {}, 0)]
    for device in (b for b in computing() if b != "cpu"):
        invariant = {"batch_invariant": "true"}
        runs += [(device, "auto", invariant, 8), (device, "auto", {}, 0), (device, "suffix", {}, 8)]
    for backend, mode, choices, rollback in runs:
        chosen = replace(options, backend=backend, speculate=mode, backend_options=choices)
        with plan_model(chosen) as planned:
            assert planned.options.rollback == rollback


def test_a_model_without_a_nextn_block_cannot_draft_with_it():
    with pytest.raises(UnsupportedError, match="cannot draft tokens with the NextN block"):
        plan_model(LoadOptions(FIXTURES / "qwen3.gguf", backend="cpu", speculate="mtp"))


def test_without_memory_for_the_larger_states_nothing_is_speculated(monkeypatch, caplog):
    options = LoadOptions(FIXTURES / "qwen35.gguf", backend="cpu", threads=1, context=128)
    available = 1 << 20
    monkeypatch.setattr(memory, "available_memory_bytes", lambda backend=None: available)
    while True:
        with plan_model(replace(options, speculate="off")) as planned, suppress(MemoryLimitError):
            planned.cache_size()
            break
        available += 32 << 10
    with plan_model(options) as planned:
        assert planned.options.rollback == 0
        planned.cache_size()
    assert "without speculative decoding" in caplog.text
    available *= 2
    with plan_model(options) as planned:
        assert planned.options.rollback == 8
