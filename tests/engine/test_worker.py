"""The worker thread of an engine: random requests of several threads, on the fake model."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from effort import examples
from fake import KINDS, VOCAB, alone, model

from zinc.core.errors import RequestError
from zinc.engine.engine import Engine
from zinc.engine.request import Request
from zinc.engine.sampling import SamplingParams
from zinc.engine.worker import EngineWorker, Task

PATIENCE_S = 300  # long enough for a busy machine


class Prompt(Task):
    """A task with one prompt that wants `limit` steps."""

    def __init__(self, ids, n_tokens, limit=None):
        super().__init__()
        self.ids, self.n_tokens, self.limit, self.n_steps = ids, n_tokens, limit, 0

    @property
    def wants_step(self):
        return self.limit is None or self.n_steps < self.limit

    def submit(self, engine):
        params = SamplingParams(temperature=0, max_tokens=self.n_tokens)
        self.sequences.append(engine.submit(Request(self.ids, params)))

    def collect(self, engine):
        self.n_steps += 1
        return super().collect(engine)

    def answer(self):
        (sequence,) = self.sequences
        return [*self.ids, *sequence.generated]


def worker_of(kind, n_blocks=40, samples=False):
    return EngineWorker(Engine(*model(kind, n_blocks, samples=samples), VOCAB, 200))


def use(worker, kind, seed):
    """Run and abandon requests at random; check every answer."""
    rng = random.Random(seed)
    shared = [[rng.randrange(VOCAB - 1) for _ in range(30)] for _ in range(2)]
    for _ in range(examples(24)):
        ids = [*rng.choice(shared)[: rng.randrange(30)], rng.randrange(VOCAB - 1)]
        match rng.randrange(4):
            case 0:  # a task that its caller does not wait for
                task = Prompt(ids, 50, limit=rng.randrange(4))
                worker.start(task)
                (worker.stop if rng.random() < 0.5 else worker.cancel)(task)
            case 1:
                with pytest.raises(RequestError, match="outside the vocabulary"):
                    worker.run(Prompt([VOCAB], 1))
            case _:
                n = rng.randrange(1, 20)
                task = Prompt(ids, n)
                worker.run(task)
                assert task.answer() == alone(kind, ids, n)


@pytest.mark.alike(5)
@pytest.mark.parametrize("samples", [False, True], ids=["host", "device"])
@pytest.mark.parametrize("kind", KINDS)
def test_random_requests_of_several_threads(kind, samples):
    """Also with programs that sample tokens, so that a step is in flight between calls."""
    worker = worker_of(kind, samples=samples)
    with ThreadPoolExecutor(6) as pool:
        for each in [pool.submit(use, worker, kind, seed) for seed in range(6)]:
            each.result(PATIENCE_S)
    worker.call(lambda engine: engine.pool.check())
    assert worker.call(lambda engine: engine.idle)
    worker.close()


def test_a_paused_task_runs_only_in_steps_of_other_tasks():
    worker = worker_of("full")
    paused, ids = Prompt([1, 2, 3], 100, limit=2), [4, 5]
    worker.start(paused)
    until = time.monotonic() + PATIENCE_S
    while paused.wants_step and time.monotonic() < until:
        time.sleep(0.001)
    time.sleep(0.05)
    assert paused.n_steps == 2
    worker.run(Prompt(ids, 10))
    assert paused.n_steps > 2
    assert len(paused.answer()) > 3 + 8
    worker.stop(paused)
    worker.close()


def test_a_step_that_fails_ends_all_tasks_with_its_error_and_no_later_one(monkeypatch):
    worker = worker_of("full")
    tasks = [Prompt([i], 100, limit=0) for i in range(3)]
    for task in tasks:
        worker.start(task)
    with monkeypatch.context() as fault:
        fault.setattr(Engine, "_step", lambda engine: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            worker.run(Prompt([9], 3))
    for task in tasks:
        with pytest.raises(ZeroDivisionError):
            task.wait()
    task = Prompt([9], 3)
    worker.run(task)
    assert task.answer() == alone("full", [9], 3)
    worker.close()


def test_a_call_from_a_step_is_refused_and_does_not_wait_for_itself():
    worker, refused = worker_of("full"), []

    class Asking(Prompt):
        def collect(self, engine):
            with pytest.raises(RequestError) as caught:
                worker.call(lambda engine: None)
            refused.append(str(caught.value))
            return super().collect(engine)

    worker.run(Asking([1], 2))
    assert "from within a step" in refused[0]
    worker.close()


def test_after_close_every_use_is_refused():
    worker = worker_of("full")
    waiting = Prompt([1], 100, limit=0)
    worker.start(waiting)
    with ThreadPoolExecutor(3) as pool:
        for each in [pool.submit(worker.close) for _ in range(3)]:
            each.result(PATIENCE_S)
    for use_closed in (waiting.wait, lambda: worker.run(Prompt([1], 1)), lambda: worker.call(id)):
        with pytest.raises(RequestError, match="the model is closed"):
            use_closed()
    worker.stop(waiting)
    worker.cancel(waiting)
    assert not any(t.name == "zinc-engine" and t is worker._thread for t in threading.enumerate())
