"""One `LLM` in several threads: the same answers as in one thread, without interference."""

from __future__ import annotations

import _thread
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from effort import examples

import zinc
from zinc import LLM, SamplingParams
from zinc.core.errors import RequestError
from zinc.engine.engine import Engine
from zinc.engine.load.model import LoadedModel
from zinc.tokenizer import Tokenizer

SOURCE = str(Path(zinc.__file__).parent.parent)
PATIENCE_S = 300  # long enough for a busy machine
GREEDY = SamplingParams(temperature=0, max_tokens=16)
SEEDED = SamplingParams(seed=7, max_tokens=16)
LONG = SamplingParams(temperature=0, max_tokens=3000, ignore_eos=True)
PROMPTS = [f"{start} number {i}" for i in range(4) for start in ("A dog", "The ship", "Once upon")]


@pytest.fixture(scope="module")
def llm():
    with LLM(backend="cpu", threads=2, context=512) as model:
        yield model


def wait_for(condition):
    until = time.monotonic() + PATIENCE_S
    while not condition() and time.monotonic() < until:
        time.sleep(0.005)
    assert condition()


def answers(llm: LLM, first: int) -> list[object]:
    """Return whole, streamed and batched answers, an embedding, logits and a perplexity."""
    prompts = PROMPTS[first:] + PROMPTS[:first]
    found: list[object] = [llm.generate(prompts[0], GREEDY).token_ids]
    found.append(llm.generate(prompts[1], SEEDED).token_ids)
    found.append([t for c in llm.stream(prompts[2], SEEDED) for t in c.token_ids])
    found.append([a.text for a in llm.generate(prompts[3:5], GREEDY)])
    found.append(llm.chat([{"role": "user", "content": prompts[5]}], GREEDY).text)
    found.append(llm.embed(prompts[:2]).tobytes())
    found.append(llm.logits(llm.tokenizer.encode(prompts[6])).tobytes())
    found.append(llm.perplexity(" ".join(prompts), window=16))
    return found


@pytest.mark.parametrize("times", [1, pytest.param(20, marks=pytest.mark.every)])
def test_eight_threads_get_the_answers_of_one(llm, times):
    want = [answers(llm, first) for first in range(8)]
    for _ in range(times):
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(lambda first: answers(llm, first), range(8))) == want
    assert llm.engine.idle
    llm.engine.pool.check()


def test_requests_of_several_threads_share_steps(llm, monkeypatch):
    sizes, step = [], Engine.step

    def counted(engine):
        if not sizes:  # until the others have come
            wait_for(lambda: len(engine._sequences) + llm.worker._calls.qsize() == 4)
        gained = step(engine)
        sizes.append(len(gained))
        return gained

    monkeypatch.setattr(Engine, "step", counted)

    def work(i: int) -> None:
        llm.generate(PROMPTS[i], SamplingParams(temperature=0, max_tokens=64, ignore_eos=True))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert max(sizes) == 4
    assert len(sizes) < 4 * 64


def test_scoring_waits_while_running_requests_hold_the_cache(monkeypatch):
    """The window is as long as the context, and eight answers hold the whole cache."""
    full, go = threading.Event(), threading.Event()
    step = Engine.step

    def held(engine):
        gained = step(engine)
        if engine.pool.available == (0,):
            full.set()
            assert go.wait(PATIENCE_S)
        return gained

    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    prompts = [f"{i} {'word ' * 50}" for i in range(8)]  # each grows to two blocks of sixteen
    text = " ".join(PROMPTS * 3)
    with LLM(backend="cpu", threads=2, context=128, prefix_cache=False) as llm:
        want = [llm.generate(prompt, params).token_ids for prompt in prompts]
        perplexity = llm.perplexity(text, window=128)
        monkeypatch.setattr(Engine, "step", held)
        with ThreadPoolExecutor(2) as pool:
            answers = pool.submit(llm.generate, prompts, params)
            assert full.wait(PATIENCE_S)
            score = pool.submit(llm.perplexity, text, window=128)
            wait_for(lambda: not llm.worker._calls.empty())
            go.set()
            assert score.result(PATIENCE_S) == perplexity
            assert [a.token_ids for a in answers.result(PATIENCE_S)] == want


def test_a_request_that_fails_disturbs_no_other(llm):
    want = llm.generate(PROMPTS[0], GREEDY).token_ids

    def fail(_: int) -> None:
        with pytest.raises(RequestError, match="outside the vocabulary"):
            llm.generate([10**6], GREEDY)
        with pytest.raises(RequestError, match="too long"):
            llm.generate([5] * 5000, GREEDY)

    with ThreadPoolExecutor(4) as pool:
        failures = [pool.submit(fail, i) for i in range(8)]
        assert llm.generate(PROMPTS[0], GREEDY).token_ids == want
        for each in failures:
            each.result(PATIENCE_S)
    assert llm.engine.idle


def test_a_bug_in_a_step_is_raised_and_the_model_goes_on(llm, monkeypatch):
    with monkeypatch.context() as fault:
        fault.setattr(Engine, "_step", lambda engine: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            llm.generate("hi", GREEDY)
        with pytest.raises(ZeroDivisionError):
            list(llm.stream("hi", GREEDY))
    assert llm.engine.idle
    assert llm.generate("hi", GREEDY).token_ids


def test_ctrl_c_in_the_main_thread_leaves_the_model_usable(llm, request):
    want = llm.generate(PROMPTS[0], GREEDY).token_ids
    long = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    whole = llm.generate(PROMPTS[1], long).token_ids
    # A process that a shell starts with `&` ignores SIGINT.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, handler))
    for i in range(examples(8)):
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(llm.generate, PROMPTS[1], long)
            timer = threading.Timer(0.007 * i, _thread.interrupt_main)
            with pytest.raises(KeyboardInterrupt):  # noqa: PT012
                timer.start()
                while True:
                    llm.generate("Once upon", LONG)
            assert other.result(PATIENCE_S).token_ids == whole
        assert llm.generate(PROMPTS[0], GREEDY).token_ids == want
    wait_for(lambda: llm.engine.idle)
    llm.engine.pool.check()


def test_a_stream_that_is_dropped_by_the_garbage_collector_is_cancelled(llm):
    """It is part of a cycle, so the collector may run in any thread."""
    cycle: list[object] = [llm.stream("Once upon a time", LONG)]
    cycle.append(cycle)
    next(cycle[0])
    del cycle
    with ThreadPoolExecutor(1) as pool:
        pool.submit(gc.collect).result(PATIENCE_S)
    wait_for(lambda: llm.engine.idle)


def test_a_stream_is_read_and_closed_in_other_threads(llm):
    want = llm.generate("Once upon a time", GREEDY).token_ids
    stream = llm.stream("Once upon a time", GREEDY)
    with ThreadPoolExecutor(1) as pool:
        first = next(stream)
        rest = pool.submit(list, stream).result(PATIENCE_S)
    assert [t for c in [first, *rest] for t in c.token_ids] == want
    stream = llm.stream("Once upon a time", LONG)
    next(stream)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(stream.close).result(PATIENCE_S)
    assert llm.engine.idle
    assert list(stream) == []


def test_a_stream_that_nobody_reads_stops(llm):
    stream = llm.stream("Once upon a time", LONG, speculate=False)  # a token a step
    next(stream)
    (sequence,), (task,) = llm.engine._sequences.values(), llm.worker._tasks
    wait_for(lambda: not task.wants_step)
    n = sequence.n_generated
    assert n < 20
    time.sleep(0.1)
    assert sequence.n_generated == n
    stream.close()


def test_close_ends_running_requests_with_an_error():
    llm = LLM(backend="cpu", threads=2)
    begun = threading.Barrier(4)

    def use(i: int) -> str:
        with pytest.raises(RequestError) as caught:  # noqa: PT012
            begun.wait()
            while True:
                llm.generate(PROMPTS[i], LONG)
        return str(caught.value)

    stream = llm.stream("Once upon a time", LONG)
    next(stream)
    with ThreadPoolExecutor(3) as pool:
        users = [pool.submit(use, i) for i in range(3)]
        begun.wait()
        wait_for(lambda: llm.engine.n_waiting == 0 and len(llm.engine._sequences) == 4)
        llm.close()
        errors = {each.result(PATIENCE_S) for each in users}
    assert all(error.startswith("the model is closed") for error in errors)
    with pytest.raises(RequestError, match="the model is closed"):
        list(stream)
    stream.close()


def test_close_from_several_threads():
    llm = LLM(backend="cpu", threads=2)
    llm.generate("hi", GREEDY)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: llm.close(), range(4)))


def test_a_model_without_references_is_freed_with_its_thread():
    before = set(threading.enumerate())
    llm = LLM(backend="cpu", threads=2)
    llm.generate("hi", GREEDY)
    (thread,) = (
        x for x in set(threading.enumerate()) - before if not x.name.startswith("zinc-tokenizer")
    )
    freed = weakref.ref(llm)
    del llm
    wait_for(lambda: gc.collect() >= 0 and freed() is None)
    wait_for(lambda: not thread.is_alive())


SCRIPT = """
from zinc import LLM, SamplingParams
llm = LLM(backend="cpu", threads=2)
stream = llm.stream("Once upon a time", SamplingParams(max_tokens=3000, ignore_eos=True))
print(next(stream).text is not None)
"""


def test_a_program_may_end_with_a_stream_half_read():
    found = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=PATIENCE_S,
        env={"PYTHONPATH": SOURCE}, check=False,
    )  # fmt: skip
    assert (found.returncode, found.stdout, found.stderr) == (0, "True\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_cannot_use_the_model():
    found = subprocess.run(
        # From Python 3.12 on, a fork of a process with threads is a warning.
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK],
        capture_output=True, text=True, timeout=PATIENCE_S,
        env={"PYTHONPATH": SOURCE}, check=False,
    )  # fmt: skip
    assert (found.returncode, found.stderr) == (0, "")
    assert "create the LLM after the fork" in found.stdout.replace("Create", "create")


FORK = """
import os
from zinc import LLM, ZincError
with LLM(backend="cpu", threads=2) as llm:
    llm.generate("hi", max_tokens=2)
    child = os.fork()
    if child == 0:
        try:
            llm.generate("hi", max_tokens=2)
        except ZincError as error:
            print(error, flush=True)
        llm.close()
        os._exit(0)  # as processes of `multiprocessing` end
    os.waitpid(child, 0)
    llm.generate("hi", max_tokens=2)
"""


def test_the_tokenizer_is_built_in_a_thread_while_the_model_is_loaded(monkeypatch):
    loads, builders = LoadedModel.__init__, []
    loading, built = threading.Event(), threading.Event()
    build = Tokenizer.from_metadata

    def load(self, *args):
        loading.set()
        assert built.wait(PATIENCE_S)
        loads(self, *args)

    def from_metadata(*args):
        assert loading.wait(PATIENCE_S)
        builders.append(threading.current_thread())
        made = build(*args)
        built.set()
        return made

    monkeypatch.setattr(LoadedModel, "__init__", load)
    monkeypatch.setattr(Tokenizer, "from_metadata", from_metadata)
    with LLM(backend="cpu", threads=2) as llm:
        assert llm.tokenizer is llm.tokenizer
    assert len(builders) == 1
    assert builders[0] is not threading.current_thread()


def test_shared_parts_are_built_once_by_the_first_thread():
    with LLM(backend="cpu", threads=2) as llm, ThreadPoolExecutor(8) as pool:
        assert len({id(each) for each in pool.map(lambda _: llm.tokenizer, range(8))}) == 1
        assert len({id(each) for each in pool.map(lambda _: llm.template, range(8))}) == 1


CALLS = {
    "generate": lambda llm: llm.generate("hi"),
    "generate several": lambda llm: llm.generate(["hi", "ho"]),
    "chat": lambda llm: llm.chat([{"role": "user", "content": "hi"}]),
    "stream": lambda llm: llm.stream("hi"),
    "render": lambda llm: llm.render([{"role": "user", "content": "hi"}]),
    "embed": lambda llm: llm.embed("hi"),
    "logits": lambda llm: llm.logits([1, 2]),
    "perplexity": lambda llm: llm.perplexity([1] * 600),
    "constraint": lambda llm: llm.constraint("regex", "a+"),
    "dry_breakers": lambda llm: llm.dry_breakers(SamplingParams(dry_multiplier=1)),
    "template": lambda llm: llm.template,
    "tokenizer": lambda llm: llm.tokenizer,
    "engine": lambda llm: llm.engine,
    "backend": lambda llm: llm.backend,
    "program": lambda llm: llm.program,
    "choice": lambda llm: llm.choice,
}


@pytest.mark.parametrize("was_used", [False, True])
def test_every_use_of_a_closed_model_is_an_error(was_used):
    llm = LLM(backend="cpu", threads=2)
    if was_used:
        tokenizer = llm.tokenizer
        llm.chat([{"role": "user", "content": "hi"}], GREEDY)
        assert np.isfinite(llm.logits([1, 2])).all()
    llm.close()
    llm.close()
    for name, call in CALLS.items():
        if was_used and name == "tokenizer":
            continue  # it needs no engine, so answers can still be decoded
        with pytest.raises(RequestError, match="the model is closed"):
            call(llm)
    assert llm.context > 0
    if was_used:
        assert tokenizer.encode("hi")


def test_a_with_block_closes_after_an_error():
    with pytest.raises(KeyError), LLM(backend="cpu", threads=2) as llm:
        raise KeyError
    with pytest.raises(RequestError, match="the model is closed"):
        llm.generate("hi")
