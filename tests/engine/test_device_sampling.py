"""Programs that sample tokens on the device, one step ahead of the engine."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from effort import on_backends
from fake import END, KINDS, alone, model
from guessing import Guessing
from present import computing
from test_engine import ENDS, check_idle, finish, greedy, prompt
from test_prefix_models import FIXTURES

from zinc import LLM, DeviceMap, SamplingParams
from zinc.backends import api, micro_batches
from zinc.backends.capabilities import BackendKind
from zinc.backends.step_queue import StepQueue
from zinc.engine.engine import Engine
from zinc.engine.request import Request
from zinc.engine.sampling import Sampler, penalties

DRAWING = ["ref", *(name for name in computing() if api.kernels(name).supports("sample"))]


PAIRS = [",".join(["vulkan:0"] * 2) for name in computing() if name == "vulkan"]


def engine(kind="everything", n_blocks=64, context=400, **options):
    program, cache = model(kind, n_blocks, samples=True, **options)
    return Engine(program, cache, 97, context, prompt_tokens_beside_streams=10)


def test_each_step_is_queued_before_the_last_token_is_known():
    e = engine()
    s = e.submit(Request(prompt(50), greedy(20)))
    finish(e, s)
    assert e.program.n_ahead == 19
    assert e.program.n_run == 50 + 19, "nothing runs past the last token"
    check_idle(e)


def test_banned_tokens_let_steps_run_ahead():
    """Two of the tokens that the model gives otherwise would end the answer."""
    e = engine()
    ids = alone("everything", prompt(50), 20)
    ends = frozenset(ids[55:57])
    params = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)
    s = e.submit(Request(prompt(50), params, ends))
    finish(e, s)
    assert s.n_generated == 20
    assert not ends & {*s.generated}
    assert e.program.n_ahead == 19
    check_idle(e)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cancelled_answer_leaves_a_correct_cache(kind):
    """A stop string is found between steps, while a step is in flight."""
    e = engine(kind)
    first = e.submit(Request(prompt(40), greedy(50)))
    while first.n_generated < 9:
        e.step()
    e.cancel(first, "stop")
    assert e.idle
    second = e.submit(Request([*first.ids, *prompt(5, seed=1)], greedy(15)))
    finish(e, second)
    assert second.ids == alone(kind, [*first.ids, *prompt(5, seed=1)], 15)
    assert second.n_cached == len(first.ids)
    check_idle(e)


def test_a_new_request_waits_for_at_most_one_step():
    e = engine(max_tokens=60)
    first = e.submit(Request(prompt(20), greedy(60)))
    for _ in range(5):
        e.step()
    second = e.submit(Request(prompt(8, seed=1), greedy(5)))
    e.step()
    e.step()
    assert second.n_generated == 1
    ahead = e.program.n_ahead
    finish(e, first, second)
    assert e.program.n_ahead > ahead + 4, "both go on a step ahead"
    assert first.ids == alone("everything", prompt(20), 60)
    assert second.ids == alone("everything", prompt(8, seed=1), 5)
    check_idle(e)


def test_one_host_sampled_row_leaves_the_others_to_the_device():
    """A step with rows of both kinds. Rows of the device do not run ahead in it."""
    e = engine(max_tokens=60)
    plain = e.submit(Request(prompt(20), greedy(8)))
    params = SamplingParams(max_tokens=4, temperature=0, logit_bias={END: -1.0})
    biased = e.submit(Request(prompt(21, seed=1), params))
    finish(e, plain, biased)
    assert plain.ids == alone("everything", prompt(20), 8)
    assert biased.ids == alone("everything", prompt(21, seed=1), 4)
    assert 0 < e.program.n_ahead < 7
    check_idle(e)


def test_a_failed_step_in_flight_ends_its_requests():
    e = engine()
    bad = e.submit(Request(prompt(30), greedy(40)))
    while bad.n_generated < 4:
        e.step()
    e.program.fail_at = alone("everything", prompt(30), 8)[36]
    finish(e, bad)
    assert bad.finish_reason == "error"
    assert str(bad.error) == "the device is lost"
    e.program.fail_at = None
    s = e.submit(Request(prompt(30), greedy(20), ENDS))
    finish(e, s)
    assert s.ids == alone("everything", prompt(30), 20, ENDS)
    check_idle(e)


WINDOWS = [
    {"presence_penalty": 1.5, "repeat_last_n": 1},
    {"repeat_penalty": 1.3, "presence_penalty": 1.5, "repeat_last_n": 3},
    {"presence_penalty": 1.5, "frequency_penalty": 0.1},
    {"frequency_penalty": 1.5, "repeat_last_n": -1},
]


def penalised(n, **settings):
    return SamplingParams(temperature=0, max_tokens=n, **settings)


def by_host(kind, ids, params):
    """The prompt and its answer if the host samples the tokens."""
    program, cache = model(kind, 64)
    e = Engine(program, cache, 97, 400)
    s = e.submit(Request(ids, params))
    finish(e, s)
    return s.ids


@pytest.mark.parametrize("window", WINDOWS)
def test_penalties_let_steps_run_ahead(window):
    e = engine()
    s = e.submit(Request(prompt(20), penalised(200, **window)))
    finish(e, s)
    assert e.program.n_ahead == 199
    assert s.ids == by_host("everything", prompt(20), s.request.params)
    assert s.ids != alone("everything", prompt(20), 200), "the penalties change the answer"
    check_idle(e)


@pytest.mark.parametrize("last_n", [-1, 40])
def test_the_host_samples_while_a_window_has_too_many_tokens(last_n, monkeypatch):
    """Then the window of 40 tokens has fewer different ones again."""
    monkeypatch.setattr(penalties, "MOST_PENALIZED", 30)
    fits = []
    fits_device = Sampler.fits_device

    def recorded(self, n_more=0):
        fits.append(fits_device(self, n_more))
        return fits[-1]

    monkeypatch.setattr(Sampler, "fits_device", recorded)
    e = engine()
    params = penalised(150, frequency_penalty=0.3, repeat_last_n=last_n)
    s = e.submit(Request(prompt(8), params))
    finish(e, s)
    assert s.ids == by_host("everything", prompt(8), params)
    changes = [now for before, now in pairwise(fits) if before is not now]
    assert changes[:2] == [False, True][: 1 if last_n == -1 else 2]
    assert 10 < e.program.n_ahead < 149
    check_idle(e)


def test_a_preempted_sequence_keeps_its_window():
    e = engine(n_blocks=24, context=150)
    params = penalised(100, presence_penalty=1.5)
    sequences = [e.submit(Request(prompt(20, i), params)) for i in range(6)]
    finish(e, *sequences)
    assert sum(s.n_preempted for s in sequences) > 0
    assert e.program.n_ahead > 0
    for i, s in enumerate(sequences):
        assert s.ids == by_host("everything", prompt(20, i), params)
    check_idle(e)


@pytest.mark.parametrize("most", [1024, 30])
@pytest.mark.parametrize("window", WINDOWS)
def test_drafted_tokens_are_in_the_window_of_the_rows_behind_them(window, most, monkeypatch):
    params = penalised(100, **window)
    text = by_host("everything", prompt(12), params)
    monkeypatch.setattr(penalties, "MOST_PENALIZED", most)
    program, cache = model("everything", 64, max_outputs=20, samples=True)
    guessing = Guessing(lambda s: text)
    e = Engine(program, cache, 97, 400, speculation=guessing)
    s = e.submit(Request(prompt(12), params))
    finish(e, s)
    assert s.ids == text
    assert guessing.n_accepted > 40
    check_idle(e)


CHAINS = [
    SamplingParams(temperature=0, max_tokens=12, ignore_eos=True),
    SamplingParams(seed=5, max_tokens=9),
    SamplingParams(
        seed=6,
        max_tokens=14,
        temperature=1.6,
        top_k=64,
        top_p=0.9,
        min_p=0.0,
        logit_bias=dict.fromkeys(range(9, 16), -np.inf),
    ),
    SamplingParams(temperature=0, max_tokens=13, presence_penalty=1.5, repeat_last_n=-1),
    SamplingParams(seed=7, max_tokens=11, repeat_penalty=1.2, frequency_penalty=0.3),
    SamplingParams(seed=8, max_tokens=10, presence_penalty=2.0, repeat_last_n=3, ignore_eos=True),
]


def answers(llm, together):
    rng = np.random.default_rng(4)
    prompts = [rng.integers(3, llm.spec.vocab, n).tolist() for n in (9, 20, 33, 12, 17, 5)]
    submitted = []
    for ids, params in zip(prompts, CHAINS, strict=True):
        submitted.append(llm.engine.submit(Request(ids, params)))
        if not together:
            finish(llm.engine, *submitted)
    finish(llm.engine, *submitted)
    return [s.generated for s in submitted]


@pytest.mark.parametrize(
    ("family", "backend"), on_backends(("qwen3", "qwen35"), DRAWING, everywhere=["qwen35"])
)
def test_a_seed_gives_the_same_tokens_in_any_batch_and_on_the_host(family, backend, monkeypatch):
    with LLM(FIXTURES / f"{family}.gguf", backend=backend, batch_tokens=64) as llm:
        assert llm.plan.sampled is not None
        alone = answers(llm, together=False)
        assert answers(llm, together=True) == alone
        monkeypatch.setattr(Sampler, "fits_device", lambda self, n_more=0: False)
        assert answers(llm, together=False) == alone


@pytest.mark.parametrize(
    ("devices", "split"),
    [
        ("ref,ref", "layer"),
        pytest.param("ref,ref", "tensor", marks=pytest.mark.every),
        *(
            pytest.param(pair, split, marks=pytest.mark.every)
            for pair in PAIRS
            for split in ("tensor", "layer")
        ),
    ],
)
def test_several_devices_sample_the_tokens_of_one(devices, split, monkeypatch):
    """Steps are queued in another thread, one step ahead, and the cache waits for them."""
    monkeypatch.setattr(micro_batches, "MICRO_BATCH_TOKENS", dict.fromkeys(BackendKind, 8))
    monkeypatch.setattr(micro_batches, "LEAST_TOKENS", 3)
    ahead = []
    queue = StepQueue.submit

    def queued(self, run):
        ahead.append(self._last is not None and not self._last.done())
        return queue(self, run)

    monkeypatch.setattr(StepQueue, "submit", queued)
    path, found = FIXTURES / "qwen35.gguf", []
    for device in (devices, devices.partition(",")[0]):
        named = (
            {"options": {"device": device}}
            if "," in device
            else {"backend": device.partition(":")[0]}
        )
        device_map = DeviceMap(split=split) if "," in device else None
        with LLM(path, **named, device_map=device_map, batch_tokens=64) as llm:
            assert llm.plan.sampled is not None
            found += [answers(llm, together) for together in (False, True)]
            llm.engine.pool.check()
    assert found[0] == found[1] == found[2] == found[3]
    assert any(ahead)
