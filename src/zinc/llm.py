"""The Python API: load a model, then generate, chat, stream or score.

    from zinc import LLM, SamplingParams

    with LLM() as llm:  # the embedded demo model; pass a path for another
        print(llm.chat([{"role": "user", "content": "Hello!"}]).text)

A thin layer of text over the engine: everything below it works on token ids.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, cast, overload

import numpy as np

from zinc.backends import api
from zinc.chat.template import ChatTemplate
from zinc.core.errors import RequestError
from zinc.engine import loader, placing
from zinc.engine.constraint import Constraint, Thinking
from zinc.engine.engine import Engine
from zinc.engine.identity import cache_key
from zinc.engine.loader import Memory
from zinc.engine.readout import Pooled, Pooling, embedding
from zinc.engine.sampling import Sampled, SamplingParams, breaker_sequences, recommended
from zinc.engine.sequence import Sequence, Timings
from zinc.engine.structured import Grammars, Kind
from zinc.formats.gguf import GGUFFile
from zinc.models import load as load_architecture
from zinc.models.context import RopeScaling
from zinc.ops.graph import FloatArray, Graph
from zinc.ops.step import Step
from zinc.plan.hidden import hidden_graph
from zinc.plan.placement import Placement
from zinc.plan.planner import make_plan
from zinc.tokenizer import StreamDecoder, Tokenizer

Messages = Seq[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Completion:
    """An answer. `finish_reason` is "stop" (an end token or stop string), "length" or "cancelled".

    `logprobs` has one entry a token when the request asked for them.
    """

    text: str
    token_ids: list[int]
    finish_reason: str
    timings: Timings
    logprobs: list[Sampled] | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a streamed answer; the last one carries `finish_reason` and `timings`."""

    text: str
    token_ids: list[int]
    finish_reason: str | None = None
    timings: Timings | None = None


class LLM:
    """A model ready to run.

    model: path of a GGUF file, None for the embedded demo model. backend: "auto", or a name from
    `zinc.backends.api.discover()`. threads: default, the cores this process may use. placement:
    what of the model is on the backend's device and what on the CPU (docs/placement.md); default,
    as much on the device as fits, and `LLM.placed.note` says so when that is not all. context:
    tokens that prompt and answer may have together; default, the model's own as far as memory goes.
    rope: how positions are scaled for a longer context, other than the file says; sequences that
    fit the original context run without it. kv_dtype: "f16", "q8_0", "q4_0" (CPU), or "auto" for
    Q8_0 on the CPU. batch_tokens: the most tokens a step runs. prefix_cache: keep what was run for
    prompts that begin alike, in at most `cache_bytes` (default: all that is not in use).
    cache_dir: a folder where that is found again after a restart or a crash, written behind while
    requests run; it holds what was said, readable by its owner alone. swap_bytes: memory of the
    host for copies of requests that make room for others (default: a share of what is left; with
    0 they are run again). pooling: how `embed` makes one row of a text; default, as the file says,
    else the mean. chat_template: Jinja source in the place of the file's. progress: called with
    bytes done and bytes in all while weights are loaded.

    Not thread-safe: one thread at a time may use it; prompts that are to share steps are given
    together, or to a server. Raises a `ZincError` when the file is damaged or unsupported, or
    memory is short.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        backend: str = "auto",
        threads: int | None = None,
        placement: Placement | None = None,
        context: int | None = None,
        rope: RopeScaling | None = None,
        kv_dtype: str = "auto",
        batch_tokens: int = loader.BATCH_TOKENS,
        prefix_cache: bool = True,
        cache_bytes: int | None = None,
        swap_bytes: int | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        pooling: str | None = None,
        chat_template: str | None = None,
        options: Mapping[str, str] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._chat_template = chat_template
        self.path: Path = loader.resolve_model(model)
        self.file = GGUFFile.open(self.path)
        self.spec, graph = load_architecture(self.file, rope=rope, context=context)
        self._graphs = [graph]
        if 0 < self.spec.plain_context < (context or self.spec.context):
            _, graph = load_architecture(self.file, rope=rope, context=context, extended=True)
            self._graphs.append(graph)
        said = self.file.metadata.get(f"{self.spec.arch}.pooling_type")
        self.pooling = Pooling.of_file(said) if pooling is None else Pooling.named(pooling)
        outputs = min(64, batch_tokens)
        self.placed = placing.place(
            loader.create_backend(backend, threads, options),
            lambda: loader.create_backend("cpu", threads, options),
            self.file,
            self.spec,
            self._graphs,
            placing.Wanted(context, kv_dtype, batch_tokens, outputs),
            placement,
        )
        self.backend = self.placed.backend
        plans = [self._plan(g, batch_tokens, outputs, draws=True) for g in self._graphs]
        self.plan = plans[0]
        arena_bytes = sum(plan.arena_bytes for plan in plans)
        states = self.plan.states
        self.kv_dtype = kv_dtype = loader.resolve_kv_dtype(kv_dtype, self.backend.name, states)
        memories = placing.budgets(self.file, plans, self.backend)
        size = placing.choose_cache(self.spec, memories, kv_dtype, context, batch_tokens)
        self.context = size.context
        loader.upload(self.file, self.plan, self.backend, progress)
        layout = loader.cache_layout(states, size.tokens, kv_dtype, size.state_slots, batch_tokens)
        self._cache = self.backend.allocate(states, layout)
        programs = [self.backend.prepare(plan, self._cache) for plan in plans]
        self.program = programs[0]
        self.engine = Engine(
            self.program,
            self._cache,
            self.spec.vocab,
            self.context,
            prefix_cache=prefix_cache,
            cache_bytes=cache_bytes,
            swap_bytes=loader.choose_swap() if swap_bytes is None else swap_bytes,
            hidden=self._prepare_hidden,
            extended=programs[1] if len(programs) > 1 else None,
            plain_context=self.spec.plain_context,
        )
        self._scorers: dict[bool, api.Program] = {}
        if cache_dir is not None and prefix_cache:
            key = cache_key(self.file.paths, plans, layout, self.backend)
            self.engine.keep_on_disk(Path(cache_dir).expanduser(), key, cache_bytes)
        self.memory = Memory(self.backend.weight_bytes, self._cache.n_bytes, arena_bytes)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        metadata: Mapping[str, Any] = self.file.metadata
        if self._chat_template is not None:  # and none of those that a file may name beside it
            own = {"tokenizer.chat_template": self._chat_template, "tokenizer.chat_templates": []}
            metadata = {**metadata, **own}
        return Tokenizer.from_metadata(metadata, str(self.path))

    @cached_property
    def sampling(self) -> dict[str, Any]:
        """Arguments of SamplingParams that the file recommends; requests without `params` have
        them."""
        return recommended(self.file.metadata)

    @cached_property
    def template(self) -> ChatTemplate:
        """The model's chat template. Raises TemplateError when it has none."""
        return ChatTemplate.from_tokenizer(self.tokenizer)

    # -- generation -----------------------------------------------------------------------------

    def constraint(
        self, kind: Kind, source: str | Mapping[str, Any] | bool | None = None
    ) -> Constraint:
        """What one answer is held to: "json_schema", "json_object", "regex" or "grammar".

        Raises RequestError when `source` cannot be followed, UnsupportedError when the optional
        dependency llguidance is missing.
        """
        return self._grammars.constraint(kind, source)

    @cached_property
    def _grammars(self) -> Grammars:
        return Grammars(self.tokenizer, self.spec.vocab)

    @overload
    def generate(  # type: ignore[overload-overlap]  # a str is a sequence of str, and comes first
        self,
        prompt: str | Seq[int],
        params: SamplingParams | None = None,
        *,
        constraint: Constraint | None = None,
        thinking: Thinking | None = None,
    ) -> Completion: ...

    @overload
    def generate(
        self, prompt: Seq[str] | Seq[Seq[int]], params: SamplingParams | None = None
    ) -> list[Completion]: ...

    def generate(
        self,
        prompt: str | Seq[int] | Seq[str] | Seq[Seq[int]],
        params: SamplingParams | None = None,
        *,
        constraint: Constraint | None = None,
        thinking: Thinking | None = None,
    ) -> Completion | list[Completion]:
        """Continues a prompt, or each of several prompts in one batch.

        A prompt is text (special tokens in it stay text, BOS is added where the model wants it) or
        token ids as they are. A constraint (from `constraint`) belongs to one answer.
        """
        if isinstance(prompt, str) or (len(prompt) > 0 and isinstance(prompt[0], int)):
            one = cast("str | Seq[int]", prompt)
            return self._complete([self._submit(one, params, constraint, thinking)])[0]
        prompts = cast("Seq[str | Seq[int]]", prompt)
        answers: list[_Answer] = []
        try:
            answers.extend(self._submit(p, params) for p in prompts)
            return self._complete(answers)
        finally:
            for answer in answers:
                self.engine.cancel(answer.sequence)

    def chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        tools: Seq[Mapping[str, Any]] | None = None,
        constraint: Constraint | None = None,
        thinking: Thinking | None = None,
        **template_args: Any,
    ) -> Completion:
        """Answers a conversation: messages with "role" and "content", rendered by the model's
        template. `template_args` (`enable_thinking`, ...) are passed on to it.

        Raises TemplateError when the model has no template or the template refuses the messages.
        """
        ids = self.render(messages, tools=tools, **template_args)
        return self._complete([self._submit(ids, params, constraint, thinking)])[0]

    def stream(
        self,
        prompt: str | Seq[int] | Messages,
        params: SamplingParams | None = None,
        *,
        tools: Seq[Mapping[str, Any]] | None = None,
        constraint: Constraint | None = None,
        thinking: Thinking | None = None,
        **template_args: Any,
    ) -> Iterator[Chunk]:
        """Yields the answer as it grows; a list of messages is rendered by the model's template.

        A chunk without text comes after each step of a long prompt. Closing the iterator cancels
        the request.
        """
        if not isinstance(prompt, str) and len(prompt) > 0 and isinstance(prompt[0], Mapping):
            prompt = self.render(cast(Messages, prompt), tools=tools, **template_args)
        ids = cast("str | Seq[int]", prompt)
        chunks = self._stream(self._submit(ids, params, constraint, thinking))
        next(chunks)  # from here on closing it, or letting go of it, cancels the request
        return chunks

    def render(
        self,
        messages: Messages,
        *,
        tools: Seq[Mapping[str, Any]] | None = None,
        **template_args: Any,
    ) -> list[int]:
        """Token ids of a conversation, up to where the answer begins."""
        return self.template.encode(self.tokenizer, messages, tools=tools, **template_args)

    def _submit(
        self,
        prompt: str | Seq[int],
        params: SamplingParams | None,
        constraint: Constraint | None = None,
        thinking: Thinking | None = None,
    ) -> _Answer:
        params = params or SamplingParams(**self.sampling)
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        sequence = self.engine.submit(
            ids,
            params,
            end_tokens=self.tokenizer.eog_ids,
            dry_breakers=self.dry_breakers(params),
            constraint=constraint,
            thinking=thinking,
        )
        return _Answer(sequence, StreamDecoder(self.tokenizer, params.stop))

    def dry_breakers(self, params: SamplingParams) -> tuple[tuple[int, ...], ...]:
        """The DRY breakers of a request as token ids; a walk over the vocabulary the first time."""
        if params.dry_multiplier == 0:
            return ()
        return self._breaker_sequences(params.dry_sequence_breakers)

    @cached_property
    def _breaker_sequences(self) -> Callable[[tuple[str, ...]], tuple[tuple[int, ...], ...]]:
        tokenizer = self.tokenizer
        vocabulary = [tokenizer.token_bytes(i) for i in range(tokenizer.n_vocab)]
        encode = partial(tokenizer.encode, add_special=False)
        # Bounded: clients of a server choose them.
        return lru_cache(16)(lambda breakers: breaker_sequences(breakers, vocabulary, encode))

    def _stream(self, answer: _Answer) -> Iterator[Chunk]:
        held: list[int] = []  # tokens whose text is not settled yet
        try:
            yield Chunk("", [])
            while not answer.ended:
                self.engine.step()
                fresh, text = answer.take(self.engine)
                if answer.sequence.error is not None:
                    raise answer.sequence.error
                held += fresh
                if text or answer.ended or not fresh:
                    ended = answer.ended
                    timings = answer.sequence.timings() if ended else None
                    yield Chunk(text, held, answer.finish_reason if ended else None, timings)
                    held = []
        finally:
            self.engine.cancel(answer.sequence)
            self.engine.settle()

    def _complete(self, answers: list[_Answer]) -> list[Completion]:
        try:
            while not all(a.ended for a in answers):
                self.engine.step()
                for answer in answers:
                    answer.take(self.engine)
                    if answer.sequence.error is not None:
                        raise answer.sequence.error
        finally:
            for answer in answers:
                self.engine.cancel(answer.sequence)
            self.engine.settle()
        return [a.completion() for a in answers]

    # -- embeddings -----------------------------------------------------------------------------

    def embed(
        self,
        texts: str | Seq[str] | Seq[Seq[int]],
        *,
        pooling: str | None = None,
        dimensions: int | None = None,
        normalize: bool = True,
    ) -> FloatArray:
        """Embeddings of texts (or token ids), float32 [texts, dimensions]; a str is one text.

        The rows behind the final norm are pooled: "mean", "cls" (the first) or "last" (default:
        `LLM.pooling`). `dimensions` cuts them short. They have length 1 unless `normalize` is off.
        Raises RequestError when a text is longer than the context.
        """
        how = self.pooling if pooling is None else Pooling.named(pooling)
        if how is Pooling.NONE:
            raise RequestError(
                "texts cannot be embedded without pooling",
                "an embedding is one row for each of them",
                "choose mean, cls or last",
            )
        sequences: list[Sequence] = []
        pools: list[Pooled] = []
        try:
            for text in [texts] if isinstance(texts, str) else texts:
                ids = self.tokenizer.encode(text) if isinstance(text, str) else list(text)
                pools.append(Pooled(how))
                sequences.append(self.engine.submit(ids, _NO_ANSWER, readout=pools[-1]))
            while any(s.finish_reason is None for s in sequences):
                self.engine.step()
            for s in sequences:
                if s.error is not None:
                    raise s.error
        finally:
            for s in sequences:
                self.engine.cancel(s)
        rows = [embedding(p.row, dimensions, 2 if normalize else None) for p in pools]
        return np.array(rows, np.float32).reshape(len(rows), dimensions or self.spec.hidden)

    def _prepare_hidden(self, extended: bool) -> api.Program:
        n = self.plan.max_tokens
        plan = self._plan(hidden_graph(self._graphs[extended]), n, n)
        return self.backend.prepare(plan, self._cache)

    # -- scoring --------------------------------------------------------------------------------

    def logits(self, ids: Seq[int]) -> FloatArray:
        """Logits float32 [tokens, vocab] after each token of a prompt."""
        return np.concatenate(list(self._score([list(ids)])), axis=0)

    def perplexity(
        self,
        text: str | Seq[int],
        window: int = 512,
        progress: Callable[[int, int], None] | None = None,
    ) -> float:
        """exp of the mean negative log-likelihood over a text, in windows of so many tokens.

        Windows do not overlap; each begins with BOS in place of its first token if the model wants
        one, and only its second half is scored, so that every scored token has at least
        window / 2 tokens before it. A tail shorter than a window is left out, as llama.cpp does.
        Raises RequestError when the text is shorter than one window.
        """
        ids = self.tokenizer.encode(text) if isinstance(text, str) else list(text)
        if not 2 <= window <= self.context:
            raise RequestError(
                f"a window of {window} tokens is not possible",
                f"it must lie between 2 and the context of {self.context}",
            )
        n_windows = len(ids) // window
        if n_windows == 0:
            raise RequestError(
                "the text is too short for a perplexity",
                f"it has {len(ids)} tokens and a window takes {window}",
                "use a longer text or a smaller --window",
            )
        bos = self.tokenizer.bos_id if self.tokenizer.add_bos else None
        total, count = 0.0, 0
        for i in range(n_windows):
            part = ids[i * window : (i + 1) * window]
            context = part if bos is None else [bos, *part[1:]]
            row = 0
            for logits in self._score([context]):
                for r in range(max(row, window // 2), min(row + len(logits), window - 1)):
                    x = logits[r - row].astype(np.float64)
                    top = x.max()
                    total += top + np.log(np.exp(x - top).sum()) - x[part[r + 1]]
                    count += 1
                row += len(logits)
            if progress is not None:
                progress(i + 1, n_windows)
        return float(np.exp(total / count))

    def _plan(
        self, graph: Graph, max_tokens: int, max_outputs: int, *, draws: bool = False
    ) -> api.Plan:
        return make_plan(
            graph, self.backend, max_tokens=max_tokens, max_outputs=max_outputs, draws=draws
        )

    def _scorer(self, n_tokens: int) -> api.Program:
        """A program that returns logits of every row of such a sequence, beside those of the
        engine."""
        extended = n_tokens > self.engine.plain_context
        if extended not in self._scorers:
            n = self.plan.max_tokens
            plan = self._plan(self._graphs[extended], n, n)
            self._scorers[extended] = self.backend.prepare(plan, self._cache)
        return self._scorers[extended]

    def _score(self, prompts: list[list[int]]) -> Iterator[FloatArray]:
        """Logits of all tokens, a chunk at a time; valid until the next chunk."""
        pool = self.engine.pool
        for ids in prompts:
            if not 0 < len(ids) <= self.context:
                raise RequestError(
                    f"cannot score {len(ids)} tokens",
                    f"the context holds 1 to {self.context}",
                    "score fewer tokens, or load with a larger context",
                )
            if not 0 <= min(ids) <= max(ids) < self.spec.vocab:
                raise RequestError(
                    "cannot score the tokens",
                    f"an id lies outside the vocabulary of {self.spec.vocab}",
                )
            with pool.borrow() as holding:
                for at in range(0, len(ids), self.plan.max_tokens):
                    part = np.array(ids[at : at + self.plan.max_tokens], np.int32)
                    rows = np.arange(len(part), dtype=np.int32)
                    pool.trim(holding, at)
                    pool.grow(holding, at + len(part))
                    step = Step(
                        ids=part,
                        positions=rows + np.int32(at),
                        sequence=np.zeros(len(part), np.int32),
                        output_rows=rows,
                        seq_start=np.array([0, len(part)], np.int32),
                        state_slot=np.array([holding.slot], np.int32),
                        tables=tuple(np.array([table], np.int32) for table in holding.tables),
                    )
                    yield self._scorer(len(ids)).step(step).copy()

    def close(self) -> None:
        """Frees the model's memory; the object is of no use afterwards.

        What the prefix cache has is in `cache_dir` then, if there is one.
        """
        try:
            if "engine" in self.__dict__:
                self.engine.close()
        finally:
            for name in ("program", "engine", "_scorers", "_cache", "backend", "placed"):
                self.__dict__.pop(name, None)
            self.file.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_NO_ANSWER = SamplingParams(max_tokens=0)


class _Answer:
    """A sequence and its text so far."""

    def __init__(self, sequence: Sequence, decoder: StreamDecoder) -> None:
        self.sequence, self._decoder = sequence, decoder
        self._text: list[str] = []
        self._taken = 0
        self._finished = False

    @property
    def ended(self) -> bool:
        return self._finished

    @property
    def finish_reason(self) -> str:
        return "stop" if self._decoder.stopped is not None else str(self.sequence.finish_reason)

    def take(self, engine: Engine) -> tuple[list[int], str]:
        """New tokens and the text they settled; a stop string ends the sequence."""
        if self._finished:
            return [], ""
        fresh = [each.token for each in self.sequence.sampled[self._taken :]]
        text = ""
        for token in fresh:
            if token in self.sequence.end_tokens and not self.sequence.sampler.params.ignore_eos:
                break
            text += self._decoder.push(token)
        self._taken += len(fresh)
        if self._decoder.stopped is not None:
            engine.cancel(self.sequence, "stop")
        if self.sequence.finish_reason is not None:
            text += self._decoder.finish()
            self._finished = True
        self._text.append(text)
        return fresh, text

    def completion(self) -> Completion:
        wants = self.sequence.sampler.params.logprobs is not None
        return Completion(
            text="".join(self._text),
            token_ids=self.sequence.generated,
            finish_reason=self.finish_reason,
            timings=self.sequence.timings(),
            logprobs=list(self.sequence.sampled) if wants else None,
        )
