"""A request's tokens on their way through the engine."""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq
from dataclasses import field
from typing import TYPE_CHECKING

import numpy as np

from zinc.core.dataclass import dataclass
from zinc.engine.constraint import ThinkingTracker
from zinc.engine.readout import ReadoutKind
from zinc.engine.request import Request
from zinc.engine.sampling import Sampled, Sampler
from zinc.engine.speculative.tracker import DraftTracker
from zinc.kv import TOKEN_BYTES, Allocation, PrefixHit, Swapped, key_of

if TYPE_CHECKING:
    from zinc.kv.fetch import Fetch


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds and tokens of one request.

    The first token counts as prefill, not as decode. shifted_tokens: tokens that were dropped when
    the text outgrew the context. drafted_tokens: tokens that speculation proposed, of which
    `accepted_tokens` are in the answer.
    """

    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    prompt_seconds: float
    generate_seconds: float
    first_token_seconds: float
    shifted_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    @property
    def prompt_tokens_per_s(self) -> float:
        """Prefill speed, without the tokens that came from the prefix cache."""
        run = self.prompt_tokens - self.cached_tokens
        return run / self.prompt_seconds if self.prompt_seconds > 0 else 0.0

    @property
    def generated_tokens_per_s(self) -> float:
        """Decode speed, without the first token."""
        run = self.generated_tokens - 1
        return run / self.generate_seconds if run > 0 and self.generate_seconds > 0 else 0.0

    @property
    def tokens_per_step(self) -> float:
        """Tokens of the answer for each step, without the first one."""
        run = self.generated_tokens - 1
        return run / (run - self.accepted_tokens) if run > self.accepted_tokens else 0.0


@dataclass(slots=True)
class Clock:
    """Times of a request's events in seconds of `time.perf_counter`; 0 until they happen."""

    arrived: float = field(default_factory=time.perf_counter)
    started: float = 0.0
    first_token: float = 0.0
    ended: float = 0.0


@dataclass(slots=True)
class CacheState:
    """A sequence's part of the cache, and its relation to the prefix cache.

    allocation: its blocks and state slot; None while it waits. swapped: a copy in host memory while
    it is preempted. key: its ids as the prefix cache stores them; empty once all of them have run.
    prefix_hit: the prefix that the cache would give it, with the cache's generation. shared_tokens:
    tokens that another running sequence, by id, will leave for it in the prefix cache. checkpoints:
    positions at which its recurrent state is copied, in ascending order. fetch: the prefix of its
    prompt that other processes may have; None until it is looked up.
    """

    allocation: Allocation | None = None
    swapped: Swapped | None = None
    key: bytes = b""
    prefix_hit: tuple[int, PrefixHit] | None = None
    shared_tokens: dict[int, int] = field(default_factory=dict)
    checkpoints: list[int] = field(default_factory=list)
    fetch: Fetch | None = None


@dataclass(slots=True, eq=False)
class Sequence:
    """A request's prompt and its answer so far.

    ids: prompt and answer, without `n_shifted` tokens that were dropped when they outgrew the
    context. n_run: tokens of `ids` whose keys and values are in the cache. n_read: prompt tokens
    whose rows the readout has taken. n_cached: prompt tokens that came from the prefix cache.
    sampled: the whole answer. extended: whether it is longer than the plain context, so that its
    keys are rotated with other frequencies. error: the reason of finish_reason "error".
    """

    id: int
    request: Request
    ids: list[int]
    max_tokens: int
    sampler: Sampler
    end_tokens: frozenset[int]
    thinking: ThinkingTracker | None = None
    extended: bool = False
    n_prompt: int = 0
    n_run: int = 0
    n_read: int = 0
    n_cached: int = 0
    n_preempted: int = 0
    n_shifted: int = 0
    sampled: list[Sampled] = field(default_factory=list)
    finish_reason: str | None = None
    error: Exception | None = None
    cache: CacheState = field(default_factory=CacheState)
    clock: Clock = field(default_factory=Clock)
    drafts: DraftTracker = field(default_factory=DraftTracker)

    @classmethod
    def of(
        cls,
        id: int,
        request: Request,
        max_tokens: int,
        n_vocab: int,
        sampler: Sampler | None = None,
    ) -> Sequence:
        """Return the sequence of a request, which may generate `max_tokens` tokens.

        sampler: one to share with other sequences that sample no token; None makes one. Raises
        RequestError if its sampling settings do not suit the vocabulary.
        """
        ids = list(request.ids)
        if sampler is None:
            sampler = Sampler(
                request.params,
                n_vocab,
                end_tokens=request.end_tokens,
                dry_breakers=request.dry_breakers,
            )
            sampler.accept_prompt(ids)
        return cls(
            id,
            request,
            ids,
            max_tokens,
            sampler,
            frozenset(request.end_tokens),
            None if request.thinking is None else ThinkingTracker(request.thinking),
            n_prompt=len(ids),
        )

    @property
    def pending(self) -> int:
        """Tokens that have not run."""
        return len(self.ids) - self.n_run

    @property
    def is_running(self) -> bool:
        """Whether the sequence holds a part of the cache."""
        return self.cache.allocation is not None

    def tokens_to_checkpoint(self, n_run: int) -> int:
        """Return how many tokens may run in one step: up to the next checkpoint."""
        for at in self.cache.checkpoints:
            if at > n_run:
                return at - n_run
        return len(self.ids) - n_run

    @property
    def is_read(self) -> bool:
        """Whether a readout wants the rows of the next tokens."""
        return self.request.readout is not None and self.n_read < self.n_prompt

    def reads(self, kind: ReadoutKind) -> bool:
        """Return whether a readout of `kind` wants the rows of the next tokens."""
        readout = self.request.readout
        return readout is not None and self.is_read and readout.kind is kind

    # -- the prefix cache -------------------------------------------------------------------------

    @property
    def is_reusable(self) -> bool:
        """Whether the prefix cache keeps it. Texts without an answer are rarely continued."""
        readout = self.request.readout
        return readout is None or readout.kind is ReadoutKind.PROMPT_LOGITS

    @property
    def namespace(self) -> bytes:
        """The namespace of its cached prefixes.

        Keys of an extended sequence are rotated differently, so it shares no prefix with others.
        A sequence with adapters shares prefixes only with sequences that use the same adapters with
        the same scales.
        """
        namespace, adapters = self.request.namespace, self.request.adapters
        if adapters is not None:
            namespace = b"lora:" + adapters.key + namespace
        return b"extended:" + namespace if self.extended else namespace

    def key_to(self, n_tokens: int) -> bytes:
        """Return the first `n_tokens` ids as the prefix cache stores them."""
        if self.cache.key:
            return self.cache.key[: n_tokens * TOKEN_BYTES]
        return key_of(np.asarray(self.ids[:n_tokens], np.int32))

    def renew_key(self) -> None:
        """Set the key by which the sequence looks for a cached prefix.

        It is empty for a sequence that is read, which must run from its first token.
        """
        self.cache.key = b""
        if not self.is_read:
            self.cache.key = self.key_to(len(self.ids))

    # -- the answer -------------------------------------------------------------------------------

    @property
    def is_constrained(self) -> bool:
        """Whether the constraint limits the next token; it does not while the model thinks."""
        return self.request.constraint is not None and not (self.thinking and self.thinking.inside)

    @property
    def generated(self) -> list[int]:
        """The ids of the answer."""
        return [token.token for token in self.sampled]

    @property
    def n_generated(self) -> int:
        """The number of tokens of the answer."""
        return len(self.sampled)

    def gain(self, sampled: Sampled) -> str | None:
        """Append a sampled token, and the tokens that must follow it.

        Returns the finish reason if the answer ends with them, else None. Raises the error of a
        constraint that does not accept the token.
        """
        self.clock.first_token = self.clock.first_token or time.perf_counter()
        reason = self._take(sampled) or self.force()
        return reason or ("length" if self.n_generated >= self.max_tokens else None)

    def force(self) -> str | None:
        """Append the tokens that are not sampled, and return the finish reason if they end it.

        These are the markers that open reasoning or close it when its budget is used up, and tokens
        that the constraint dictates.
        """
        while (room := self.max_tokens - self.n_generated) > 0:
            if self.thinking is not None and (marker := self.thinking.forced()):
                for token in marker[:room]:
                    self._append(Sampled(token))
            elif dictated := self._dictated():
                for token in dictated[:room]:
                    if reason := self._take(Sampled(token)):
                        return reason
            else:
                return None
        return None

    def _take(self, sampled: Sampled) -> str | None:
        constraint = self.request.constraint if self.is_constrained else None
        self._append(sampled)
        if sampled.token in self.end_tokens and not self.request.params.ignore_eos:
            return "stop"
        if constraint is not None:
            constraint.accept(sampled.token)
            if constraint.finished:
                return "stop"
        return None

    def _append(self, sampled: Sampled) -> None:
        self.sampler.accept(sampled.token)
        self.sampled.append(sampled)
        self.ids.append(sampled.token)
        if self.thinking is not None:
            self.thinking.accept(sampled.token)

    def _dictated(self) -> Seq[int]:
        """Return the tokens that the constraint dictates next.

        None are returned if logprobs are wanted, because those come from a row of logits.
        """
        constraint = self.request.constraint
        if constraint is None or not self.is_constrained or self.is_read:
            return ()
        return constraint.forced() if self.request.params.logprobs is None else ()

    def cut(self, n_generated: int) -> None:
        """Truncate the answer to its first `n_generated` tokens."""
        n_dropped = self.n_generated - n_generated
        if n_dropped > 0:
            del self.sampled[n_generated:], self.ids[-n_dropped:]
            self.n_run = min(self.n_run, len(self.ids))

    def timings(self) -> Timings:
        """Return the times so far."""
        clock = self.clock
        end = clock.ended or time.perf_counter()
        first = clock.first_token or end
        return Timings(
            prompt_tokens=self.n_prompt,
            cached_tokens=self.n_cached,
            generated_tokens=self.n_generated,
            prompt_seconds=first - (clock.started or first),
            generate_seconds=end - first,
            first_token_seconds=first - clock.arrived,
            shifted_tokens=self.n_shifted,
            drafted_tokens=self.drafts.n_drafted,
            accepted_tokens=self.drafts.n_accepted,
        )
