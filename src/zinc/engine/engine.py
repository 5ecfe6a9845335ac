"""The engine: requests in, tokens out, one ragged step at a time.

Each step asks the scheduler which sequences run, gives them cache blocks, runs the program, and
samples a token for every sequence whose tokens have all run. It knows token ids only.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING

from zinc.backends.api import Cache, Program
from zinc.core.errors import MemoryLimitError, QueueFullError, UnsupportedError
from zinc.engine.admission import STREAM_TOKENS, next_schedule
from zinc.engine.batch import NO_DRAFTS, make_step
from zinc.engine.cache_layout import cache_groups, state_bytes_per_sequence
from zinc.engine.cache_manager import CacheManager
from zinc.engine.checkpoints import checkpoint_positions
from zinc.engine.limits import Limits, check_generates
from zinc.engine.model_runner import ModelRunner, PrepareProgram
from zinc.engine.readout import NO_ANSWER, ReadoutKind
from zinc.engine.request import Request
from zinc.engine.sampling import Sampled, Sampler, sample_rows
from zinc.engine.scheduler import MAX_SEQUENCES
from zinc.engine.sequence import Sequence
from zinc.engine.speculative.draft_scheduler import DraftScheduler
from zinc.engine.speculative.speculation import Speculation
from zinc.engine.step_in_flight import StepInFlight
from zinc.engine.texts import first_texts, make_text_step
from zinc.kv import BlockAllocator, CachePool
from zinc.models.parts.spec import ModelKind
from zinc.ops.values import RecurrentState, State

if TYPE_CHECKING:
    from zinc.kv.disk import DiskCache
    from zinc.kv.store import Store

# Prompt tokens of a step that also decodes, which bounds how long decoding stalls.
PROMPT_TOKENS_BESIDE_STREAMS = 128


class Engine:
    """Inference engine of one model. Not thread-safe: see `zinc.engine.worker`.

    Programs, all of them on `cache`:

        program   runs sequences of at most `plain_context` tokens.
        extended  runs longer sequences. A sequence that outgrows the plain context is recomputed,
                  because its cached keys are rotated with the plain frequencies.
        adapted   run steps that use adapters: one program for plain, one for longer sequences.
        prepare   returns the program for readouts of a kind.

    Limits:

        context       tokens of prompt and answer together.
        cache_bytes   of the prefix cache; None for all cache memory that running sequences leave.
        swap_bytes    host memory to which preempted sequences are swapped. A sequence that does not
                      fit, or takes longer to swap than to recompute, is recomputed.
        max_waiting   requests that may wait; None for no limit.
        prompt_tokens_beside_streams
                      prompt tokens of a step that also decodes.

    n_vocab: columns of the logits. prefix_cache: reuse cached prefixes of earlier requests.
    speculation: makes drafts that steps verify; the states of a recurrent model must support
    rollback. states: the states of all programs, by default those of `program`. kind: what requests
    may ask of the model. encoder: `program` yields hidden rows, and each step must hold whole
    texts.
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
        prepare: PrepareProgram | None = None,
        extended: Program | None = None,
        plain_context: int = 0,
        adapted: Seq[Program] = (),
        speculation: Speculation | None = None,
        states: tuple[State, ...] = (),
        kind: ModelKind = ModelKind.GENERATOR,
        encoder: bool = False,
    ) -> None:
        self.program = program
        self.plain_context = context if extended is None else plain_context
        self.n_vocab, self.kind, self.encoder = n_vocab, kind, encoder
        self.max_waiting = max_waiting
        self.prompt_tokens_beside_streams = prompt_tokens_beside_streams
        states, layout = states or program.plan.states, cache.layout
        recurrent = any(isinstance(s, RecurrentState) for s in states)
        self.max_sequences = min(MAX_SEQUENCES, program.plan.max_outputs)
        self.pool = CachePool(
            cache_groups(states, layout),
            layout.block_tokens,
            layout.state_slots if recurrent else self.max_sequences,
            cache,
            chunk_tokens=program.plan.max_tokens,
            recurrent=recurrent,
            state_bytes=state_bytes_per_sequence(states),
            prefix_cache=prefix_cache,
            limit_bytes=cache_bytes,
        )
        self.cache_manager = CacheManager(self.pool, swap_bytes)
        self.max_sequence_tokens = self.pool.max_tokens(context)
        self._limits = Limits(n_vocab, self.max_sequence_tokens)
        self._no_answer = Sampler(NO_ANSWER, n_vocab)  # creating one for each text takes too long
        self._draft_scheduler = (
            None
            if speculation is None
            else DraftScheduler(
                speculation, self.pool, program.plan, self.max_sequence_tokens, self.plain_context
            )
        )
        self._runner = ModelRunner(program, extended, prepare, len(self.pool.groups), adapted)
        self.disk: DiskCache | None = None
        self._sequences: dict[int, Sequence] = {}
        self._in_flight: StepInFlight | None = None
        self._ids = itertools.count()

    @property
    def speculation(self) -> Speculation | None:
        """The source of drafts, if steps verify any."""
        return None if self._draft_scheduler is None else self._draft_scheduler.speculation

    @property
    def idle(self) -> bool:
        """Whether a step would do nothing: there are no requests and no pending disk writes."""
        return not self._sequences and not self.has_pending_writes

    @property
    def has_pending_writes(self) -> bool:
        """Whether the prefix cache has pending disk writes."""
        return self.disk is not None and self.disk.has_pending

    def attach_store(
        self, store: Store, limit_bytes: int | None = None, *, fetch: bool = False
    ) -> None:
        """Load the prefix cache that is saved in a store, and save new prefixes there.

        fetch: other processes use the store too; fetch prefixes of prompts from it if that is
        faster than running them.
        """
        from zinc.kv.disk import DiskCache

        self.disk = DiskCache(store, self.pool, limit_bytes)
        self.disk.load()
        if fetch:
            self.cache_manager.fetch_from(self.disk)

    def flush(self) -> None:
        """Flush the prefix cache to disk, if it has a folder."""
        if self.disk is not None:
            self.disk.flush()

    def close(self) -> None:
        """Stop writing to disk, and fetching."""
        self.cache_manager.close()
        if self.disk is not None:
            self.disk.close()
            self.disk = None

    @property
    def allocators(self) -> list[BlockAllocator]:
        """The block allocator of each group of layers."""
        return self.pool.allocators

    @property
    def n_waiting(self) -> int:
        """The number of requests that do not run."""
        return sum(1 for s in self._sequences.values() if not s.is_running)

    # -- requests -------------------------------------------------------------------------------

    def submit(self, request: Request) -> Sequence:
        """Queue a request.

        Raises RequestError if it cannot run, QueueFullError if too many requests wait, and
        UnsupportedError if an encoder or a reranker is to generate or score text.
        """
        wanted = self._limits.answer_tokens(request.ids, request.params)
        self._check_queue()
        readout = request.readout
        if readout is None or readout.kind is not ReadoutKind.HIDDEN:
            check_generates(self.kind)
        if readout is not None and readout.kind is not ReadoutKind.PROMPT_LOGITS:
            if not self._runner.can_read(readout.kind):
                raise UnsupportedError(f"this engine has no program for {readout.kind}", "")
            wanted = 0
        sampler = self._no_answer if request.params is NO_ANSWER else None
        sequence = Sequence.of(next(self._ids), request, wanted, self.n_vocab, sampler)
        if self.pool.recurrent and self.pool.prefix_cache and sequence.is_reusable:
            sequence.cache.checkpoints = checkpoint_positions(
                sequence.ids, sequence.end_tokens, request.checkpoints
            )
        if reason := sequence.force():
            self._finish(sequence, reason)
        sequence.extended = len(sequence.ids) > self.plain_context
        sequence.renew_key()
        if sequence.finish_reason is None:
            self._sequences[sequence.id] = sequence
            if sequence.n_generated >= wanted and not sequence.is_read:
                self._finish(sequence, "length")
        return sequence

    def cancel(
        self, sequence: Sequence, reason: str = "cancelled", n_generated: int | None = None
    ) -> None:
        """End a sequence now and free its blocks, unless it has ended.

        n_generated: tokens that the answer keeps. A step may give it several, and a stop string may
        end before the last of them.
        """
        if n_generated is not None:
            sequence.cut(n_generated)
        if sequence.finish_reason is None:
            self._finish(sequence, reason)

    def _check_queue(self) -> None:
        if self.max_waiting is not None and self.n_waiting >= self.max_waiting:
            n_running = len(self._sequences) - self.n_waiting
            raise QueueFullError(
                "the queue is full",
                f"{self.n_waiting} requests wait and {n_running} run",
                "try again later",
            )

    # -- a step ---------------------------------------------------------------------------------

    def step(self) -> list[Sequence]:
        """Run one batch. Returns the sequences that gained a token, in order of arrival.

        A sequence that fails ends with finish_reason "error" and an `error`; the others continue.
        """
        try:
            gained = self._step()
        except BaseException:  # Ctrl-C or a bug: it is unknown which part of the step has run
            self._in_flight = None
            for s in self._sequences.values():
                self.cache_manager.requeue(s, keep=False)
            raise
        if self.disk is not None:
            self.disk.collect()
            if not self._sequences:
                self.disk.wait()  # a caller that steps until the engine is idle must not spin
        return gained

    def _step(self) -> list[Sequence]:
        if self.encoder:
            self._embed_texts()
            return []
        flight, self._in_flight = self._in_flight, None
        if flight is not None and flight.live:
            return self._queue_and_deliver(flight)
        for s in self._sequences.values():
            if len(s.ids) > self.max_sequence_tokens:
                self._shift(s)
            if not s.extended and len(s.ids) > self.plain_context:
                self._extend(s)
            self.cache_manager.trim(s)
        self.cache_manager.advance_fetches()
        plan = next_schedule(
            self._sequences,
            self.cache_manager,
            tokens=self.program.plan.max_tokens,
            prompt_tokens=self.prompt_tokens_beside_streams,
            max_sequences=self.max_sequences,
        )
        for i in plan.preempted:
            self._preempt(self._sequences[i])
        n_sequences = len(self._sequences)
        running, counts = self._allocate(plan.tokens)
        if not running:
            if self.cache_manager.is_fetching:
                self.cache_manager.wait_for_fetch()
            elif not plan.preempted and 0 < len(self._sequences) == n_sequences:
                self._fail_stuck()
            return []
        gained: list[Sequence] = []
        for extended in (False, True):
            part = [s for s in running if s.extended is extended]
            gained += self._run([s for s in part if not s.is_read], counts)
            self._embed([s for s in part if s.reads(ReadoutKind.HIDDEN)], counts)
            for s in part:
                if s.is_read and not s.reads(ReadoutKind.HIDDEN):
                    gained += self._score(s, counts[s.id])
        return sorted(gained, key=lambda s: s.id)

    # -- cache blocks ---------------------------------------------------------------------------

    def _allocate(self, tokens: dict[int, int]) -> tuple[list[Sequence], dict[int, int]]:
        """Attach the scheduled sequences and give them blocks for `tokens`, a count by id.

        Returns the sequences that got them, with their counts. A sequence waits if there is no
        memory for it, and ends with an error if the device fails.
        """
        running: list[Sequence] = []
        counts: dict[int, int] = {}
        chosen = [s for s in self._sequences.values() if s.id in tokens]
        for s in chosen:
            if not s.is_running:
                try:
                    self.cache_manager.attach(s)
                except MemoryLimitError:
                    continue
                except Exception as error:
                    self._fail(s, error)
        for s in chosen:
            if s.cache.allocation is None:
                continue
            count = min(tokens[s.id], s.tokens_to_checkpoint(s.n_run))
            try:
                self.pool.grow(s.cache.allocation, s.n_run + count)
            except MemoryLimitError:
                continue
            running.append(s)
            counts[s.id] = count
        return running, counts

    def _preempt(self, s: Sequence) -> None:
        others = (o.cache.swapped for o in self._sequences.values())
        try:
            self.cache_manager.preempt(s, sum(copy.n_bytes for copy in others if copy is not None))
        except Exception as error:
            self._fail(s, error)

    def _extend(self, s: Sequence) -> None:
        """Recompute a sequence that outgrew the plain context, with scaled RoPE frequencies."""
        self.cache_manager.requeue(s)
        s.extended = True
        self.cache_manager.restart(s)

    def _shift(self, s: Sequence) -> None:
        """Recompute a sequence that outgrew the context, from its beginning and half of the rest.

        Positions then never exceed the trained range, in layers of any kind.
        """
        n_kept = s.request.params.context_shift
        assert n_kept is not None
        n_kept = s.n_prompt if n_kept == -1 else n_kept
        n_later = (self.max_sequence_tokens - n_kept) // 2
        self.cache_manager.requeue(s)
        s.n_shifted += len(s.ids) - n_kept - n_later
        s.ids = [*s.ids[:n_kept], *s.ids[-n_later:]]
        s.cache.checkpoints, s.extended = [], False
        self.cache_manager.restart(s)

    # -- running --------------------------------------------------------------------------------

    def _run(self, running: list[Sequence], counts: dict[int, int]) -> list[Sequence]:
        """Run tokens in one batch. Returns the sequences that gained a token."""
        if not running:
            return []
        drafts = (
            NO_DRAFTS
            if self._draft_scheduler is None
            else self._draft_scheduler.drafts(running, counts)
        )
        try:
            flight = self._runner.launch(running, counts, drafts)
        except Exception as error:
            self._fail_all(running, error)
            return []
        return self._queue_and_deliver(flight)

    def _queue_and_deliver(self, flight: StepInFlight) -> list[Sequence]:
        """Queue the step after `flight`, then deliver the tokens of `flight`."""
        self._in_flight = self._queue_next(flight)
        return self._deliver(flight)

    def _deliver(self, flight: StepInFlight) -> list[Sequence]:
        """Wait for `flight`, give its tokens to their sequences, and return those sequences."""
        try:
            flight.wait()
        except Exception as error:
            self._in_flight = None
            self._fail_all(flight.running, error)
            return []
        n_tokens = sum(flight.counts)
        seconds = time.perf_counter() - flight.begun
        if n_tokens > STREAM_TOKENS * len(flight.running):  # mostly prompts
            self.cache_manager.rates.ran(n_tokens, seconds)
        for s, count, end in zip(flight.running, flight.counts, flight.ends, strict=True):
            self._ran(s, count, end)
        gained = flight.live
        for s, sampled in flight.outcomes():
            if s.finish_reason is None:
                self._gain(s, sampled)
        if self._draft_scheduler is not None:
            is_followed = self._in_flight is not None
            self._draft_scheduler.speculation.step_done(flight, None if is_followed else seconds)
        return gained

    def _queue_next(self, flight: StepInFlight) -> StepInFlight | None:
        """Queue the next step of the sequences of `flight`, before its tokens are known.

        Returns None if other sequences must be scheduled, or if the next step depends on a token.
        """
        if len(self._sequences) > len(flight.live) or not all(flight.on_device):
            return None
        if self._draft_scheduler is not None and self._draft_scheduler.needs_tokens(flight):
            return None
        rows = [
            row
            for row, s in enumerate(flight.complete)
            if s.finish_reason is None and s.n_generated + 1 < s.max_tokens
        ]
        going = [flight.complete[row] for row in rows]
        if not going or not all(self._is_foreseeable(s) for s in going):
            return None
        try:
            for s in going:
                assert s.cache.allocation is not None
                self.cache_manager.trim(s)
                self.pool.grow(s.cache.allocation, s.n_run + 1)
        except MemoryLimitError:
            return None  # the scheduler decides which sequence to preempt
        try:
            return self._runner.launch_behind(flight, rows)
        except Exception as error:
            self._fail_all(going, error)
            return None

    def _is_foreseeable(self, s: Sequence) -> bool:
        """Return whether the next step can run `s`, whatever token it gets in this one.

        If that token ends `s`, the next step runs it in vain.
        """
        n_tokens = len(s.ids) + 1
        fits = n_tokens <= self.max_sequence_tokens and (
            s.extended or n_tokens <= self.plain_context
        )
        is_free = s.request.constraint is None and s.thinking is None
        return fits and is_free and s.sampler.fits_device(1)

    def _embed_texts(self) -> None:
        """Run a step of an encoder, and end its texts."""
        tokens = self.program.plan.max_tokens
        texts = first_texts(self._sequences.values(), self.pool, tokens, self.max_sequences)
        if self._sequences and not texts:
            self._fail_stuck()
        now = time.perf_counter()
        for s in texts:
            s.clock.started = now
        for extended in (False, True):
            part = [s for s in texts if s.extended is extended]
            if not part:
                continue
            try:
                with self.pool.borrowed(sum(self.pool.blocks(len(s.ids)) for s in part)) as blocks:
                    self._runner.embed(part, make_text_step(part, blocks, self.pool.block_tokens))
            except Exception as error:
                self._fail_all(part, error)
            else:
                self._end_complete(part)

    def _embed(self, running: list[Sequence], counts: dict[int, int]) -> None:
        """Run prompts up to the final norm, and end the ones that are complete."""
        if not running:
            return
        try:
            step = make_step(running, counts, len(self.pool.groups), every_row=True)
            self._runner.embed(running, step)
        except Exception as error:
            self._fail_all(running, error)
        else:
            self._end_complete(running)

    def _end_complete(self, running: list[Sequence]) -> None:
        """End the prompts without an answer whose rows have all been read."""
        for s in running:
            s.n_read = s.n_run
            if not s.pending:
                self._finish(s, "length")

    def _score(self, s: Sequence, count: int) -> list[Sequence]:
        """Run tokens of a prompt alone, for the logits of each; sample when it is complete.

        Returns the sequence if it gained a token.
        """
        try:
            logits = self._runner.score(s, count)
        except Exception as error:
            self._fail(s, error)
            return []
        s.n_read = min(s.n_run, s.n_prompt)
        self._ran(s, count, s.n_run)
        if s.pending or s.finish_reason is not None:
            return []
        if s.n_generated >= s.max_tokens:
            self._finish(s, "length")
            return []
        allowed = s.request.constraint if s.is_constrained else None
        (sampled,) = sample_rows([s.sampler], logits, [allowed])
        self._gain(s, sampled)
        return [s]

    # -- results --------------------------------------------------------------------------------

    def _ran(self, s: Sequence, count: int, end: int) -> None:
        """Record that `count` tokens up to position `end` have run, unless the sequence ended."""
        if s.finish_reason is None:
            try:
                self.cache_manager.ran(s, count, end)
            except Exception as error:
                self._fail(s, error)

    def _gain(self, s: Sequence, sampled: Sampled | Exception) -> None:
        """Append the next token to a sequence. Finish the sequence if that was its last token."""
        if isinstance(sampled, Exception):
            self._fail(s, sampled)
            return
        try:
            reason = s.gain(sampled)
        except Exception as error:  # a constraint that does not accept the token
            self._fail(s, error)
        else:
            if reason is not None:
                self._finish(s, reason)

    def _fail_stuck(self) -> None:
        """Fail the first request, because no request can run."""
        first = max(self._sequences.values(), key=lambda s: (s.request.priority, -s.id))
        error = MemoryLimitError(
            "the request cannot run",
            "the cache blocks or state slots that it needs are not free",
            "try again when other requests have ended",
        )
        self._fail(first, error)

    def _fail_all(self, sequences: Iterable[Sequence], error: Exception) -> None:
        for s in sequences:
            if s.finish_reason is None:
                self._fail(s, error)

    def _fail(self, s: Sequence, error: Exception) -> None:
        s.error = error
        self._finish(s, "error")

    def _finish(self, s: Sequence, reason: str) -> None:
        s.finish_reason = reason
        s.clock.ended = time.perf_counter()
        self._sequences.pop(s.id, None)
        s.cache.swapped = None
        try:
            if self._draft_scheduler is not None:
                self._draft_scheduler.speculation.ended(s)
        finally:
            self.cache_manager.release(s, keep=reason != "error")
