"""The Python API: load a model, then generate, chat, stream, embed or score.

    from zinc import LLM, SamplingParams

    with LLM() as llm:  # the embedded demo model; pass a path for another
        print(llm.chat([{"role": "user", "content": "Hello!"}]).text)

It turns text into token ids and back. The engine below it works on token ids only.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast, overload

import numpy as np

from zinc.backends import api
from zinc.chat import renderer
from zinc.chat.template import ChatTemplate
from zinc.core.errors import RequestError, with_article
from zinc.engine.constraint import Thinking
from zinc.engine.engine import Engine
from zinc.engine.limits import check_embeds, check_generates, check_ranks
from zinc.engine.load import auto
from zinc.engine.load.device_map import BackendChoice
from zinc.engine.load.files import resolve_model
from zinc.engine.load.model import LoadedAdapter, LoadedModel
from zinc.engine.load.options import LoadOptions
from zinc.engine.load.planning import plan_model
from zinc.engine.load.settings import settings_of
from zinc.engine.load.weights import Progress
from zinc.engine.readout import Pooled, Pooling, embeddings
from zinc.engine.request import Request
from zinc.engine.sampling import SamplingParams, recommended
from zinc.engine.structured import ConstraintLike, Grammar, start_constraints
from zinc.engine.worker import EngineWorker
from zinc.formats.gguf import GGUFFile
from zinc.grammar.kinds import Kind
from zinc.llm import scoring
from zinc.llm.answers import (
    Chunk,
    Completion,
    CompletionTask,
    RankedDocument,
    ReadoutTask,
    Stream,
    StreamTask,
    ranked,
)
from zinc.llm.arguments import (
    LoraFiles,
    adapter_options,
    check_file,
    check_load,
    check_messages,
    check_number,
    check_scales,
    check_tools,
    is_conversation,
    is_one_prompt,
    prompt_ids,
    sampling_params,
    take_sampling,
    with_text,
)
from zinc.llm.conversation import ChatPrompt, has_calls, is_openai_form
from zinc.llm.model_text import ModelText, start_tokenizer
from zinc.models.parts.context import RopeScaling
from zinc.models.parts.projection import projection
from zinc.models.parts.ranking import rank_head
from zinc.ops.values import FloatArray
from zinc.plan.device_map import DeviceMap
from zinc.tokenizer import Tokenizer

__all__ = ["LLM", "Chunk", "Completion", "Stream"]

Messages = Seq[Mapping[str, Any]]

log = logging.getLogger("zinc.loading")


class LLM:
    """A loaded model that generates, chats, embeds and ranks.

    model: path of a GGUF file or a Modelfile, or a name such as "qwen3:8b" or "org/repo:Q4_K_M"
        whose file is on this machine (docs/models.md); None is the embedded demo model.
    backend: "cpu", "vulkan", "cuda", or "auto": a GPU that can hold the model and passes a
        self-test, else the CPU (docs/placement.md). `LLM.choice.reason` is the choice with its
        reason.
    threads: CPU threads (default: one for each core that this process may use).
    device_map: which layers run on the device, which on the CPU (docs/placement.md; default: as
        many as fit on the device). `LLM.choice.note` says what runs on the CPU.
    context: maximum number of tokens in prompt and answer together (default: the model's context,
        or as much of it as fits in memory).
    rope: RoPE scaling, for a longer context than the file states. Sequences within the original
        context run without it.
    kv_dtype: "f16", "q8_0", "q4_0" (CPU; costs quality, see docs/numerics.md), or "auto": q8_0 on
        the CPU, f16 elsewhere.
    batch_tokens: maximum number of tokens in a step (default: 512, or as many as several GPUs need
        to work at the same time, see docs/placement.md).
    prefix_cache: reuse the KV cache of earlier prompts for prompts with the same prefix.
    cache_bytes: limit of the prefix cache (default: all cache memory that running requests leave
        free).
    cache_dir: folder that keeps the prefix cache across restarts. It is written while requests run.
        It contains the text of prompts, and only its owner can read it.
    swap_bytes: host memory to which preempted requests are swapped (default: a share of the free
        memory). Requests that do not fit are recomputed.
    speculate: source of drafts for speculative decoding: "suffix", "mtp", "draft", "off", or
        "auto": every source, if drafts do not change answers (docs/speculation.md).
    draft: a smaller model with the same vocabulary that drafts tokens.
    lora: GGUF files of LoRA adapters: one path, several, or a dict with the scale of each
        (docs/lora.md). A request that names no adapters uses all of them with these scales.
    pooling: how `embed` pools the hidden states of a text (default: as the file says, or "mean").
    chat_template: Jinja source that replaces the file's template.
    options: further options of the backend, see `zinc.backends.api.create`.
    progress: called with the number of bytes loaded and the total.

    Thread-safe: requests of several threads run in the same steps. After `close`, methods raise
    RequestError. Raises a `ZincError` if the file is damaged or unsupported, or memory is short.
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
        batch_tokens: int | None = None,
        prefix_cache: bool = True,
        cache_bytes: int | None = None,
        swap_bytes: int | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        speculate: str = "auto",
        draft: str | os.PathLike[str] | None = None,
        lora: LoraFiles = None,
        pooling: str | None = None,
        chat_template: str | None = None,
        options: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> None:
        check_file("model", model, "the path of a model file, or a name such as qwen3:8b")
        check_file("draft", draft, "the path of a model file, or a name such as qwen3:8b")
        check_file("cache_dir", cache_dir, "the path of a folder")
        check_load(rope, device_map, options, prefix_cache, chat_template, progress)
        settings = settings_of(model)
        for note in settings.notes:
            log.warning("%s", note)
        folder = None if cache_dir is None else Path(cache_dir).expanduser()
        load = LoadOptions(
            path=None if model is None else resolve_model(model), settings=settings,
            backend=backend, threads=threads, device_map=device_map, context=context, rope=rope,
            kv_dtype=kv_dtype, batch_tokens=batch_tokens, prefix_cache=prefix_cache,
            cache_bytes=cache_bytes, swap_bytes=swap_bytes, cache_dir=folder, pooling=pooling,
            chat_template=chat_template, backend_options=options or {}, speculate=speculate,
            draft=None if draft is None else resolve_model(draft), lora=adapter_options(lora),
        )  # fmt: skip
        self._load(load, progress)

    @classmethod
    def from_options(cls, options: LoadOptions, progress: Progress | None = None) -> LLM:
        """Load the model that `options` describe. Raises as the constructor does."""
        llm = cls.__new__(cls)
        llm._load(options, progress)
        return llm

    def _load(self, options: LoadOptions, progress: Progress | None) -> None:
        asked = None if options.pooling is None else Pooling.named(options.pooling)
        auto.open_early(options.backend, options.backend_options)
        file = GGUFFile.open(resolve_model(options.path))
        # Takes long with many tokens, and needs neither the device nor the weights.
        tokenizer = start_tokenizer(file, options.chat_template)
        planned = plan_model(options, file=file)
        metadata = planned.file.metadata
        if options.chat_template is not None or "tokenizer.chat_template" in metadata:
            renderer.SHARED.start()  # starts while weights are loaded
        self.model = LoadedModel(planned, progress)
        self.settings = options.settings
        self.file, self.spec, self.path = planned.file, planned.spec, planned.file.path
        self.plan, self.kv_dtype = self.model.plan, self.model.kv_dtype
        self.context, self.memory = self.model.context, self.model.memory
        self.pooling = asked or Pooling.of_file(metadata.get(f"{self.spec.arch}.pooling_type"))
        self._rank_head = rank_head(self.file, self.spec) if self.spec.ranks else None
        self._projection = projection(self.file, self.spec)
        self._text = ModelText(self.spec.vocab, tokenizer, self.model.check_open)

    @cached_property
    def sampling(self) -> dict[str, Any]:
        """Arguments of SamplingParams for requests without `params`.

        Settings of a Modelfile override those that the model file recommends.
        """
        return {**recommended(self.file.metadata), **self.settings.sampling}

    @property
    def engine(self) -> Engine:
        """The engine. One thread owns it: do not call it while requests run."""
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
        """The backend, the reason why it was chosen, and how the model is divided."""
        return self.model.choice

    @property
    def program(self) -> api.Program:
        """The program of sequences up to the plain context."""
        return self.model.program

    @property
    def adapters(self) -> tuple[LoadedAdapter, ...]:
        """The LoRA adapters with their ids and scales."""
        return self.model.adapters

    def set_lora_scales(self, scales: Mapping[int, float]) -> None:
        """Set the scales of LoRA adapters for later requests; 0 for those left out.

        Raises RequestError for an id without an adapter.
        """
        check_scales("scales", scales)
        self.model.set_adapter_scales(scales)

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer. Raises FormatError if the file's tokenizer is damaged."""
        return self._text.tokenizer

    @property
    def template(self) -> ChatTemplate:
        """The model's chat template.

        Raises TemplateError if it has none, and UnsupportedError if it generates no text.
        """
        check_generates(self.spec.kind)
        return self._text.template

    # -- generation -----------------------------------------------------------------------------

    def constraint(
        self, kind: Kind, source: str | Mapping[str, Any] | bool | None = None
    ) -> Grammar:
        """Return a constraint for the answers of any number of requests.

        kind: "json_schema", "json_object", "regex" or "grammar". Raises RequestError if zinc cannot
        follow `source`, UnsupportedError if the optional package llguidance is missing.
        """
        return self._text.grammars.constraint(kind, source)

    @overload
    def generate(  # first, because a str is also a sequence of str
        self,
        prompt: str | Seq[int],
        params: SamplingParams | None = None,
        *,
        constraint: ConstraintLike = None,
        thinking: Thinking | None = None,
        lora: Mapping[int, float] | None = None,
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
        lora: Mapping[int, float] | None = None,
        **sampling: Any,
    ) -> list[Completion]: ...

    def generate(
        self,
        prompt: str | Seq[int] | Seq[str] | Seq[Seq[int]],
        params: SamplingParams | None = None,
        *,
        constraint: ConstraintLike = None,
        thinking: Thinking | None = None,
        lora: Mapping[int, float] | None = None,
        **sampling: Any,
    ) -> Completion | list[Completion]:
        """Continue a prompt, or each of several prompts in one batch.

        prompt: text or token ids. Special tokens in text stay text, and BOS is added if the model
        uses it. constraint: the form of each answer: a JSON schema (a dict, its text or a Pydantic
        model class), or a result of the method `constraint`. lora: scales of LoRA adapters by
        id, 0 for those left out (default: those of `adapters`). sampling: fields of SamplingParams,
        instead of `params` or to override it, as in `generate(prompt, max_tokens=50)`.
        """
        params = sampling_params(params, sampling, self.sampling)
        if is_one_prompt(prompt):
            one = cast("str | Seq[int]", prompt)
            return self._complete([self._request(one, params, constraint, thinking, lora)])[0]
        prompts = cast("Seq[str | Seq[int]]", prompt)
        held = start_constraints(constraint, lambda: self._text.grammars, len(prompts))
        return self._complete(
            [
                self._request(prompt, params, each, thinking, lora)
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
        lora: Mapping[int, float] | None = None,
        **arguments: Any,
    ) -> Completion:
        """Answer a conversation: a list of messages with "role" and "content".

        tools: functions that the model may call, in the form of OpenAI's API. The calls are in
        `Completion.tool_calls`. If the template has no place for tools, the system prompt describes
        them. constraint, lora: as in `generate`. arguments: fields of SamplingParams, instead of
        `params` or to override it, and arguments of the model's template (`enable_thinking`, ...).

        Raises RequestError for a malformed message, UnsupportedError for an image or other media,
        and TemplateError if the model has no template or the template refuses the messages.
        """
        params = sampling_params(params, take_sampling(arguments, self.template), self.sampling)
        prompt = self._prompt(messages, tools, arguments)
        request = self._request(prompt.ids, params, constraint, thinking, lora)
        answer = self._complete([request])[0]
        return replace(answer, message=prompt.message(answer.token_ids, params.stop))

    def stream(
        self,
        prompt: str | Seq[int] | Messages,
        params: SamplingParams | None = None,
        *,
        tools: Seq[Mapping[str, Any]] | None = None,
        constraint: ConstraintLike = None,
        thinking: Thinking | None = None,
        lora: Mapping[int, float] | None = None,
        **arguments: Any,
    ) -> Stream:
        """Return an iterator of the answer's chunks, which arrive while the answer grows.

        A list of messages is rendered by the model's template; `tools` and `arguments` are those of
        `chat`. Each step of a long prompt yields a chunk without text. Closing or dropping the
        iterator cancels the request.
        """
        template = self.template if is_conversation(prompt) else None
        params = sampling_params(params, take_sampling(arguments, template), self.sampling)
        read: Callable[[Seq[int]], dict[str, Any]] | None = None
        if template is not None:
            rendered = self._prompt(cast(Messages, prompt), tools, arguments)
            prompt, read = rendered.ids, partial(rendered.message, stop=params.stop)
        elif not is_one_prompt(prompt) and len(prompt) > 0:
            raise RequestError(
                "a stream has one prompt", "several were given", "call stream for each of them"
            )
        ids = cast("str | Seq[int]", prompt)
        request = self._request(ids, params, constraint, thinking, lora)
        task = StreamTask(request, self.tokenizer)
        worker = self.model.worker
        worker.start(task)
        return Stream(worker, task, read)

    def render(
        self,
        messages: Messages,
        *,
        tools: Seq[Mapping[str, Any]] | None = None,
        **template_args: Any,
    ) -> list[int]:
        """Return the token ids of a conversation, up to the start of the answer.

        The system prompt and messages of a Modelfile come first, unless the conversation has its
        own system prompt.

        template_args: variables for the template (`enable_thinking`, `reasoning_effort`,
        `documents`, ...) and two switches. With `continue_final_message`, the prompt ends inside
        the last message, an assistant message that the answer continues. With
        `add_generation_prompt=False` it ends after the last message. Control tokens that are
        spelled out in messages, tools or variables stay text.

        Conversations with tools are adapted to the template as in the server: arguments of calls
        may be JSON text or a dict, and a template without a place for tools gets them as text.

        Raises TemplateError if the model has no template or the template fails. Raises RequestError
        for a malformed message, contradicting switches, or variables that are not plain data, and
        UnsupportedError for an image or other media.
        """
        return self._prompt(messages, tools, template_args).ids

    def _prompt(
        self,
        messages: Messages,
        tools: Seq[Mapping[str, Any]] | None,
        variables: Mapping[str, Any],
    ) -> ChatPrompt:
        """Return a conversation as a prompt. Raises as `render` does."""
        template, format = self.template, self.template.format
        check_messages(messages, template)
        check_tools(tools)
        messages = self.settings.conversation(with_text(messages, template))
        if tools or has_calls(messages):
            style = self._text.style(for_tools=bool(tools))
            template, format = style.template, style.format
            if is_openai_form(messages) or (tools and not style.traits.tools):
                messages = style.prepare(messages, tools or ())
        return ChatPrompt.of(self.tokenizer, template, format, messages, tools, variables)

    def _request(
        self,
        prompt: str | Seq[int],
        params: SamplingParams,
        constraint: ConstraintLike = None,
        thinking: Thinking | None = None,
        lora: Mapping[int, float] | None = None,
    ) -> Request:
        """Return `prompt` and its settings as a request to the engine."""
        self.model.check_open()
        check_scales("lora", lora)
        if not isinstance(thinking, Thinking | None):
            raise RequestError(
                f"thinking is {thinking!r}",
                "it takes the markers of reasoning, a Thinking",
                "use enable_thinking=True or False to turn reasoning on or off",
            )
        return Request(
            self._ids_of(prompt),
            params,
            self.tokenizer.eog_ids,
            self.dry_breakers(params),
            constraint=start_constraints(constraint, lambda: self._text.grammars)[0],
            thinking=thinking,
            adapters=self.model.adapter_use(lora),
        )

    def _complete(self, requests: list[Request]) -> list[Completion]:
        task = CompletionTask(requests, self.tokenizer)
        self.model.worker.run(task)
        return task.completions()

    def _ids_of(self, text: str | Seq[int]) -> list[int]:
        """Return token ids unchanged, or the ids of a text. Raises TextTooLongError."""
        if isinstance(text, str):
            return self.tokenizer.encode(text, limit=self.context)
        return prompt_ids(text)

    def _ids_of_all(self, texts: Seq[str | Seq[int]]) -> list[list[int]]:
        """Return `_ids_of` for each of `texts`."""
        plain = [text for text in texts if isinstance(text, str)]
        if len(plain) == len(texts):
            return self.tokenizer.encode_all(plain, limit=self.context)
        return [self._ids_of(text) for text in texts]

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
        """Return embeddings of texts or token ids, float32 [texts, dimensions]. A str is one text.

        pooling: "mean", "cls" (the first row) or "last" of the rows after the final norm; the
        default is `LLM.pooling`. dimensions: cut the embeddings to this length. normalize: scale
        them to length 1. Raises RequestError if a text is longer than the context.
        """
        check_embeds(self.spec.kind)
        how = self.pooling if pooling is None else Pooling.named(pooling)
        if how is Pooling.NONE:
            raise RequestError(
                "texts cannot be embedded without pooling",
                "an embedding is one vector per text",
                "choose mean, cls or last",
            )
        check_number("dimensions", dimensions)
        if not isinstance(texts, Iterable):
            raise RequestError(f"texts is {with_article(texts)}", "it takes a text or several")
        worker = self.model.worker
        prompts = self._ids_of_all([texts] if isinstance(texts, str) else list(texts))
        pools = [self.text_pool(how) for _ in prompts]
        worker.run(ReadoutTask(prompts, pools, self.model.adapter_use()))
        if not pools:
            return np.empty((0, dimensions or self.n_dimensions), np.float32)
        return embeddings(pools, dimensions, 2 if normalize else None)

    @property
    def n_dimensions(self) -> int:
        """Number of dimensions of an embedding."""
        return self.spec.hidden if self._projection is None else self._projection.cols

    def text_pool(self, pooling: Pooling | None = None) -> Pooled:
        """Return the readout that makes the embedding of a text; `LLM.pooling` is the default."""
        return Pooled(self.pooling if pooling is None else pooling, self._projection)

    # -- reranking ------------------------------------------------------------------------------

    def rerank(
        self, query: str, documents: Seq[str], *, top_n: int | None = None
    ) -> list[RankedDocument]:
        """Return the documents that are most relevant to a query, the best first.

        top_n: maximum number to return (default: all). Scores come from the model: some models give
        probabilities, others unbounded numbers. Raises UnsupportedError if the model is not
        a reranker, and RequestError if a query and a document are longer than the context.
        """
        check_ranks(self.spec.kind)
        if top_n is not None and top_n < 1:
            raise RequestError(f"top_n is {top_n}", "it must be at least 1")
        worker = self.model.worker
        pairs = [self.encode_pair(query, each) for each in documents]
        pools = [self.rank_pool() for _ in pairs]
        worker.run(ReadoutTask(pairs, pools, self.model.adapter_use()))
        return ranked([self.rank_score(pool) for pool in pools], top_n)

    def encode_pair(self, query: str, document: str) -> list[int]:
        """Return the token ids of a query and a document. Raises TextTooLongError."""
        return self.tokenizer.encode_pair(query, document, limit=self.context)

    def rank_pool(self) -> Pooled:
        """Return the readout that takes the row of a query and a document that the head reads."""
        assert self._rank_head is not None
        return Pooled(Pooling(self._rank_head.pooling))

    def rank_score(self, pool: Pooled) -> float:
        """Return the score of a query and a document that have run."""
        assert self._rank_head is not None
        return self._rank_head.score(pool.row)

    # -- scoring --------------------------------------------------------------------------------

    def logits(self, ids: Seq[int]) -> FloatArray:
        """Return the logits after each token of `ids`, float32 [tokens, vocab].

        Raises RequestError if there are more tokens than the context holds, or an unknown id.
        """
        return scoring.logits(self.model, prompt_ids(ids, "ids", "a list of token ids"))

    def perplexity(
        self,
        text: str | Seq[int],
        window: int = 512,
        progress: Progress | None = None,
    ) -> float:
        """Return exp of the mean negative log-likelihood of a text, in windows of `window` tokens.

        Windows do not overlap. If the model uses BOS, it replaces the first token of each window.
        Only the second half of a window is scored, so every scored token has at least window / 2
        tokens before it. A tail shorter than a window is left out, as in llama.cpp. Raises
        RequestError if the text is shorter than one window.
        """
        self.model.check_open()
        check_number("window", window)
        ids = self.tokenizer.encode(text) if isinstance(text, str) else prompt_ids(text, "text")
        bos = self.tokenizer.bos_id if self.tokenizer.add_bos else None
        return scoring.perplexity(self.model, ids, window, bos, progress)

    def close(self) -> None:
        """Free the model's memory; running requests end with an error.

        With `cache_dir`, the prefix cache is on disk when this returns. Closing twice is allowed.
        """
        self.model.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
