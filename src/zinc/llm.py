"""The Python API: load a model, then generate, chat, stream or score.

    from zinc import LLM, SamplingParams

    with LLM() as llm:  # the embedded demo model; pass a path for another
        print(llm.chat([{"role": "user", "content": "Hello!"}]).text)

A thin layer of text over the engine: everything below it works on token ids.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar, cast, overload

import numpy as np

from zinc.answers import (
    Chunk,
    Completion,
    CompletionTask,
    EmbeddingTask,
    Request,
    Stream,
    StreamTask,
)
from zinc.arguments import (
    check_messages,
    is_conversation,
    is_one_prompt,
    sampling_params,
    take_sampling,
)
from zinc.backends import api
from zinc.chat import renderer
from zinc.chat.template import ChatTemplate
from zinc.core.errors import RequestError
from zinc.engine import loader, placing
from zinc.engine.constraint import Thinking
from zinc.engine.engine import Engine
from zinc.engine.identity import TensorDigests, cache_key
from zinc.engine.loader import Memory
from zinc.engine.readout import Pooled, Pooling, embedding
from zinc.engine.sampling import SamplingParams, breaker_sequences, recommended
from zinc.engine.structured import ConstraintLike, Grammar, Grammars, started
from zinc.engine.worker import EngineWorker, closed_error
from zinc.formats.gguf import GGUFFile
from zinc.grammar.kinds import Kind
from zinc.kv.disk import check_folder
from zinc.models import load as load_architecture
from zinc.models.parts.context import RopeScaling
from zinc.ops.graph import Graph
from zinc.ops.step import Step
from zinc.ops.values import FloatArray
from zinc.plan.device_map import DeviceMap
from zinc.plan.hidden import hidden_graph
from zinc.plan.planner import make_plan
from zinc.tokenizer import Tokenizer

__all__ = ["LLM", "Chunk", "Completion", "Stream"]

T = TypeVar("T")
Messages = Seq[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A loaded model, freed by `close`: weights and cache on a backend, and their engine."""

    placed: placing.Placed
    cache: api.Cache
    program: api.Program
    engine: Engine
    worker: EngineWorker


class LLM:
    """A model ready to run.

    model: path of a GGUF file; None is the embedded demo model.
    backend: "auto", or a name from `zinc.backends.api.discover()`.
    threads: CPU threads; default, one for each core that this process may use.
    device_map: which layers are on the device, which on the CPU (docs/placement.md); default, as
        many on the device as fit. `LLM.placed.note` says so if some do not.
    context: tokens of prompt and answer together; default, the model's own as far as memory goes.
    rope: RoPE scaling for a longer context than the file states. Sequences that fit the original
        context run without it.
    kv_dtype: "f16", "q8_0", "q4_0" (CPU; it costs quality, see docs/numerics.md), or "auto", which
        is Q8_0 on the CPU.
    batch_tokens: the most tokens that a step runs.
    prefix_cache: keep the KV cache of prompts for others that begin alike, in at most `cache_bytes`
        (default: all memory of the cache that is not in use).
    cache_dir: a folder that keeps the prefix cache over restarts. It is written while requests run;
        it holds the text of prompts, readable by its owner alone.
    swap_bytes: host memory for copies of preempted requests (default: a share of what is free);
        what does not fit is run again.
    pooling: how `embed` turns the rows of a text into one; default, as the file says, or "mean".
    chat_template: Jinja source that replaces the file's template.
    progress: called with bytes done and bytes in all while weights are loaded.

    Thread-safe: requests of several threads share steps, as do prompts that are given together.
    After `close`, methods raise RequestError. Raises a `ZincError` when the file is damaged or
    unsupported, or memory is short.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        backend: str = "auto",
        threads: int | None = None,
        device_map: DeviceMap | None = None,
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
        self._loaded: _Loaded | None = None
        self._lazy = threading.RLock()  # for what is built when it is first used
        folder = Path(cache_dir).expanduser() if cache_dir is not None and prefix_cache else None
        if folder is not None:
            check_folder(folder)
        self.path: Path = loader.resolve_model(model)
        self.file = GGUFFile.open(self.path)
        if chat_template is not None or "tokenizer.chat_template" in self.file.metadata:
            renderer.SHARED.start()  # it gets ready while weights are loaded
        self.spec, graph = load_architecture(self.file, rope=rope, context=context)
        self._graphs = [graph]
        if 0 < self.spec.plain_context < (context or self.spec.context):
            _, graph = load_architecture(self.file, rope=rope, context=context, extended=True)
            self._graphs.append(graph)
        said = self.file.metadata.get(f"{self.spec.arch}.pooling_type")
        self.pooling = Pooling.of_file(said) if pooling is None else Pooling.named(pooling)
        outputs = min(64, batch_tokens)
        placed = placing.place(
            loader.create_backend(backend, threads, options),
            lambda: loader.create_backend("cpu", threads, options),
            self.file,
            self.spec,
            self._graphs,
            placing.Wanted(context, kv_dtype, batch_tokens, outputs),
            device_map,
        )
        chosen = placed.backend
        plans = [_plan(chosen, g, batch_tokens, outputs, draws=True) for g in self._graphs]
        self.plan = plans[0]
        arena_bytes = sum(plan.arena_bytes for plan in plans)
        states = self.plan.states
        self.kv_dtype = kv_dtype = loader.resolve_kv_dtype(kv_dtype, chosen.name, states)
        memories = placing.budgets(self.file, plans, chosen)
        size = placing.choose_cache(self.spec, memories, kv_dtype, context, batch_tokens)
        self.context = size.context
        digests = None if folder is None else TensorDigests(self.file, folder)
        loader.upload(self.file, self.plan, chosen, progress, digests)
        layout = loader.cache_layout(states, size.tokens, kv_dtype, size.state_slots, batch_tokens)
        cache = chosen.allocate(states, layout)
        programs = [chosen.prepare(plan, cache) for plan in plans]
        engine = Engine(
            programs[0],
            cache,
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
        if folder is not None and digests is not None:
            key = cache_key(digests.finish(), plans, layout, chosen)
            engine.keep_on_disk(folder, key, cache_bytes)
        self.memory = Memory(chosen.weight_bytes, cache.n_bytes, arena_bytes)
        self._loaded = _Loaded(placed, cache, programs[0], engine, EngineWorker(engine))

    @property
    def _open(self) -> _Loaded:
        """The loaded model. Raises RequestError after `close`."""
        if self._loaded is None:
            raise closed_error()
        return self._loaded

    @property
    def engine(self) -> Engine:
        """The engine, which one thread owns: run nothing on it while requests run."""
        return self._open.engine

    @property
    def worker(self) -> EngineWorker:
        """The thread that owns the engine."""
        return self._open.worker

    @property
    def backend(self) -> api.Backend:
        """The backend that runs the model."""
        return self._open.placed.backend

    @property
    def placed(self) -> placing.Placed:
        """How the model is divided over devices's parts on devices."""
        return self._open.placed

    @property
    def program(self) -> api.Program:
        """The program of sequences up to the plain context."""
        return self._open.program

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer, which goes on working after `close`.

        Raises FormatError when the file's tokenizer is damaged.
        """
        built: Tokenizer | None = self.__dict__.get("_tokenizer")
        return built or self._build("_tokenizer", self._make_tokenizer)

    def _make_tokenizer(self) -> Tokenizer:
        metadata: Mapping[str, Any] = self.file.metadata
        if self._chat_template is not None:  # and none of those that a file may name beside it
            own = {"tokenizer.chat_template": self._chat_template, "tokenizer.chat_templates": []}
            metadata = {**metadata, **own}
        return Tokenizer.from_metadata(metadata, str(self.path))

    def _build(self, name: str, make: Callable[[], T]) -> T:
        """Return the attribute `name`; the first thread to ask makes it, once."""
        _ = self._open
        with self._lazy:
            if name not in self.__dict__:
                self.__dict__[name] = make()
            return cast(T, self.__dict__[name])

    @cached_property
    def sampling(self) -> dict[str, Any]:
        """Arguments of SamplingParams that the file recommends; requests without `params` have
        them."""
        return recommended(self.file.metadata)

    @property
    def template(self) -> ChatTemplate:
        """The model's chat template. Raises TemplateError when it has none."""
        return self._build("_template", lambda: ChatTemplate.from_tokenizer(self.tokenizer))

    # -- generation -----------------------------------------------------------------------------

    def constraint(
        self, kind: Kind, source: str | Mapping[str, Any] | bool | None = None
    ) -> Grammar:
        """Return a constraint: `kind` is "json_schema", "json_object", "regex" or "grammar".

        It may be passed to any number of requests. Raises RequestError when `source` cannot be
        followed, UnsupportedError when the optional dependency llguidance is missing.
        """
        return self._grammars.constraint(kind, source)

    @property
    def _grammars(self) -> Grammars:
        return self._build("_grammar_maker", lambda: Grammars(self.tokenizer, self.spec.vocab))

    @overload
    def generate(  # a str is a sequence of str, and comes first
        self,
        prompt: str | Seq[int],
        params: SamplingParams | None = None,
        *,
        constraint: ConstraintLike = None,
        thinking: Thinking | None = None,
        **sampling: Any,
    ) -> Completion: ...

    @overload
    def generate(
        self,
        prompt: Seq[str] | Seq[Seq[int]],
        params: SamplingParams | None = None,
        *,
        constraint: ConstraintLike = None,
        thinking: Thinking | None = None,
        **sampling: Any,
    ) -> list[Completion]: ...

    def generate(
        self,
        prompt: str | Seq[int] | Seq[str] | Seq[Seq[int]],
        params: SamplingParams | None = None,
        *,
        constraint: ConstraintLike = None,
        thinking: Thinking | None = None,
        **sampling: Any,
    ) -> Completion | list[Completion]:
        """Continue a prompt, or each of several prompts in one batch.

        A prompt is text (special tokens in it stay text, BOS is added where the model wants it) or
        token ids as they are. `sampling` holds fields of SamplingParams, in place of `params` or
        beside it: `generate(prompt, max_tokens=50)`. constraint: what each answer is held to: a
        JSON schema (a dict, its text or a Pydantic model class), or what the method `constraint`
        returns.
        """
        params = sampling_params(params, sampling, self.sampling)
        if is_one_prompt(prompt):
            one = cast("str | Seq[int]", prompt)
            return self._complete([self._request(one, params, constraint, thinking)])[0]
        prompts = cast("Seq[str | Seq[int]]", prompt)
        held = started(constraint, lambda: self._grammars, len(prompts))
        return self._complete(
            [
                self._request(prompt, params, each, thinking)
                for prompt, each in zip(prompts, held, strict=True)
            ]
        )

    def chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        tools: Seq[Mapping[str, Any]] | None = None,
        constraint: ConstraintLike = None,
        thinking: Thinking | None = None,
        **arguments: Any,
    ) -> Completion:
        """Answer a conversation: a list of messages with "role" and "content".

        `constraint` is as in `generate`.

        `arguments` are fields of SamplingParams, in place of `params` or beside it, and arguments
        of the model's template (`enable_thinking`, ...). Raises RequestError for a message that is
        none, TemplateError when the model has no template or the template refuses the messages.
        """
        params = sampling_params(params, take_sampling(arguments, self.template), self.sampling)
        ids = self.render(messages, tools=tools, **arguments)
        return self._complete([self._request(ids, params, constraint, thinking)])[0]

    def stream(
        self,
        prompt: str | Seq[int] | Messages,
        params: SamplingParams | None = None,
        *,
        tools: Seq[Mapping[str, Any]] | None = None,
        constraint: ConstraintLike = None,
        thinking: Thinking | None = None,
        **arguments: Any,
    ) -> Stream:
        """Return an iterator of the answer's chunks, which come as the answer grows.

        A list of messages is rendered by the model's template; `arguments` are those of `chat`. A
        chunk without text comes after each step of a long prompt. `close` of the iterator, or
        dropping it, cancels the request.
        """
        template = self.template if is_conversation(prompt) else None
        params = sampling_params(params, take_sampling(arguments, template), self.sampling)
        if template is not None:
            prompt = self.render(cast(Messages, prompt), tools=tools, **arguments)
        elif not is_one_prompt(prompt) and len(prompt) > 0:
            raise RequestError(
                "a stream has one prompt", "several were given", "call stream for each of them"
            )
        ids = cast("str | Seq[int]", prompt)
        task = StreamTask(self._request(ids, params, constraint, thinking), self.tokenizer)
        worker = self._open.worker
        worker.start(task)
        return Stream(worker, task)

    def render(
        self,
        messages: Messages,
        *,
        tools: Seq[Mapping[str, Any]] | None = None,
        **template_args: Any,
    ) -> list[int]:
        """Return the token ids of a conversation, up to where the answer begins.

        `template_args` are variables for the template (`enable_thinking`, `reasoning_effort`,
        `documents`, ...) and two switches: with `continue_final_message` the prompt ends inside of
        the last message, which is the assistant's, and the answer continues it; with
        `add_generation_prompt=False` it ends after the last message. Control tokens that are
        spelled out in messages, tools or variables stay text.

        Raises TemplateError when the model has no template or the template fails, RequestError for
        a message that is none, switches that contradict each other, or variables that are not plain
        data.
        """
        check_messages(messages, self.template)
        return self.template.encode(self.tokenizer, messages, tools=tools, **template_args)

    def _request(
        self,
        prompt: str | Seq[int],
        params: SamplingParams,
        constraint: ConstraintLike = None,
        thinking: Thinking | None = None,
    ) -> Request:
        """Return `prompt` and its settings as the engine takes them."""
        _ = self._open
        return Request(
            self._ids_of(prompt),
            params,
            self.tokenizer.eog_ids,
            self.dry_breakers(params),
            started(constraint, lambda: self._grammars)[0],
            thinking,
        )

    def _complete(self, requests: list[Request]) -> list[Completion]:
        task = CompletionTask(requests, self.tokenizer)
        self._open.worker.run(task)
        return task.completions()

    def _ids_of(self, text: str | Seq[int]) -> list[int]:
        """Return token ids as they are, or those of a text. Raises TextTooLongError."""
        if isinstance(text, str):
            return self.tokenizer.encode(text, limit=self.context)
        return list(text)

    def dry_breakers(self, params: SamplingParams) -> tuple[tuple[int, ...], ...]:
        """The DRY breakers of a request as token ids; a walk over the vocabulary the first time."""
        if params.dry_multiplier == 0:
            return ()
        return self._breaker_sequences(params.dry_sequence_breakers)

    @property
    def _breaker_sequences(self) -> Callable[[tuple[str, ...]], tuple[tuple[int, ...], ...]]:
        return self._build("_breakers", self._make_breaker_sequences)

    def _make_breaker_sequences(
        self,
    ) -> Callable[[tuple[str, ...]], tuple[tuple[int, ...], ...]]:
        tokenizer = self.tokenizer
        vocabulary = [tokenizer.token_bytes(i) for i in range(tokenizer.n_vocab)]
        encode = partial(tokenizer.encode, add_special=False)
        # Bounded: clients of a server choose them.
        return lru_cache(16)(lambda breakers: breaker_sequences(breakers, vocabulary, encode))

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
        worker = self._open.worker
        prompts = [self._ids_of(text) for text in ([texts] if isinstance(texts, str) else texts)]
        pools = [Pooled(how) for _ in prompts]
        worker.run(EmbeddingTask(prompts, pools))
        rows = [embedding(p.row, dimensions, 2 if normalize else None) for p in pools]
        return np.array(rows, np.float32).reshape(len(rows), dimensions or self.spec.hidden)

    def _prepare_hidden(self, extended: bool) -> api.Program:
        n = self.plan.max_tokens
        plan = _plan(self.backend, hidden_graph(self._graphs[extended]), n, n)
        return self.backend.prepare(plan, self._open.cache)

    # -- scoring --------------------------------------------------------------------------------

    def logits(self, ids: Seq[int]) -> FloatArray:
        """Logits float32 [tokens, vocab] after each token of a prompt."""
        worker, prompt = self._open.worker, list(ids)
        return worker.call(lambda engine: np.concatenate(list(self._score(engine, prompt))))

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
        worker = self._open.worker
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
                "use a longer text or a smaller {window}",
            )
        bos = self.tokenizer.bos_id if self.tokenizer.add_bos else None
        total, count = 0.0, 0
        for i in range(n_windows):
            part = ids[i * window : (i + 1) * window]
            if bos is not None:
                part[0] = bos
            nll, n = worker.call(partial(self._second_half, ids=part))
            total, count = total + nll, count + n
            if progress is not None:
                progress(i + 1, n_windows)
        return float(np.exp(total / count))

    def _second_half(self, engine: Engine, ids: list[int]) -> tuple[float, int]:
        """Return the summed negative log-likelihood of the later half of `ids`, and its length."""
        total, count, row = 0.0, 0, 0
        for logits in self._score(engine, ids):
            for r in range(max(row, len(ids) // 2), min(row + len(logits), len(ids) - 1)):
                x = logits[r - row].astype(np.float64)
                top = x.max()
                total += top + np.log(np.exp(x - top).sum()) - x[ids[r + 1]]
                count += 1
            row += len(logits)
        return total, count

    def _scorer(self, extended: bool) -> api.Program:
        """Return a program that gives logits of every row, beside those of the engine."""
        if extended not in self._scorers:
            n = self.plan.max_tokens
            plan = _plan(self.backend, self._graphs[extended], n, n)
            self._scorers[extended] = self.backend.prepare(plan, self._open.cache)
        return self._scorers[extended]

    def _score(self, engine: Engine, ids: list[int]) -> Iterator[FloatArray]:
        """Yield the logits after each of `ids`, a chunk of rows at a time, in the engine's thread.

        The rows are valid until the next chunk. Raises RequestError.
        """
        if not 0 < len(ids) <= self.context:
            raise RequestError(
                f"cannot score {len(ids)} tokens",
                f"the context holds 1 to {self.context}",
                "score fewer tokens, or load the model with a larger {context}",
            )
        if not 0 <= min(ids) <= max(ids) < self.spec.vocab:
            raise RequestError(
                "cannot score the tokens",
                f"an id lies outside the vocabulary of {self.spec.vocab}",
            )
        pool, program = engine.pool, self._scorer(len(ids) > engine.plain_context)
        blocks = zip(pool.most(len(ids)), pool.available, strict=True)
        if pool.available_slots == 0 or any(most > available for most, available in blocks):
            engine.make_room()
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
                yield program.step(step).copy()

    def close(self) -> None:
        """Free the model's memory; requests that still run end with an error.

        With `cache_dir` the prefix cache is on disk when this returns. Closing twice is allowed.
        """
        loaded, self._loaded = self._loaded, None
        try:
            if loaded is not None:
                loaded.worker.close()
        finally:
            self._scorers.clear()
            self.file.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _plan(
    backend: api.Backend, graph: Graph, max_tokens: int, max_outputs: int, *, draws: bool = False
) -> api.Plan:
    return make_plan(graph, backend, max_tokens=max_tokens, max_outputs=max_outputs, draws=draws)
