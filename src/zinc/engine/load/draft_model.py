"""Options and cache size of draft models, which draft the tokens of another model.

A draft model runs on a backend of its own, because its weights have the names of the model's. Its
cache has room for one context of the model, which all sequences share.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from zinc.backends.api import Backend, CacheLayout
from zinc.engine.cache_layout import cache_bytes, cache_layout, state_bytes_per_sequence
from zinc.engine.load.options import LoadOptions
from zinc.engine.load.settings import NO_SETTINGS
from zinc.engine.speculative.speculation import MOST_RECURRENT_ROWS
from zinc.ops.values import State

# Most tokens of a step: a longer text is read in several, between those of the model.
STEP_TOKENS = 128
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
        batch_tokens=STEP_TOKENS,
        max_outputs=None,
        sequences=None,
        speculate="off",
        draft=None,
        rollback=MOST_RECURRENT_ROWS,
        nextn=False,
        lora=(),
    )


def draft_layout(states: tuple[State, ...], kv_dtype: str, n_tokens: int) -> CacheLayout:
    """Return the layout of a draft model's cache of `n_tokens` tokens."""
    return cache_layout(states, n_tokens, kv_dtype, _STATE_SLOTS, STEP_TOKENS)


def draft_cache_bytes(states: tuple[State, ...], kv_dtype: str, n_tokens: int) -> int:
    """Return the bytes of a draft model's cache of `n_tokens` tokens."""
    keys = cache_bytes(states, draft_layout(states, kv_dtype, n_tokens))
    return keys + _STATE_SLOTS * state_bytes_per_sequence(states)
