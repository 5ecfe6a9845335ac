"""The Python API: load a model, then generate, chat, stream or score.

    from zinc import LLM, SamplingParams

    with LLM() as llm:  # the embedded demo model; pass a path for another
        print(llm.chat([{"role": "user", "content": "Hello!"}]).text)

A thin layer of text over the engine: everything below it works on token ids.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from functools import cached_property
from pathlib import Path
from typing import Any, cast, overload

import numpy as np

from zinc.answers import (
    Chunk,
    Completion,
    CompletionTask,
    ReadoutTask,
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
from zinc.engine.constraint import Thinking
from zinc.engine.engine import Engine
from zinc.engine.load.device_map import BackendChoice
from zinc.engine.load.files import resolve_model
from zinc.engine.load.model import LoadedModel
from zinc.engine.load.options import BATCH_TOKENS, LoadOptions
from zinc.engine.load.planned import plan_model
from zinc.engine.load.weights import Progress
from zinc.engine.readout import Pooled, Pooling, Readout, TextLikelihood, TextLogits, embedding
from zinc.engine.request import Request
from zinc.engine.sampling import SamplingParams, recommended
from zinc.engine.structured import ConstraintLike, Grammar, start_constraints
from zinc.engine.worker import EngineWorker
from zinc.grammar.kinds import Kind
from zinc.model_text import ModelText
from zinc.models.parts.context import RopeScaling
from zinc.ops.values import FloatArray
from zinc.plan.device_map import DeviceMap
from zinc.tokenizer import Tokenizer

__all__ = ["LLM", "Chunk", "Completion", "Stream"]

Messages = Seq[Mapping[str, Any]]


class LLM:
    """A model ready to run.

    model: path of a GGUF file, or a name such as "qwen3:8b" or "org/repo:Q4_K_M" whose file is on
        this machine (docs/models.md); None is the embedded demo model.
    backend: "cpu", "vulkan", or "auto": a GPU that holds the model and passes a self-test, else the
        CPU (docs/placement.md). `LLM.choice.reason` says what was chosen and why.
    threads: CPU threads; default, one for each core that this process may use.
    device_map: which layers are on the device, which on the CPU (docs/placement.md); default, as
        many on the device as fit. `LLM.choice.note` says so if some do not.
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
        batch_tokens: int = BATCH_TOKENS,
        prefix_cache: bool = True,
        cache_bytes: int | None = None,
        swap_bytes: int | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        pooling: str | None = None,
        chat_template: str | None = None,
        options: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> None:
        path = None if model is None else resolve_model(model)
        folder = None if cache_dir is None else Path(cache_dir).expanduser()
        load = LoadOptions(
            path=path, backend=backend, threads=threads, device_map=device_map, context=context,
            rope=rope, kv_dtype=kv_dtype, batch_tokens=batch_tokens, prefix_cache=prefix_cache,
            cache_bytes=cache_bytes, swap_bytes=swap_bytes, cache_dir=folder, pooling=pooling,
            chat_template=chat_template, backend_options=options or {},
        )  # fmt: skip
        self._load(load, progress)

    @classmethod
    def from_options(cls, options: LoadOptions, progress: Progress | None = None) -> LLM:
        """Load the model that `options` name. Raises as the constructor does."""
        llm = cls.__new__(cls)
        llm._load(options, progress)
        return llm

    def _load(self, options: LoadOptions, progress: Progress | None) -> None:
        asked = None if options.pooling is None else Pooling.named(options.pooling)
        planned = plan_model(options)
        metadata = planned.file.metadata
        if options.chat_template is not None or "tokenizer.chat_template" in metadata:
            renderer.SHARED.start()  # it starts while weights are loaded
        self.model = LoadedModel(planned, progress)
        self.file, self.spec, self.path = planned.file, planned.spec, planned.file.path
        self.plan, self.kv_dtype = self.model.plan, self.model.kv_dtype
        self.context, self.memory = self.model.context, self.model.memory
        self.pooling = asked or Pooling.of_file(metadata.get(f"{self.spec.arch}.pooling_type"))
        self._text = ModelText(
            self.file, self.spec.vocab, options.chat_template, self.model.check_open
        )

    @cached_property
    def sampling(self) -> dict[str, Any]:
        """Arguments of SamplingParams that the file recommends, for requests without `params`."""
        return recommended(self.file.metadata)

    @property
    def engine(self) -> Engine:
        """The engine, which one thread owns: run nothing on it while requests run."""
        return self.model.engine

    @property
    def worker(self) -> EngineWorker:
        """The thread that owns the engine."""
        return self.model.worker

    @property
    def backend(self) -> api.Backend:
        """The backend that runs the model."""
        return self.model.backend

    @property
    def choice(self) -> BackendChoice:
        """The backend with the reason why it was chosen, and how the model is divided."""
        return self.model.choice

    @property
    def program(self) -> api.Program:
        """The program of sequences up to the plain context."""
        return self.model.program

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer. Raises FormatError if the file's tokenizer is damaged."""
        return self._text.tokenizer

    @property
    def template(self) -> ChatTemplate:
        """The model's chat template. Raises TemplateError if it has none."""
        return self._text.template

    # -- generation -----------------------------------------------------------------------------

    def constraint(
        self, kind: Kind, source: str | Mapping[str, Any] | bool | None = None
    ) -> Grammar:
        """Return a constraint: `kind` is "json_schema", "json_object", "regex" or "grammar".

        It may be passed to any number of requests. Raises RequestError when `source` cannot be
        followed, UnsupportedError when the optional dependency llguidance is missing.
        """
        return self._text.grammars.constraint(kind, source)

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
        held = start_constraints(constraint, lambda: self._text.grammars, len(prompts))
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
        worker = self.model.worker
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
        self.model.check_open()
        return Request(
            self._ids_of(prompt),
            params,
            self.tokenizer.eog_ids,
            self.dry_breakers(params),
            constraint=start_constraints(constraint, lambda: self._text.grammars)[0],
            thinking=thinking,
        )

    def _complete(self, requests: list[Request]) -> list[Completion]:
        task = CompletionTask(requests, self.tokenizer)
        self.model.worker.run(task)
        return task.completions()

    def _ids_of(self, text: str | Seq[int]) -> list[int]:
        """Return token ids as they are, or those of a text. Raises TextTooLongError."""
        if isinstance(text, str):
            return self.tokenizer.encode(text, limit=self.context)
        return list(text)

    def dry_breakers(self, params: SamplingParams) -> tuple[tuple[int, ...], ...]:
        """Return the DRY breakers of `params` as token ids; none if DRY is off."""
        if params.dry_multiplier == 0:
            return ()
        return self._text.dry_breakers(params.dry_sequence_breakers)

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
        worker = self.model.worker
        prompts = [self._ids_of(text) for text in ([texts] if isinstance(texts, str) else texts)]
        pools = [Pooled(how) for _ in prompts]
        worker.run(ReadoutTask(prompts, pools))
        rows = [embedding(p.row, dimensions, 2 if normalize else None) for p in pools]
        return np.array(rows, np.float32).reshape(len(rows), dimensions or self.spec.hidden)

    # -- scoring --------------------------------------------------------------------------------

    def logits(self, ids: Seq[int]) -> FloatArray:
        """Return the logits after each token of `ids`, float32 [tokens, vocab].

        Raises RequestError if there are more tokens than the context holds, or an unknown id.
        """
        readout = TextLogits()
        self._score(list(ids), readout)
        return readout.logits

    def perplexity(
        self,
        text: str | Seq[int],
        window: int = 512,
        progress: Progress | None = None,
    ) -> float:
        """exp of the mean negative log-likelihood over a text, in windows of so many tokens.

        Windows do not overlap; each begins with BOS in place of its first token if the model wants
        one, and only its second half is scored, so that every scored token has at least
        window / 2 tokens before it. A tail shorter than a window is left out, as llama.cpp does.
        Raises RequestError when the text is shorter than one window.
        """
        self.model.check_open()
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
            scored = TextLikelihood(first_scored=window // 2)
            self._score(part, scored)
            total, count = total + scored.total, count + scored.count
            if progress is not None:
                progress(i + 1, n_windows)
        return float(np.exp(total / count))

    def _score(self, ids: list[int], readout: Readout) -> None:
        """Run `ids` without an answer; `readout` takes the rows. Raises RequestError."""
        worker = self.model.worker
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
        worker.run(ReadoutTask([ids], [readout]))

    def close(self) -> None:
        """Free the model's memory; requests that still run end with an error.

        With `cache_dir` the prefix cache is on disk when this returns. Closing twice is allowed.
        """
        self.model.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
