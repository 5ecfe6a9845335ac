"""The runner: connects the event loop with the engine of a model.

The engine is not thread-safe. Its own thread (`zinc.engine.worker`) submits, steps and cancels
sequences. The event loop sends commands to that thread and gets the new tokens of all requests
after each step. Tokens are decoded and split into text, reasoning and calls in the engine's thread,
so that a stop string ends its sequence before the next step.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Any

from zinc.chat.events import CallEnd, Event
from zinc.core.dataclass import dataclass
from zinc.core.errors import (
    MemoryLimitError,
    QueueFullError,
    RequestError,
    UnsupportedError,
    ZincError,
)
from zinc.engine.adapters import AdapterUse
from zinc.engine.engine import Engine
from zinc.engine.readout import NO_ANSWER, Pooled
from zinc.engine.request import Request
from zinc.engine.sampling import SamplingParams
from zinc.engine.sequence import Sequence as EngineSequence
from zinc.engine.sequence import Timings
from zinc.engine.worker import Task
from zinc.llm import LLM
from zinc.server.errors import ApiError, from_exception, invalid
from zinc.server.runtime.job import ANYBODY, Client, End, Item, Job, Progress, Token
from zinc.server.runtime.reader import TokenReader
from zinc.server.runtime.reading import Reading

log = logging.getLogger("zinc.server")

_MOVING_AVERAGE = 0.1  # weight of the latest job in the mean duration


class Generation:
    """A submitted job in the event loop: an async iterator of `Token`s and then one `End`.

    `Progress` items come before the tokens if the job asks for them. Iterating raises ApiError if
    the job fails.
    """

    def __init__(
        self, runner: Runner, job: Job, client: Client, adapters: AdapterUse | None = None
    ) -> None:
        self.job = job
        self.client = client
        self.adapters = adapters
        self.submitted = time.perf_counter()
        self.n_prompt = len(job.ids)
        self.n_generated = 0
        self.running = False
        self._runner = runner
        self._items: list[Item] = []
        self._arrival: asyncio.Future[None] | None = None  # of items that are waited for

    async def __aiter__(self) -> AsyncGenerator[Token | Progress | End]:
        try:
            while True:
                if not self._items:
                    self._arrival = asyncio.get_running_loop().create_future()
                    await self._arrival
                items, self._items = self._items, []
                for item in items:
                    if isinstance(item, ApiError):
                        raise item
                    yield item
                    if isinstance(item, End):
                        return
        finally:
            self.cancel()

    def cancel(self) -> None:
        """End the job before the engine's next step, unless it has ended already."""
        self._runner.cancel(self)

    def deliver(self, items: list[Item]) -> None:
        """Add `items` for the iterator. The runner calls this in the event loop."""
        self._items += items
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)


@dataclass(slots=True, eq=False)
class _Active:
    """A submitted job in the engine's thread.

    taken: tokens already delivered. reported: prompt tokens in the last `Progress`.
    """

    generation: Generation
    sequence: EngineSequence
    reader: TokenReader
    deadline: float | None
    taken: int = 0
    reported: int | None = None


@dataclass(frozen=True, slots=True)
class Live:
    """A job or a text that runs or waits, for /slots."""

    client: Client
    params: SamplingParams
    n_prompt: int
    n_generated: int
    running: bool


@dataclass(slots=True)
class RunnerStats:
    """Statistics of a runner, for /metrics and /slots."""

    running: int = 0
    waiting: int = 0
    blocks_used: int = 0
    blocks_cached: int = 0
    blocks: int = 0
    cached_bytes: int = 0
    cache_lookups: int = 0
    cache_hits: int = 0
    fetched_tokens: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Observer:
    """Callbacks for statistics of finished jobs; called in the event loop.

    first_token: seconds to the first token. between_tokens: mean seconds between tokens. ended: the
    reason, the timings, and how many texts they are those of.
    """

    first_token: Callable[[float], None] = lambda seconds: None
    between_tokens: Callable[[float], None] = lambda seconds: None
    ended: Callable[[str, Timings, int], None] = lambda reason, timings, count: None


@dataclass(eq=False)
class Runner:
    """Queue of jobs for the engine of `llm`. Construct and call it in the event loop.

    max_waiting: jobs that may wait besides those that the engine can run at once.
    """

    llm: LLM
    max_waiting: int
    observer: Observer = field(default_factory=Observer)

    def __post_init__(self) -> None:
        self.stats = RunnerStats(blocks=sum(a.n_blocks for a in self.llm.engine.pool.allocators))
        self._generations: dict[Generation, None] = {}
        self._readings: dict[Reading, None] = {}
        self._loop = asyncio.get_running_loop()
        self._active: dict[Generation, _Active] = {}
        self._active_readings: dict[Reading, None] = {}
        self._mean_seconds = 1.0
        self._closing: ApiError | None = None
        self._task = _Jobs(self)
        self._worker = self.llm.worker
        self._worker.attach(self._task)

    # -- called in the event loop -----------------------------------------------------------------

    @property
    def capacity(self) -> int:
        """The number of jobs that can run or wait."""
        return self.llm.engine.max_sequences + self.max_waiting

    @property
    def n_live(self) -> int:
        """The number of jobs and texts that run or wait."""
        return len(self._generations) + sum(len(each.texts) for each in self._readings)

    @property
    def live(self) -> list[Live]:
        """The jobs and texts that run or wait."""
        jobs = [
            Live(each.client, each.job.params, each.n_prompt, each.n_generated, each.running)
            for each in self._generations
        ]
        return jobs + [
            Live(each.client, NO_ANSWER, len(ids), 0, each.is_running(i))
            for each in self._readings
            for i, ids in enumerate(each.texts)
        ]

    @property
    def room(self) -> int:
        """The number of jobs that can be submitted now."""
        return self.capacity - self.n_live

    def submit(self, jobs: Sequence[Job], client: Client = ANYBODY) -> list[Generation]:
        """Queue the jobs of one request, all or none.

        Raises ApiError: 400 for adapters that are not loaded, 429 if the queue is full, 503 if the
        model is being unloaded.
        """
        self.check_room(len(jobs))
        adapters = self._adapter_use(client)
        generations = [Generation(self, job, client, adapters) for job in jobs]
        self._generations.update(dict.fromkeys(generations))
        # One call for all jobs, so that the engine's next step has them all.
        self._worker.post(self._task, partial(self._start_all, generations))
        return generations

    def read(
        self,
        texts: Sequence[Sequence[int]],
        pools: Sequence[Pooled],
        priority: int = 0,
        client: Client = ANYBODY,
    ) -> Reading:
        """Queue texts, all or none; `pools[i]` takes the rows of `texts[i]`. Raises as `submit`."""
        self.check_room(len(texts))
        reading = Reading(texts, pools, priority, client, self._adapter_use(client))
        self._readings[reading] = None
        self._worker.post(self._task, partial(self._start_reading, reading))
        return reading

    def _adapter_use(self, client: Client) -> AdapterUse | None:
        """Return the adapters of a client's requests. Raises ApiError if they are not loaded."""
        try:
            return self.llm.model.adapter_use(client.lora)
        except RequestError as error:
            raise invalid("lora", error.what, error.why) from None

    def check_room(self, n_jobs: int) -> None:
        """Raise the ApiError that `submit` would raise for `n_jobs` jobs.

        Called before work is spent on building the jobs. Safe in any thread.
        """
        if self._closing is not None:
            raise self._closing
        if n_jobs > self.capacity:
            raise ApiError(
                400,
                f"the request asks for {n_jobs} answers",
                f"this server runs or queues {self.capacity}",
                "ask for fewer at a time",
            )
        if n_jobs > self.room:
            raise ApiError(
                429,
                "the server is busy",
                f"{self.n_live} answers are running or waiting",
                "try again later",
                code="queue_full",
                headers={"Retry-After": str(self._retry_after_s())},
            )

    def cancel(self, generation: Generation) -> None:
        """End a job before the engine's next step, unless it has ended already."""
        if self._generations.pop(generation, "ended") is None:
            self._worker.post(self._task, lambda: self._cancel(generation))

    def cancel_reading(self, reading: Reading) -> None:
        """End texts before the engine's next step, unless they have ended already."""
        if self._readings.pop(reading, "ended") is None:
            self._worker.post(self._task, lambda: self._cancel_reading(reading))

    def fail_all(self, error: ApiError) -> None:
        """End every job with `error`, and refuse new ones with it."""
        self._closing = error
        self._worker.post(self._task, lambda: self._fail(error))

    async def close(self) -> None:
        """Detach from the engine. Jobs that still run end with an error."""
        self.fail_all(self._closing or ApiError(503, "the model is being unloaded"))
        await asyncio.to_thread(self._worker.stop, self._task)

    def _retry_after_s(self) -> int:
        ahead = self.n_live / max(1, self.llm.engine.max_sequences)
        return max(1, min(60, round(self._mean_seconds * ahead)))

    def _delivered(self, batch: list[tuple[Generation, list[Item]]]) -> None:
        now = time.perf_counter()
        for generation, items in batch:
            for item in items:
                if isinstance(item, Token):
                    generation.n_generated += 1
                elif isinstance(item, End):
                    self._observe(generation, item.reason, item.timings, now)
            if isinstance(items[-1], End | ApiError):
                self._generations.pop(generation, None)
            generation.deliver(items)

    def _delivered_reading(self, reading: Reading, result: Timings | ApiError) -> None:
        self._readings.pop(reading, None)
        if isinstance(result, Timings):
            self._count(
                "length", result, reading.submitted, time.perf_counter(), len(reading.texts)
            )
        reading.deliver(result)

    def _count(self, reason: str, t: Timings, submitted: float, now: float, count: int = 1) -> None:
        """Add the timings `t` of `count` jobs that ended together to the statistics."""
        # The weight of `count` updates of the moving average with the same value.
        weight = 1 - (1 - _MOVING_AVERAGE) ** count
        self._mean_seconds += weight * (now - submitted - self._mean_seconds)
        self.stats.prompt_tokens += t.prompt_tokens
        self.stats.generated_tokens += t.generated_tokens
        self.observer.ended(reason, t, count)

    def _observe(self, generation: Generation, reason: str, t: Timings, now: float) -> None:
        self._count(reason, t, generation.submitted, now)
        if t.generated_tokens:
            self.observer.first_token(t.first_token_seconds)
        if t.generated_tokens > 1:
            self.observer.between_tokens(t.generate_seconds / (t.generated_tokens - 1))

    # -- called in the engine's thread -------------------------------------------------------------

    def _start_all(self, generations: Sequence[Generation]) -> None:
        for generation in generations:
            self._start(generation)

    def _start(self, generation: Generation) -> None:
        job = generation.job
        try:
            reader = job.reader()
            sequence = self.llm.engine.submit(
                Request(
                    job.ids,
                    job.params,
                    end_tokens=self.llm.tokenizer.eog_ids,
                    dry_breakers=job.dry_breakers,
                    client=generation.client.name,
                    namespace=generation.client.namespace,
                    priority=job.priority,
                    constraint=job.constraint,
                    thinking=job.thinking,
                    readout=job.readout,
                    prediction=job.prediction,
                    adapters=generation.adapters,
                )
            )
        except Exception as error:
            self._send([(generation, [_sequence_error(error)])])
            return
        deadline = None if job.deadline_s is None else generation.submitted + job.deadline_s
        self._active[generation] = _Active(generation, sequence, reader, deadline)
        if sequence.finish_reason is not None:  # the job asks for no tokens
            self._collect()

    def _start_reading(self, reading: Reading) -> None:
        try:
            reading.submit(self.llm.engine)
        except Exception as error:
            self._end_reading(reading, error)
        else:
            self._active_readings[reading] = None

    def _end_reading(self, reading: Reading, result: Timings | Exception) -> None:
        """Send the result of a reading to the event loop; after an error, end its other texts."""
        if isinstance(result, Timings):
            self._call_loop(self._delivered_reading, reading, result)
        else:
            self._call_loop(self._delivered_reading, reading, _sequence_error(result))
            reading.cancel(self.llm.engine)

    def _cancel_reading(self, reading: Reading) -> None:
        if self._active_readings.pop(reading, "ended") is None:
            reading.cancel(self.llm.engine)
            self._measure()

    def _cancel(self, generation: Generation) -> None:
        active = self._active.pop(generation, None)
        if active is not None:
            self.llm.engine.cancel(active.sequence)
            self._measure()

    def _fail(self, error: ApiError) -> None:
        active, self._active = self._active, {}
        readings, self._active_readings = self._active_readings, {}
        self._send([(generation, [error]) for generation in active])
        for reading in readings:
            self._call_loop(self._delivered_reading, reading, error)
        cancels = [partial(self.llm.engine.cancel, each.sequence) for each in active.values()]
        for cancel in (*cancels, *(partial(each.cancel, self.llm.engine) for each in readings)):
            try:
                cancel()
            except Exception:  # a bug; the client already has an error
                log.exception("a request could not be cancelled")
        self._measure()

    def _collect(self) -> None:
        """Turn the tokens of the last step into items, and send them to the event loop."""
        batch: list[tuple[Generation, list[Item]]] = []
        now = time.perf_counter()
        for active in list(self._active.values()):
            try:
                items = self._items(active, now)
            except Exception:  # a bug in a reader must only fail its own request
                log.exception("the answer of a request could not be read")
                self.llm.engine.cancel(active.sequence)
                items = [ApiError(500, "the answer could not be read", code="internal_error")]
            if items:
                batch.append((active.generation, items))
                if isinstance(items[-1], End | ApiError):
                    del self._active[active.generation]
        results = [(reading, reading.result()) for reading in self._active_readings]
        ended = [(reading, result) for reading, result in results if result is not None]
        for reading, _ in ended:
            del self._active_readings[reading]
        self.stats.steps += 1
        self._measure()
        self._send(batch)
        for reading, result in ended:
            self._end_reading(reading, result)

    def _items(self, active: _Active, now: float) -> list[Item]:
        """Return the new items of a job, and end it if a stop string or a limit was reached."""
        sequence, reader, engine = active.sequence, active.reader, self.llm.engine
        active.generation.running = sequence.is_running
        telemetry = active.generation.job.telemetry
        items: list[Item] = [*_progress(active)] if telemetry.progress else []
        timings = sequence.timings() if telemetry.timings else None
        ends = () if sequence.request.params.ignore_eos else sequence.end_tokens
        for n_taken, sampled in enumerate(sequence.sampled[active.taken :], active.taken + 1):
            if sampled.token in ends:
                break
            thinking = reader.is_thinking
            events = reader.push(sampled.token)
            items.append(Token(sampled, events, thinking or reader.is_thinking, timings))
            called = active.generation.job.one_call and any(map(_is_whole_call, events))
            if reader.stopped is not None or called:
                engine.cancel(sequence, "stop", n_taken)
                break
        active.taken = len(sequence.sampled)
        if active.deadline is not None and now >= active.deadline:
            engine.cancel(sequence, "length")
        if sequence.error is not None:
            items.append(_sequence_error(sequence.error))
        elif sequence.finish_reason is not None:
            rest = reader.finish()
            reason = "stop" if reader.stopped is not None else sequence.finish_reason
            items.append(End(reason, rest, reader.stopped, sequence.timings()))
        return items

    def _measure(self) -> None:
        stats, pool = self.stats, self.llm.engine.pool
        jobs, readings = self._active.values(), self._active_readings
        stats.running = sum(1 for a in jobs if a.sequence.is_running)
        stats.running += sum(each.n_running for each in readings)
        n_active = len(jobs) + sum(len(each.texts) for each in readings)
        stats.waiting = n_active - stats.running
        stats.blocks_cached = sum(a.n_idle for a in pool.allocators)
        stats.blocks_used = sum(a.n_held for a in pool.allocators)
        stats.cached_bytes = pool.cached_bytes
        stats.cache_lookups, stats.cache_hits = pool.stats.lookups, pool.stats.hits
        stats.fetched_tokens = pool.stats.fetched_tokens

    def _send(self, batch: list[tuple[Generation, list[Item]]]) -> None:
        if batch:
            self._call_loop(self._delivered, batch)

    def _call_loop(self, work: Callable[..., None], *args: Any) -> None:
        """Have the event loop call `work`."""
        try:
            self._loop.call_soon_threadsafe(work, *args)
        except RuntimeError:  # the loop is closed
            log.debug("results came after the event loop had ended")


class _Jobs(Task):
    """The jobs of a runner as one task of the engine's worker thread."""

    def __init__(self, runner: Runner) -> None:
        super().__init__()
        self._runner, self._engine = runner, runner.llm.engine

    @property
    def wants_step(self) -> bool:
        runner = self._runner
        is_active = bool(runner._active or runner._active_readings)
        return is_active or self._engine.has_pending_writes

    def collect(self, engine: Engine) -> bool:
        self._runner._collect()
        return False

    def fail(self, error: BaseException) -> bool:
        """Fail the running jobs after a bug or a library's panic; later jobs can run."""
        self._runner._fail(_sequence_error(error))
        return False


def _progress(active: _Active) -> Iterator[Progress]:
    """Yield the progress of a prompt after a step: at its start, and when more has been run."""
    s = active.sequence
    if not s.clock.started:
        return
    timings = replace(s.timings(), generated_tokens=0, generate_seconds=0.0)
    if active.reported is None:
        active.reported = s.n_cached
        yield Progress(s.n_prompt, replace(timings, prompt_tokens=s.n_cached, prompt_seconds=0.0))
    n_run = min(s.n_run, s.n_prompt)
    if n_run > active.reported:
        active.reported = n_run
        yield Progress(s.n_prompt, replace(timings, prompt_tokens=n_run))


def _is_whole_call(event: Event) -> bool:
    return isinstance(event, CallEnd) and event.complete


def _sequence_error(error: BaseException) -> ApiError:
    """Return the error for the client of a sequence that failed with `error`."""
    match error:
        case ApiError():
            return error
        case QueueFullError():
            return ApiError(429, error.what, error.why, error.hint, headers={"Retry-After": "5"})
        case RequestError() | UnsupportedError() | MemoryLimitError():
            return from_exception(error)
        case _:
            log.error("a sequence failed", exc_info=error)
            if isinstance(error, ZincError):
                return ApiError(500, error.what, error.why, error.hint, code="internal_error")
            return from_exception(error)
