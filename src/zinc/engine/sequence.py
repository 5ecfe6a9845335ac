"""One request's tokens on their way through the engine."""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np

from zinc.engine.constraint import Constraint, ThinkingTracker
from zinc.engine.readout import Readout, ReadoutKind
from zinc.engine.sampling import Sampled, Sampler
from zinc.kv import TOKEN_BYTES, Holding, Prospect, Swapped, key_of


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds and tokens of one request. The first token is the prefill's, not the decode's.

    shifted_tokens: those that were left behind when the text outgrew the context.
    """

    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    prompt_seconds: float
    generate_seconds: float
    first_token_seconds: float
    shifted_tokens: int = 0

    @property
    def prompt_tokens_per_s(self) -> float:
        run = self.prompt_tokens - self.cached_tokens
        return run / self.prompt_seconds if self.prompt_seconds > 0 else 0.0

    @property
    def generated_tokens_per_s(self) -> float:
        run = self.generated_tokens - 1
        return run / self.generate_seconds if run > 0 and self.generate_seconds > 0 else 0.0


@dataclass(slots=True, eq=False)
class Sequence:
    """A prompt and its answer so far. `n_run` tokens of `ids` are in the cache.

    ids: prompt and answer, or what is left of them once they have outgrown the context (n_shifted
    tokens were left out then). sampled: the whole answer.

    extended: whether it is longer than the plain context, so that its keys are rotated with other
    frequencies. holding: its part of the cache, None while it waits. swapped: what was copied of
    that while it makes room for others. namespace: whose prefixes in the cache it begins with and
    leaves behind. n_cached: prompt tokens that came from the prefix cache
    when it began. key: the ids as the prefix cache wants them, until all have run. shares: tokens
    that others, by id, will have in the cache for it. marks: where its recurrent state is to be
    copied. n_read: prompt tokens whose rows `readout` has got. error: why it ended with
    finish_reason "error".
    """

    id: int
    ids: list[int]
    n_prompt: int
    max_tokens: int
    sampler: Sampler
    end_tokens: frozenset[int]
    client: str = ""
    namespace: bytes = b""
    priority: int = 0
    constraint: Constraint | None = None
    thinking: ThinkingTracker | None = None
    readout: Readout | None = None
    marks: list[int] = field(default_factory=list)
    n_run: int = 0
    n_read: int = 0
    n_cached: int = 0
    n_preempted: int = 0
    n_shifted: int = 0
    extended: bool = False
    holding: Holding | None = None
    swapped: Swapped | None = None
    key: bytes = b""
    shares: dict[int, int] = field(default_factory=dict)
    prospect: tuple[int, Prospect] | None = None  # with the generation of the cache it is of
    sampled: list[Sampled] = field(default_factory=list)
    finish_reason: str | None = None
    error: Exception | None = None
    arrived: float = field(default_factory=time.perf_counter)
    started: float = 0.0
    first_token: float = 0.0
    ended: float = 0.0

    @property
    def pending(self) -> int:
        return len(self.ids) - self.n_run

    def longest_from(self, n_run: int) -> int:
        """The most tokens to run in one go: up to where its state is to be copied."""
        mark = next((m for m in self.marks if m > n_run), len(self.ids))
        return mark - n_run

    @property
    def is_read(self) -> bool:
        """Whether a readout wants the rows of the next tokens."""
        return self.readout is not None and self.n_read < self.n_prompt

    def reads(self, kind: ReadoutKind) -> bool:
        """Return whether a readout of `kind` wants the rows of the next tokens."""
        return self.readout is not None and self.is_read and self.readout.kind is kind

    @property
    def is_reusable(self) -> bool:
        """Whether the prefix cache keeps it. Texts without an answer are rarely continued."""
        return self.readout is None or self.readout.kind is ReadoutKind.PROMPT_LOGITS

    def key_to(self, n_tokens: int) -> bytes:
        """The first tokens as the prefix cache wants them.

        The keys and values of an extended sequence are not those of others that begin alike: ids
        are kept as their complement there, which is no token.
        """
        if self.key:
            return self.key[: n_tokens * TOKEN_BYTES]
        ids = np.asarray(self.ids[:n_tokens], np.int32)
        return key_of(~ids if self.extended else ids)

    @property
    def is_constrained(self) -> bool:
        """Whether the next token is the constraint's to limit."""
        return self.constraint is not None and not (self.thinking and self.thinking.inside)

    @property
    def generated(self) -> list[int]:
        return [token.token for token in self.sampled]

    @property
    def n_generated(self) -> int:
        return len(self.sampled)

    # -- its answer -----------------------------------------------------------------------------

    def gain(self, sampled: Sampled) -> str | None:
        """Appends a token that was drawn, and those that have to follow it.

        Returns why the answer ends with them, None when it goes on. Raises what a constraint does
        that cannot follow.
        """
        self.first_token = self.first_token or time.perf_counter()
        reason = self._take(sampled) or self.force()
        return reason or ("length" if self.n_generated >= self.max_tokens else None)

    def force(self) -> str | None:
        """Puts in what has to come next: the marker that begins a reasoning or ends one that has
        used up its budget, and what a constraint dictates. Nobody draws these tokens."""
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
        constraint = self.constraint if self.is_constrained else None
        self._append(sampled)
        if sampled.token in self.end_tokens and not self.sampler.params.ignore_eos:
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
        """Tokens that need not be drawn. Each is, when its logprob or those of the prompt are to
        be told: they come from its row."""
        if self.constraint is None or not self.is_constrained or self.is_read:
            return ()
        return self.constraint.forced() if self.sampler.params.logprobs is None else ()

    def timings(self) -> Timings:
        end = self.ended or time.perf_counter()
        first = self.first_token or end
        return Timings(
            prompt_tokens=self.n_prompt,
            cached_tokens=self.n_cached,
            generated_tokens=self.n_generated,
            prompt_seconds=first - (self.started or first),
            generate_seconds=end - first,
            first_token_seconds=first - self.arrived,
            shifted_tokens=self.n_shifted,
        )
