"""Draft models: loaded beside the model whose tokens they draft.

A draft model runs on a backend of its own, because its weights have the names of the model's. Its
cache has room for one context of the model, which all sequences share.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from zinc.backends.api import Backend, CacheLayout
from zinc.backends.plans import weights_of
from zinc.engine.cache_layout import (
    cache_bytes,
    cache_groups,
    cache_layout,
    state_bytes_per_sequence,
)
from zinc.engine.load.options import LoadOptions
from zinc.engine.load.settings import NO_SETTINGS
from zinc.engine.load.weights import upload
from zinc.engine.speculative.draft_model import ModelDrafter
from zinc.engine.speculative.speculation import MOST_RECURRENT_ROWS
from zinc.kv import CachePool
from zinc.ops.values import RecurrentState

if TYPE_CHECKING:
    from zinc.engine.load.planned import PlannedModel

# Most tokens of a step: a longer text is read in several, between those of the model.
_STEP_TOKENS = 128
# Sequences with recurrent states, and checkpoints of them.
_STATE_SLOTS = 8


def draft_options(options: LoadOptions, path: Path, backend: Backend) -> LoadOptions:
    """Return the options that load a draft model from `path`, for a model that runs on `backend`.

    options: of that model. Recurrent states can be rolled back after rejected tokens.
    """
    split = backend.split
    device = backend if split is None else split.devices[0]
    own = {} if split is None or split.memories[0] == device.name else {"device": split.memories[0]}
    return replace(
        options,
        backend_options={**options.backend_options, **own},
        path=path,
        settings=NO_SETTINGS,
        backend=device.name,
        device_map=None,
        context=None,
        rope=None,
        batch_tokens=_STEP_TOKENS,
        max_outputs=None,
        sequences=None,
        speculate="off",
        draft=None,
        rollback=MOST_RECURRENT_ROWS,
        nextn=False,
        lora=(),
    )


def draft_layout(draft: PlannedModel, context: int) -> CacheLayout:
    """Return the layout of the cache of a draft model, for a model with a context of `context`."""
    tokens = min(context, draft.spec.context)
    return cache_layout(draft.states, tokens, draft.kv_dtype, _STATE_SLOTS, _STEP_TOKENS)


def draft_cache_bytes(draft: PlannedModel, context: int) -> int:
    """Return the bytes of the cache of a draft model, for a model with a context of `context`."""
    keys = cache_bytes(draft.states, draft_layout(draft, context))
    return keys + _STATE_SLOTS * state_bytes_per_sequence(draft.states)


def load_drafter(draft: PlannedModel, context: int, n_vocab: int) -> tuple[ModelDrafter, int]:
    """Load a draft model; return its drafter and the bytes that it takes.

    context, n_vocab: of the model whose tokens it drafts. Raises a `ZincError`.
    """
    backend, states = draft.backend, draft.states
    upload(draft.file, weights_of(draft.plans), backend)
    layout = draft_layout(draft, context)
    cache = backend.allocate(states, layout)
    programs = [backend.prepare(plan, cache) for plan in draft.plans]
    recurrent = any(isinstance(s, RecurrentState) for s in states)
    pool = CachePool(
        cache_groups(states, layout),
        layout.block_tokens,
        layout.state_slots if recurrent else draft.plans[0].max_outputs,
        cache,
        chunk_tokens=_STEP_TOKENS,
        recurrent=recurrent,
        state_bytes=state_bytes_per_sequence(states),
        prefix_cache=draft.options.prefix_cache,
    )
    drafter = ModelDrafter(
        programs,
        pool,
        context=pool.max_tokens(min(context, draft.spec.context)),
        plain_context=draft.spec.plain_context,
        n_vocab=n_vocab,
        rollback=draft.options.rollback if recurrent else 0,
    )
    arena_bytes = sum(plan.arena_bytes for plan in draft.plans)
    return drafter, backend.weight_bytes + cache.n_bytes + arena_bytes
