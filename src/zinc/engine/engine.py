"""The engine: sequences in, tokens out, one ragged step at a time.

Each step asks the scheduler who runs, gives them blocks, runs the program and samples a token for
every sequence whose pending tokens are all in. Text, templates and HTTP are its clients' business.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Iterable
from collections.abc import Sequence as Seq
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import cast

from zinc.backends.api import Cache, DrawingProgram, Program
from zinc.core.errors import MemoryLimitError, QueueFullError, RequestError, UnsupportedError
from zinc.engine import loader
from zinc.engine.batch import make_next_step, make_step
from zinc.engine.checkpoints import LEAST_TOKENS, checkpoint_positions
from zinc.engine.constraint import Constraint, Thinking, ThinkingTracker
from zinc.engine.flight import Flight, as_draws
from zinc.engine.preemption import Rates
from zinc.engine.readout import Readout
from zinc.engine.sampling import (
    Draw,
    Sampled,
    Sampler,
    SamplingParams,
    check_peak,
    sample_rows,
)
from zinc.engine.scheduler import Budget, Demand, Schedule, schedule
from zinc.engine.sequence import Sequence
from zinc.engine.sharing import held_back
from zinc.kv import BlockAllocator, CachePool, Holding
from zinc.kv.disk import DiskCache
from zinc.ops.graph import FloatArray, RecurrentState
from zinc.ops.step import Step

# Prompt tokens of a step that has streams in it: what a stream may stall for.
PROMPT_TOKENS_BESIDE_STREAMS = 128

# A sequence that waits for no more is a stream: the token that was drawn, and some that follow it
# by dictation. They run in little more time than one.
STREAM_TOKENS = 8


class Engine:
    """Runs requests on a program. Not thread-safe: one thread submits and steps.

    context: bounds prompt plus answer of a request, in tokens. prefix_cache: keep what was run for
    requests that begin alike, in at most `cache_bytes` of the cache (None: what is not in use).
    swap_bytes: for copies of sequences that make room for others; what does not fit, or takes
    longer to copy, is run again. max_waiting: how many requests may wait beside those that run;
    None sets no bound. extended: the program of sequences that are longer than `plain_context`
    tokens. One that outgrows it is run again from its beginning, since its cached keys are rotated
    with the plain frequencies. hidden: makes the program, on the same cache, whose output are the
    rows behind the final norm; of extended sequences, or of others.
    """

    def __init__(
        self,
        program: Program,
        cache: Cache,
        n_vocab: int,
        context: int,
        *,
        prefix_cache: bool = True,
        cache_bytes: int | None = None,
        swap_bytes: int = 0,
        max_waiting: int | None = None,
        prompt_tokens_beside_streams: int = PROMPT_TOKENS_BESIDE_STREAMS,
        hidden: Callable[[bool], Program] | None = None,
        extended: Program | None = None,
        plain_context: int = 0,
    ) -> None:
        self.program = program
        self.extended = extended
        self.plain_context = context if extended is None else plain_context
        self._hidden: dict[bool, Program] = {}
        self.n_vocab = n_vocab
        self.context = context
        self.swap_bytes = swap_bytes
        self.max_waiting = max_waiting
        self.prompt_tokens_beside_streams = prompt_tokens_beside_streams
        states, layout = program.plan.states, cache.layout
        recurrent = any(isinstance(s, RecurrentState) for s in states)
        self.max_sequences = min(64, program.plan.max_outputs)
        self.pool = CachePool(
            loader.cache_groups(states, layout),
            layout.block_tokens,
            layout.state_slots if recurrent else self.max_sequences,
            cache,
            chunk_tokens=program.plan.max_tokens,
            recurrent=recurrent,
            state_bytes=loader.state_bytes_per_sequence(states),
            prefix_cache=prefix_cache,
            limit_bytes=cache_bytes,
        )
        self._make_hidden = hidden
        self.disk: DiskCache | None = None
        self._rates = Rates()
        self._sequences: dict[int, Sequence] = {}
        self._flight: Flight | None = None
        self._ids = itertools.count()

    @property
    def idle(self) -> bool:
        """Whether a step has nothing to do: no requests, and nothing to write behind."""
        return not self._sequences and (self.disk is None or not self.disk.behind)

    def keep_on_disk(self, folder: Path, key: str, limit_bytes: int | None = None) -> None:
        """Finds again what the prefix cache had under `key`, and writes behind what it gains."""
        self.disk = DiskCache(folder, key, self.pool, limit_bytes)
        self.disk.load()

    def settle(self) -> None:
        """Has everything that the prefix cache keeps on disk, when it is kept there."""
        if self.disk is not None:
            self.disk.flush()

    def close(self) -> None:
        if self.disk is not None:
            self.disk.close()
            self.disk = None

    @property
    def allocators(self) -> list[BlockAllocator]:
        """Blocks of each group of layers."""
        return self.pool.allocators

    @property
    def n_waiting(self) -> int:
        return sum(1 for s in self._sequences.values() if s.holding is None)

    # -- requests -------------------------------------------------------------------------------

    def submit(
        self,
        ids: Seq[int],
        params: SamplingParams,
        end_tokens: Collection[int] = (),
        dry_breakers: Collection[Seq[int]] = (),
        *,
        client: str = "",
        priority: int = 0,
        constraint: Constraint | None = None,
        thinking: Thinking | None = None,
        checkpoints: Collection[int] = (),
        readout: Readout | None = None,
    ) -> Sequence:
        """Queues a prompt.

        Requests of higher priority go first, and clients share what prompts get equally.
        checkpoints: positions in the prompt at which another one may depart from it, beside those
        that the engine finds itself. readout: what takes the rows of the prompt; after one of
        hidden states there is no answer. Raises RequestError when it cannot run, and QueueFullError
        when too many wait.
        """
        ids = list(ids)
        wanted = self._check(ids, params)
        if readout is not None and readout.hidden:
            if self._make_hidden is None:
                raise UnsupportedError("this engine has no hidden states to give", "")
            wanted = 0
        sampler = Sampler(
            params,
            self.n_vocab,
            end_tokens=end_tokens,
            dry_breakers=dry_breakers,
        )
        sampler.accept_prompt(ids)
        sequence = Sequence(
            id=next(self._ids),
            ids=ids,
            n_prompt=len(ids),
            max_tokens=wanted,
            sampler=sampler,
            end_tokens=frozenset(end_tokens),
            client=client,
            priority=priority,
            constraint=constraint,
            thinking=None if thinking is None else ThinkingTracker(thinking),
            readout=readout,
        )
        if self.pool.recurrent and self.pool.prefix_cache and sequence.is_reusable:
            sequence.marks = checkpoint_positions(ids, sequence.end_tokens, checkpoints)
        self._force(sequence)
        sequence.extended = len(sequence.ids) > self.plain_context
        sequence.key = b"" if sequence.is_read else sequence.key_to(len(sequence.ids))
        if sequence.finish_reason is None:
            self._sequences[sequence.id] = sequence
            if sequence.n_generated >= wanted and not sequence.is_read:
                self._finish(sequence, "length")
        return sequence

    def cancel(self, sequence: Sequence, reason: str = "cancelled") -> None:
        """Ends a sequence now and frees its blocks; nothing happens when it has ended."""
        if sequence.finish_reason is None:
            self._finish(sequence, reason)

    def _check(self, ids: Seq[int], params: SamplingParams) -> int:
        """How many tokens may be generated."""
        if not ids:
            raise RequestError(
                "the prompt is empty", "a model needs at least one token", "write something"
            )
        if not 0 <= min(ids) <= max(ids) < self.n_vocab:
            raise RequestError(
                "the prompt has a token id outside the vocabulary",
                f"ids lie between 0 and {self.n_vocab - 1}",
            )
        context = self.longest
        room = context - len(ids)
        shift = params.context_shift
        if shift is not None:
            self._check_shift(len(ids) if shift == -1 else shift, params)
        if room < (0 if params.max_tokens == 0 else 1):
            raise RequestError(
                "the prompt is too long",
                f"it has {len(ids)} tokens, and the context holds {context} with the answer",
                "shorten it, or load the model with a larger --context",
            )
        if self.max_waiting is not None and self.n_waiting >= self.max_waiting:
            n_running = len(self._sequences) - self.n_waiting
            raise QueueFullError(
                "the queue is full",
                f"{self.n_waiting} requests wait and {n_running} run",
                "try again later",
            )
        if params.max_tokens is None:
            return room
        return params.max_tokens if shift is not None else min(room, params.max_tokens)

    def _check_shift(self, n_kept: int, params: SamplingParams) -> None:
        most = self.longest // 2
        if params.max_tokens is None:
            raise RequestError(
                "context_shift needs max_tokens", "nothing else would end such an answer"
            )
        if n_kept > most:
            raise RequestError(
                f"context_shift cannot keep {n_kept} tokens",
                f"half of the context of {2 * most} has to be left for what comes later",
                "keep fewer, or load the model with a larger --context",
            )

    @cached_property
    def longest(self) -> int:
        """The most tokens that a sequence may have: the context, or what the cache holds of one."""
        pool = self.pool
        size = pool.block_tokens
        for n_blocks in range(pool.blocks(self.context), 0, -1):
            most = pool.most(n_blocks * size)
            if all(m <= g.n_blocks for m, g in zip(most, pool.groups, strict=True)):
                return min(self.context, n_blocks * size)
        return 0

    # -- a step ---------------------------------------------------------------------------------

    def step(self) -> list[Sequence]:
        """Runs one batch. Returns the sequences that gained a token, in order of arrival.

        A sequence that fails ends with finish_reason "error" and its `error`; the others go on.
        """
        gained = self._step()
        if self.disk is not None:
            self.disk.collect()
            if not self._sequences:
                self.disk.wait()  # whoever calls until the engine is idle must not spin
        return gained

    def _step(self) -> list[Sequence]:
        flight, self._flight = self._flight, None
        if flight is not None and flight.live:
            return self._land(flight)
        for s in self._sequences.values():
            if len(s.ids) > self.longest:
                self._shift(s)
            if not s.extended and len(s.ids) > self.plain_context:
                self._extend(s)
            if s.holding is not None:
                self.pool.trim(s.holding, s.n_run)
        plan = self._schedule()
        for i in plan.preempted:
            self._preempt(self._sequences[i])
        n_sequences = len(self._sequences)
        running, counts = self._seat(plan.tokens)
        if not running:
            if not plan.preempted and 0 < len(self._sequences) == n_sequences:
                self._fail_stuck()
            return []
        gained: list[Sequence] = []
        for extended in (False, True):
            part = [s for s in running if s.extended is extended]
            gained += self._run([s for s in part if not s.is_read], counts)
            read = [s for s in part if s.is_read]
            self._embed([s for s in read if not s.is_reusable], counts)
            for s in read:
                if s.is_reusable:
                    gained += self._score(s, counts[s.id])
        return sorted(gained, key=lambda s: s.id)

    def _schedule(self) -> Schedule:
        """Who runs, and who makes room for that."""
        budget, sequences = self._budget(), self._sequences.values()
        n_waiting = self.n_waiting
        pending = [s.pending for s in sequences]
        room = min(budget.tokens, *budget.blocks)  # a token may need a block
        if n_waiting == 0 and max(pending, default=0) <= STREAM_TOKENS and sum(pending) <= room:
            # Streams alone, as most steps are.
            return Schedule(dict(zip(self._sequences, pending, strict=True)))
        # What preemption would free is counted only when somebody may be preempted.
        lavish = self.program.plan.max_tokens // budget.block_tokens + 2 * len(sequences)
        tight = min(budget.blocks) <= lavish or n_waiting > 0
        back = self._held_back()
        demands = [self._demand(s, tight) for s in sequences if s.id not in back]
        return schedule(demands, budget)

    def _program(self, s: Sequence) -> Program:
        """What runs a sequence of its length."""
        return self.extended if s.extended and self.extended is not None else self.program

    def _run(self, running: list[Sequence], counts: dict[int, int]) -> list[Sequence]:
        """Runs tokens of sequences in one batch and samples for those that are complete then."""
        if not running:
            return []
        program = self._program(running[0])
        complete = [s for s in running if counts[s.id] == s.pending]
        begin = time.perf_counter()
        n_tokens = sum(counts[s.id] for s in running)
        draws: list[Draw | None] = []
        if program.plan.drawn is not None:
            draws = [None if s.is_constrained else s.sampler.draw() for s in complete]
        try:
            step = self._batch(running, counts)
            if any(draws):
                drawing = cast(DrawingProgram, program)
                drawn = drawing.draw(replace(step, draws=as_draws(draws)))
            else:
                logits = program.step(step)
        except Exception as error:
            for s in running:
                self._fail(s, error)
            return []
        for s in running:
            self._ran(s, counts[s.id])
        if any(draws):
            on_device = [draw is not None for draw in draws]
            return self._land(Flight(drawing, drawn, running, complete, on_device, begin, n_tokens))
        self._time_prompts(n_tokens, len(running), begin)
        self._sample(complete, logits)
        return complete

    def _time_prompts(self, n_tokens: int, n_running: int, begin: float) -> None:
        """Learns from a step that was mostly prompts how fast they run."""
        if n_tokens > STREAM_TOKENS * n_running:
            self._rates.ran(n_tokens, time.perf_counter() - begin)

    def _land(self, flight: Flight) -> list[Sequence]:
        """Queues the step behind a flight, then gives out the tokens of the flight."""
        self._flight = self._follow(flight)
        try:
            tokens = flight.drawn.tokens()
            logits = None if all(flight.on_device) else flight.drawn.logits()
        except Exception as error:
            self._flight = None
            for s in flight.running:
                if s.finish_reason is None:
                    self._fail(s, error)
            return []
        self._time_prompts(flight.n_tokens, len(flight.running), flight.begun)
        gained = flight.live
        if logits is not None:
            by_host = [not drawn for drawn in flight.on_device]
            self._sample(
                [s for s, b in zip(flight.complete, by_host, strict=True) if b],
                logits[by_host],
            )
        for s, drawn, (token, peak) in zip(
            flight.complete, flight.on_device, tokens.tolist(), strict=True
        ):
            if not drawn or s.finish_reason is not None:
                continue
            try:
                check_peak(peak)
            except Exception as error:
                self._fail(s, error)
            else:
                self._gain(s, Sampled(int(token)))
        return gained

    def _follow(self, flight: Flight) -> Flight | None:
        """Queues the next token of the sequences of a flight, whose tokens nobody knows yet.

        Not when anybody else is there to be scheduled, or what comes next depends on the token.
        """
        live = flight.live
        rows = [
            row
            for row, s in enumerate(flight.complete)
            if s.finish_reason is None and s.n_generated + 1 < s.max_tokens
        ]
        going = [flight.complete[row] for row in rows]
        if not going or len(self._sequences) > len(live) or not all(flight.on_device):
            return None
        if not all(self._is_foreseeable(s) for s in going):
            return None
        try:
            for s in going:
                assert s.holding is not None
                self.pool.trim(s.holding, s.n_run)
                self.pool.grow(s.holding, s.n_run + 1)
        except MemoryLimitError:
            return None  # who makes room is the scheduler's to say
        begin = time.perf_counter()
        draws = [s.sampler.draw() for s in going]
        step = make_next_step(going, rows, len(self.pool.groups))
        try:
            drawn = flight.program.draw(replace(step, draws=as_draws(draws)))
        except Exception as error:
            for s in going:
                self._fail(s, error)
            return None
        for s in going:
            s.n_run += 1
        on_device = [True] * len(going)
        return Flight(flight.program, drawn, going, going, on_device, begin, len(going))

    def _is_foreseeable(self, s: Sequence) -> bool:
        """Whether a sequence goes on after its next token as it does now, if that is no end."""
        n_tokens = len(s.ids) + 1
        fits = n_tokens <= self.longest and (s.extended or n_tokens <= self.plain_context)
        return fits and s.constraint is None and s.thinking is None

    def _embed(self, running: list[Sequence], counts: dict[int, int]) -> None:
        """Runs prompts up to the final norm, and ends those that are complete then."""
        if not running:
            return
        try:
            rows = self._hidden_program(running[0]).step(self._batch(running, counts, True))
            for s in running:
                assert s.readout is not None
                s.readout.read(s.ids, s.n_run, rows[: counts[s.id]])
                rows = rows[counts[s.id] :]
        except Exception as error:
            for s in running:
                self._fail(s, error)
            return
        for s in running:
            self._ran(s, counts[s.id])
            if not s.pending:
                self._finish(s, "length")

    def _score(self, s: Sequence, count: int) -> list[Sequence]:
        """Runs tokens of a prompt alone and reads the logits of all, as many as the program gives
        at a time; samples when it is complete then."""
        assert s.readout is not None
        try:
            program = self._program(s)
            while count > 0:
                n = min(count, program.plan.max_outputs)
                logits = program.step(self._batch([s], {s.id: n}, every_row=True))
                s.readout.read(s.ids[: s.n_prompt], s.n_run, logits)
                self._ran(s, n)
                count -= n
        except Exception as error:
            self._fail(s, error)
            return []
        if s.pending:
            return []
        if s.n_generated >= s.max_tokens:
            self._finish(s, "length")
            return []
        self._sample([s], logits[-1:])
        return [s]

    def _hidden_program(self, s: Sequence) -> Program:
        """What runs a sequence of its length up to the final norm; made when it is first used."""
        if s.extended not in self._hidden:
            assert self._make_hidden is not None
            self._hidden[s.extended] = self._make_hidden(s.extended)
        return self._hidden[s.extended]

    def _budget(self) -> Budget:
        return Budget(
            tokens=self.program.plan.max_tokens,
            prompt_tokens=self.prompt_tokens_beside_streams,
            sequences=self.max_sequences,
            blocks=self.pool.available,
            slots=self.pool.available_slots,
            block_tokens=self.pool.block_tokens,
        )

    def _demand(self, s: Sequence, tight: bool) -> Demand:
        pool = self.pool
        most = pool.most(len(s.ids))
        pins: tuple[int, ...] = ()
        frees: tuple[int, ...] = ()
        if s.holding is None:
            n_run, pins = self._prospect(s)
            n_table, held = n_run // pool.block_tokens, (0,) * len(most)
            if s.swapped is not None and n_run < s.swapped.n_tokens:
                n_run, n_table = s.swapped.n_tokens, s.swapped.n_table
                pins = held = s.swapped.n_blocks
        else:
            tables = s.holding.tables
            n_run, n_table = s.n_run, len(tables[0])
            held = tuple(len(t) - n for t, n in zip(tables, s.holding.n_trimmed, strict=True))
            frees = pool.sole(s.holding) if tight else (0,) * len(most)
        missing = pool.blocks(len(s.ids)) - n_table
        return Demand(
            id=s.id,
            pending=len(s.ids) - n_run,
            longest=s.longest_from(n_run),
            n_run=n_run,
            n_table=n_table,
            lacks=tuple(max(0, min(missing, m - h)) for m, h in zip(most, held, strict=True)),
            admitted=s.holding is not None,
            frees=frees,
            pins=pins,
            priority=s.priority,
            client=s.client,
        )

    def _held_back(self) -> set[int]:
        """Who waits for a prompt that begins alike and is being run."""
        pool = self.pool
        if not pool.prefix_cache or self.n_waiting == 0:
            return set()
        least = max(pool.block_tokens, LEAST_TOKENS if pool.recurrent else 0)
        return held_back(
            self._sequences.values(), lambda s: self._prospect(s)[0], least, pool.recurrent
        )

    def _prospect(self, s: Sequence) -> tuple[int, tuple[int, ...]]:
        """Tokens that a waiting sequence would begin with, and the idle blocks that takes."""
        generation = self.pool.generation
        if s.prospect is None or s.prospect[0] != generation:
            s.prospect = generation, self.pool.prospect(s.key, len(s.ids) - 1)
        return s.prospect[1].n_cached, s.prospect[1].pins

    def _seat(self, tokens: dict[int, int]) -> tuple[list[Sequence], dict[int, int]]:
        """Attaches the chosen ones and gives them blocks; drops those that memory fails.

        Those that the device fails end with an error.
        """
        running: list[Sequence] = []
        counts: dict[int, int] = {}
        chosen = [s for s in self._sequences.values() if s.id in tokens]
        for s in chosen:
            if s.holding is None:
                try:
                    self._attach(s)
                except MemoryLimitError:
                    continue
                except Exception as error:
                    self._fail(s, error)
                    continue
                if not s.started:
                    s.n_cached = min(s.n_run, s.n_prompt)
                    s.started = time.perf_counter()
        for s in chosen:
            if s.holding is None:
                continue
            count = min(tokens[s.id], s.longest_from(s.n_run))
            try:
                self.pool.grow(s.holding, s.n_run + count)
            except MemoryLimitError:
                continue
            running.append(s)
            counts[s.id] = count
        return running, counts

    def _attach(self, s: Sequence) -> None:
        """Gives a sequence the longest prefix that is cached, or what was copied of it.

        Raises MemoryLimitError, and then the sequence is as it was.
        """
        swapped = s.swapped
        if swapped is None or self._prospect(s)[0] >= swapped.n_tokens:
            s.holding, s.n_run = self.pool.attach(s.key, len(s.ids) - 1)
        else:
            begin = time.perf_counter()
            s.holding, s.n_run = self.pool.swap_in(swapped), swapped.n_tokens
            self._rates.copied(swapped.n_bytes, time.perf_counter() - begin)
            self.pool.commit(s.holding, s.key_to(s.n_run))
        s.swapped = None

    def _batch(
        self, running: Seq[Sequence], counts: dict[int, int], every_row: bool = False
    ) -> Step:
        return make_step(running, counts, len(self.pool.groups), every_row)

    # -- what a step changed --------------------------------------------------------------------

    def _ran(self, s: Sequence, count: int) -> None:
        s.n_run += count
        assert s.holding is not None
        if s.is_read:
            s.n_read = min(s.n_run, s.n_prompt)
        if s.is_reusable:
            self._offer(s, count)
        if not s.pending:
            s.key = b""
            s.shares.clear()

    def _offer(self, s: Sequence, count: int) -> None:
        """Puts what was run where other prompts may find it, after a step of `count` tokens."""
        pool = self.pool
        assert s.holding is not None
        if s.n_run in s.marks:
            pool.checkpoint(s.holding, s.key_to(s.n_run))
        elif s.n_run - count < s.n_prompt <= s.n_run:
            pool.commit(s.holding, s.key_to(s.n_run))
        elif s.pending and not pool.recurrent:  # whole blocks, for those who come meanwhile
            pool.commit(s.holding, s.key_to(s.n_run // pool.block_tokens * pool.block_tokens))

    def _sample(self, complete: list[Sequence], logits: FloatArray) -> None:
        """Draws a token for each from its row of logits."""
        allowed = [s.constraint if s.is_constrained else None for s in complete]
        drawn = sample_rows([s.sampler for s in complete], logits, allowed)
        for s, sampled in zip(complete, drawn, strict=True):
            if isinstance(sampled, Exception):
                self._fail(s, sampled)
            else:
                self._gain(s, sampled)

    def _gain(self, s: Sequence, sampled: Sampled) -> None:
        """Appends a token that was drawn, and those that have to follow it."""
        s.first_token = s.first_token or time.perf_counter()
        try:
            self._take(s, sampled)
            self._force(s)
        except Exception as error:  # a constraint that cannot follow
            self._fail(s, error)
            return
        if s.finish_reason is None and s.n_generated >= s.max_tokens:
            self._finish(s, "length")

    def _take(self, s: Sequence, sampled: Sampled) -> None:
        """Appends a token of the answer, and ends it when it is complete then."""
        constraint = s.constraint if s.is_constrained else None
        self._append(s, sampled)
        if sampled.token in s.end_tokens and not s.sampler.params.ignore_eos:
            self._finish(s, "stop")
        elif constraint is not None:
            constraint.accept(sampled.token)
            if constraint.finished:
                self._finish(s, "stop")

    def _append(self, s: Sequence, sampled: Sampled) -> None:
        s.sampler.accept(sampled.token)
        s.sampled.append(sampled)
        s.ids.append(sampled.token)
        if s.thinking is not None:
            s.thinking.accept(sampled.token)

    def _force(self, s: Sequence) -> None:
        """Puts in what has to come next: the marker that begins a reasoning or ends one that has
        used up its budget, and what a constraint dictates. Nobody draws these tokens."""
        while s.finish_reason is None and (room := s.max_tokens - s.n_generated) > 0:
            if s.thinking is not None and (marker := s.thinking.forced()):
                for token in marker[:room]:
                    self._append(s, Sampled(token))
            elif dictated := self._dictated(s):
                for token in dictated[:room]:
                    self._take(s, Sampled(token))
            else:
                return

    def _dictated(self, s: Sequence) -> Seq[int]:
        """Tokens that need not be drawn. Each is, when its logprob or those of the prompt are to
        be told: they come from its row."""
        if s.constraint is None or not s.is_constrained or s.is_read:
            return ()
        return s.constraint.forced() if s.sampler.params.logprobs is None else ()

    def _preempt(self, s: Sequence) -> None:
        """Takes the cache away from a sequence, which will go on from a copy or be run again."""
        assert s.holding is not None
        if s.is_reusable and not s.is_read:
            self._swap_out(s, s.holding)
        self._put_back(s)
        s.n_preempted += 1

    def _extend(self, s: Sequence) -> None:
        """Has a sequence that outgrew the plain context run again, as an extended one."""
        if s.holding is not None:
            self._put_back(s)
        s.extended = True
        self._begin_again(s)

    def _shift(self, s: Sequence) -> None:
        """Has a sequence that outgrew the context run again: its beginning, and half of the rest.

        Positions therefore never pass those the model was trained for, in any layer of any kind.
        """
        n_kept = s.sampler.params.context_shift
        assert n_kept is not None
        n_kept = s.n_prompt if n_kept == -1 else n_kept
        n_later = (self.longest - n_kept) // 2
        if s.holding is not None:
            self._put_back(s)
        s.n_shifted += len(s.ids) - n_kept - n_later
        s.ids = [*s.ids[:n_kept], *s.ids[-n_later:]]
        s.marks, s.extended = [], False
        self._begin_again(s)

    def _begin_again(self, s: Sequence) -> None:
        """Forgets what the cache has of a sequence that waits: its text has changed."""
        s.prospect, s.swapped, s.key = None, None, b""
        s.key = s.key_to(len(s.ids))
        s.shares.clear()

    def _put_back(self, s: Sequence) -> None:
        assert s.holding is not None
        self.pool.release(s.holding, s.key_to(s.n_run) if s.is_reusable else None)
        s.holding, s.n_run = None, 0
        if s.readout is not None and s.is_read:
            s.readout.reset()
            s.n_read = 0
        s.key = b"" if s.is_read else s.key_to(len(s.ids))

    def _swap_out(self, s: Sequence, holding: Holding) -> None:
        """Copies what a sequence holds, if that is cheaper than to run it again and has room."""
        n_bytes = self.pool.holding_bytes(holding)
        taken = sum(o.swapped.n_bytes for o in self._sequences.values() if o.swapped is not None)
        if taken + n_bytes > self.swap_bytes or not self._rates.swap_pays(s.n_run, n_bytes):
            return
        begin = time.perf_counter()
        s.swapped = self.pool.swap_out(holding, s.n_run)
        self._rates.copied(n_bytes, time.perf_counter() - begin)

    def _fail(self, s: Sequence, error: Exception) -> None:
        s.error = error
        self._finish(s, "error")

    def _fail_stuck(self) -> None:
        """Nobody can run: that is so only when something else holds the memory."""
        waiting: Iterable[Sequence] = self._sequences.values()
        first = max(waiting, key=lambda s: (s.priority, -s.id))
        error = MemoryLimitError(
            "the request cannot run",
            "cache blocks or state slots that it needs are held outside of the engine",
            "try again when other work on this model has ended",
        )
        self._fail(first, error)

    def _finish(self, s: Sequence, reason: str) -> None:
        s.finish_reason = reason
        s.ended = time.perf_counter()
        if s.holding is not None:
            keep = s.key_to(s.n_run) if reason != "error" and s.is_reusable else None
            self.pool.release(s.holding, keep)
            s.holding = None
        s.swapped = None
        self._sequences.pop(s.id, None)
