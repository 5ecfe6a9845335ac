"""From parsed options to a loaded model or a bound plan, with progress and notes on stderr.

Commands that talk use an `LLM`. Those that look at single launches (`bench`, `verify`) bind a plan
themselves, to feed it steps of their own making.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from zinc import models
from zinc.backends import api
from zinc.cli import usage
from zinc.core.errors import MemoryLimitError, RequestError
from zinc.core.progress import ProgressBar
from zinc.engine import loader, placing
from zinc.engine.sampling import SamplingParams
from zinc.formats.gguf import GGUFFile
from zinc.llm import LLM
from zinc.models.parts.spec import ModelSpec
from zinc.ops.graph import Graph
from zinc.ops.step import IntArray, Step
from zinc.plan.planner import make_plan

BATCH_TOKENS = loader.BATCH_TOKENS

log = logging.getLogger("zinc.loading")


def open_llm(args: argparse.Namespace) -> LLM:
    path = usage.model_path(args)
    with ProgressBar(f"loading {path.name}") as progress:
        llm = LLM(
            path,
            backend=usage.backend_name(args),
            threads=usage.threads(args),
            device_map=usage.device_map(args),
            context=args.context,
            rope=usage.rope_scaling(args),
            kv_dtype=args.kv_dtype,
            chat_template=usage.chat_template(args),
            options=usage.backend_options(args),
            progress=progress,
        )
    say_placed(llm.placed)
    log.info(
        "%s, plan %s, context %d, %d bytes", llm.backend.describe(), llm.plan.hash, llm.context,
        llm.memory.total_bytes,
    )  # fmt: skip
    return llm


def sampling_params(args: argparse.Namespace, llm: LLM | None = None) -> SamplingParams:
    """Return what the options say, else the model's file, else the defaults.

    Raises RequestError, which names the option, when a value is out of range.
    """
    given = {**(llm.sampling if llm else {}), **usage.sampler_arguments(args)}
    try:
        return SamplingParams(max_tokens=getattr(args, "max_tokens", None), **given)
    except RequestError as error:
        name, _, rest = error.what.partition(" ")
        option = f"--{name.replace('_', '-')}" if name in given else name
        raise RequestError(f"{option} {rest}", error.why, error.hint) from None


@contextmanager
def context_from(options: str) -> Iterator[None]:
    """Name `options` as what to make smaller in an error about the context.

    For commands that have no --context and choose one themselves.
    """
    try:
        yield
    except (RequestError, MemoryLimitError) as error:
        if not error.what.startswith("a context of "):
            raise
        raise type(error)(error.what, error.why, f"choose a smaller {options}") from None


def create_backend(args: argparse.Namespace) -> api.Backend:
    return loader.create_backend(
        usage.backend_name(args), usage.threads(args), usage.backend_options(args)
    )


def place(
    args: argparse.Namespace,
    device: api.Backend,
    file: GGUFFile,
    spec: ModelSpec,
    graph: Graph,
    wanted: placing.Wanted,
) -> api.Backend:
    """Return the backend for a model: the device, the CPU, or both.

    The options decide, else the device's memory. A note on stderr says what runs on the CPU.
    """
    threads, options = usage.threads(args), usage.backend_options(args)
    placed = placing.place(
        device,
        lambda: loader.create_backend("cpu", threads, options),
        file,
        spec,
        [graph],
        wanted,
        usage.device_map(args),
    )
    say_placed(placed)
    return placed.backend


def say_placed(placed: placing.Placed) -> None:
    if placed.note:
        print(f"zinc: {placed.note}", file=sys.stderr)


@dataclass(frozen=True, slots=True)
class Bound:
    """A plan with its weights and cache on a backend, for some sequences of `context` tokens."""

    spec: ModelSpec
    plan: api.Plan
    backend: api.Backend
    program: api.Program
    cache: api.Cache
    context: int
    n_sequences: int = 1

    @property
    def kv_dtype(self) -> str:
        return self.cache.layout.kv_dtype

    def step(self, ids: Sequence[int], position: int, *, outputs: int, sequence: int = 0) -> Step:
        """Return a step of `ids` from `position` on, with logits for the last `outputs` ids."""
        return self._step(np.array([ids], np.int32), position, outputs, sequence)

    def together(self, ids: Sequence[int], position: int) -> Step:
        """Return a step of one token for each sequence at `position`, with logits for all."""
        return self._step(np.array(ids, np.int32)[:, None], position, 1, 0)

    def _step(self, ids: IntArray, position: int, outputs: int, first: int) -> Step:
        """Return a step for `ids` [sequences, tokens] of the sequences from `first` on."""
        n, tokens = ids.shape
        if position + tokens > self.context:
            last = position + tokens
            raise ValueError(f"position {last} lies beyond the context {self.context}")
        each = -(-self.context // self.cache.layout.block_tokens)
        rows = np.arange(first, first + n, dtype=np.int32)[:, None]
        tables = rows * each + np.arange(each, dtype=np.int32)
        starts = np.arange(n + 1, dtype=np.int32) * tokens
        positions = np.arange(position, position + tokens, dtype=np.int32)
        return Step(
            ids=ids.reshape(-1),
            positions=np.tile(positions, n),
            sequence=np.repeat(np.arange(n, dtype=np.int32), tokens),
            output_rows=(starts[1:, None] - np.arange(outputs, 0, -1)).reshape(-1).astype(np.int32),
            seq_start=starts,
            state_slot=np.arange(first, first + n, dtype=np.int32),
            tables=(tables,) * len(self.cache.layout.n_blocks),
        )


def bind(
    file: GGUFFile,
    backend: api.Backend,
    context: int,
    kv_dtype: str,
    *,
    plan: api.Plan | None = None,
    max_outputs: int = 1,
    n_sequences: int = 1,
) -> Bound:
    """Load a model for steps of up to BATCH_TOKENS tokens.

    `context` is that of each sequence; `plan` is another backend's plan to run instead of its own.
    """
    spec, graph = models.load(file)
    if plan is None:
        plan = make_plan(
            graph, backend, max_tokens=BATCH_TOKENS, max_outputs=max_outputs, draws=True
        )
    kv_dtype = loader.resolve_kv_dtype(kv_dtype, backend.name, plan.states)
    for memory in placing.budgets(file, [plan], backend):
        taken = memory.taken + loader.state_bytes_per_sequence(memory.states)
        loader.choose_context(spec, memory.states, kv_dtype, context, memory.available, taken)
    with ProgressBar(f"loading {file.path.name}") as progress:
        loader.upload(file, plan, backend, progress)
    log.info("%s, plan %s, context %d", backend.describe(), plan.hash, context)
    whole_blocks = -(-context // loader.BLOCK_TOKENS) * loader.BLOCK_TOKENS
    layout = loader.cache_layout(plan.states, n_sequences * whole_blocks, kv_dtype, n_sequences)
    cache = backend.allocate(plan.states, layout)
    program = backend.prepare(plan, cache)
    return Bound(spec, plan, backend, program, cache, context, n_sequences)
