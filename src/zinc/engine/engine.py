"""The engine: sequences in, tokens out, one ragged step at a time.

Each step asks the scheduler who runs, builds the batch, runs the program and samples a token for
every sequence whose pending tokens are all in. Text, templates and HTTP are its clients' business.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection
from collections.abc import Sequence as Seq

import numpy as np

from zinc.backends.api import CacheLayout, Program
from zinc.core.errors import RequestError
from zinc.engine.sampling import Sampler, SamplingParams
from zinc.engine.scheduler import Budget, Demand, schedule
from zinc.engine.sequence import Sequence
from zinc.kv import BlockAllocator, SlotAllocator
from zinc.ops.step import Step


class Engine:
    """Runs requests on a program. Not thread-safe: one thread submits and steps.

    `context` bounds prompt plus answer of a request, in tokens.
    """

    def __init__(self, program: Program, layout: CacheLayout, n_vocab: int, context: int) -> None:
        self.program = program
        self.n_vocab = n_vocab
        self.context = context
        self.block_tokens = layout.block_tokens
        self.allocators = [BlockAllocator(n) for n in layout.n_blocks]
        self.slots = SlotAllocator(layout.state_slots)
        self.max_sequences = min(64, program.plan.max_outputs)
        self._sequences: dict[int, Sequence] = {}
        self._ids = itertools.count()

    @property
    def idle(self) -> bool:
        return not self._sequences

    def submit(
        self,
        ids: Seq[int],
        params: SamplingParams,
        end_tokens: Collection[int] = (),
        dry_breakers: Collection[Seq[int]] = (),
    ) -> Sequence:
        """Queues a prompt. Raises RequestError when it cannot run."""
        ids = list(ids)
        if not ids:
            raise RequestError(
                "the prompt is empty", "a model needs at least one token", "write something"
            )
        if not 0 <= min(ids) <= max(ids) < self.n_vocab:
            raise RequestError(
                "the prompt has a token id outside the vocabulary",
                f"ids lie between 0 and {self.n_vocab - 1}",
            )
        room = self.context - len(ids)
        if room < 1:
            raise RequestError(
                "the prompt is too long",
                f"it has {len(ids)} tokens, and the context holds {self.context} with the answer",
                "shorten it, or load the model with a larger --context",
            )
        wanted = room if params.max_tokens is None else min(room, params.max_tokens)
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
        )
        if wanted == 0:
            self._finish(sequence, "length")
        else:
            self._sequences[sequence.id] = sequence
        return sequence

    def cancel(self, sequence: Sequence, reason: str = "cancelled") -> None:
        """Ends a sequence now and frees its blocks; nothing happens when it has ended."""
        if sequence.finish_reason is None:
            self._finish(sequence, reason)

    def step(self) -> list[Sequence]:
        """Runs one batch. Returns the sequences that gained a token, in order of arrival."""
        chosen = schedule(
            [Demand(s.id, s.pending, self._blocks_wanted(s)) for s in self._sequences.values()],
            Budget(
                self.program.plan.max_tokens,
                self.max_sequences,
                self.allocators[0].n_free,
                self.slots.n_free,
            ),
        )
        if not chosen:
            return []
        running = [self._sequences[i] for i in chosen]
        for s in running:
            if not s.blocks:
                s.blocks = self.allocators[0].acquire(self._blocks_wanted(s))
                s.slot = self.slots.acquire()
                s.started = time.perf_counter()
        logits = self.program.step(self._batch(running, chosen))
        gained = []
        row = 0
        for s in running:
            s.n_run += chosen[s.id]
            if s.pending == 0:
                self._sample(s, logits[row])
                gained.append(s)
                row += 1
        return gained

    def _blocks_wanted(self, s: Sequence) -> int:
        if s.blocks:
            return 0
        return -(-(s.n_prompt + s.max_tokens) // self.block_tokens)

    def _batch(self, running: Seq[Sequence], chosen: dict[int, int]) -> Step:
        counts = np.array([chosen[s.id] for s in running], np.int32)
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        ids = [s.ids[s.n_run : s.n_run + chosen[s.id]] for s in running]
        positions = [np.arange(s.n_run, s.n_run + chosen[s.id]) for s in running]
        ends = [i for i, s in enumerate(running) if chosen[s.id] == s.pending]
        table = np.full((len(running), max(len(s.blocks) for s in running)), -1, np.int32)
        for i, s in enumerate(running):
            table[i, : len(s.blocks)] = s.blocks
        return Step(
            ids=np.array(list(itertools.chain.from_iterable(ids)), np.int32),
            positions=np.concatenate(positions).astype(np.int32),
            sequence=np.repeat(np.arange(len(running), dtype=np.int32), counts),
            output_rows=(starts[1:] - 1)[ends],
            seq_start=starts,
            state_slot=np.array([s.slot for s in running], np.int32),
            tables=(table,),
        )

    def _sample(self, s: Sequence, logits: np.ndarray[tuple[int], np.dtype[np.float32]]) -> None:
        sampled = s.sampler.sample(logits)
        s.sampler.accept(sampled.token)
        s.sampled.append(sampled)
        s.ids.append(sampled.token)
        if not s.first_token:
            s.first_token = time.perf_counter()
        if sampled.token in s.end_tokens and not s.sampler.params.ignore_eos:
            self._finish(s, "stop")
        elif s.n_generated >= s.max_tokens:
            self._finish(s, "length")

    def _finish(self, s: Sequence, reason: str) -> None:
        s.finish_reason = reason
        s.ended = time.perf_counter()
        self.allocators[0].release(s.blocks)
        if s.blocks:
            self.slots.release(s.slot)
        s.blocks = []
        self._sequences.pop(s.id, None)
