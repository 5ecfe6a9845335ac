"""Loading of a draft model beside the model whose tokens it drafts."""

from __future__ import annotations

from zinc.backends.plans import weights_of
from zinc.engine.cache_layout import cache_groups, state_bytes_per_sequence
from zinc.engine.load.draft_model import STEP_TOKENS, draft_layout
from zinc.engine.load.planned import PlannedModel
from zinc.engine.load.weights import upload
from zinc.engine.speculative.draft_model import ModelDrafter
from zinc.kv import CachePool
from zinc.ops.values import RecurrentState


def load_drafter(draft: PlannedModel, context: int, n_vocab: int) -> tuple[ModelDrafter, int]:
    """Load a draft model; return its drafter and the bytes that it takes.

    context, n_vocab: of the model whose tokens it drafts. Raises a `ZincError`.
    """
    backend, states = draft.backend, draft.states
    upload(draft.file, weights_of(draft.plans), backend)
    context = min(context, draft.spec.context)
    layout = draft_layout(states, draft.kv_dtype, context)
    cache = backend.allocate(states, layout)
    programs = [backend.prepare(plan, cache) for plan in draft.plans]
    recurrent = any(isinstance(s, RecurrentState) for s in states)
    pool = CachePool(
        cache_groups(states, layout),
        layout.block_tokens,
        layout.state_slots if recurrent else draft.plans[0].max_outputs,
        cache,
        chunk_tokens=STEP_TOKENS,
        recurrent=recurrent,
        state_bytes=state_bytes_per_sequence(states),
        prefix_cache=draft.options.prefix_cache,
    )
    drafter = ModelDrafter(
        programs,
        pool,
        context=pool.max_tokens(context),
        plain_context=draft.spec.plain_context,
        n_vocab=n_vocab,
        rollback=draft.options.rollback if recurrent else 0,
    )
    arena_bytes = sum(plan.arena_bytes for plan in draft.plans)
    return drafter, backend.weight_bytes + cache.n_bytes + arena_bytes
