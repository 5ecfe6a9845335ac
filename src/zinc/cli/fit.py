"""The lines of `zinc plan` that say whether a model and its cache fit in memory."""

from __future__ import annotations

from typing import Any

from zinc.cli.text import size
from zinc.core.errors import MemoryLimitError
from zinc.engine.cache_layout import context_bytes, state_bytes_per_sequence
from zinc.engine.load.memory import RESERVE_SHARE, choose_context
from zinc.engine.load.planned import PlannedModel


def report(planned: PlannedModel, context: int) -> dict[str, Any]:
    """Return, for each memory of a model's backend, what one sequence of `context` tokens needs.

    needed_bytes: weights, arena, recurrent state, keys and values. available_bytes: free memory
    less the part that zinc leaves to others. fitting_context_tokens: the longest context, up to the
    model's own, for which there is room; 0 when the weights alone are too large.
    """
    backend, kv_dtype = planned.backend, planned.kv_dtype
    max_tokens = planned.options.batch_tokens
    memories = planned.budgets()
    names = [backend.name]
    if backend.split is not None and len(memories) > 1:
        names = [each.name for each in backend.split.devices]
    entries, contexts = [], []
    for name, memory in zip(names, memories, strict=True):
        taken = memory.taken + state_bytes_per_sequence(memory.states)
        cache = context_bytes(memory.states, context, kv_dtype, max_tokens)
        available = int(memory.available * (1 - RESERVE_SHARE))
        entries.append(
            {
                "backend": name,
                "needed_bytes": taken + cache,
                "available_bytes": available,
                "fits": taken + cache <= available,
            }
        )
        try:
            fitting = choose_context(
                planned.spec, memory.states, kv_dtype, None, memory.available, taken, max_tokens
            )
        except MemoryLimitError:
            fitting = 0
        contexts.append(fitting)
    return {
        "fits": all(entry["fits"] for entry in entries),
        "fitting_context_tokens": min(contexts),
        "memories": entries,
    }


def text(found: dict[str, Any], context: int) -> str:
    """Return the report for people, one line for each memory."""
    several = len(found["memories"]) > 1
    share = f"({1 - RESERVE_SHARE:.0%} of the free memory)"
    lines = []
    for memory in found["memories"]:
        verdict = "fits in memory" if memory["fits"] else "DOES NOT FIT in memory"
        where = f" on {memory['backend']}" if several else ""
        needed, available = size(memory["needed_bytes"]), size(memory["available_bytes"])
        lines.append(f"{verdict}{where}: needs {needed}, {available} are available {share}")
    if not found["fits"]:
        fitting = found["fitting_context_tokens"]
        lines.append(
            f"a context of {fitting:,} tokens fits instead of {context:,}; "
            "a run without --context takes that"
            if fitting
            else "no context fits: use a smaller model or quantisation"
        )
    return "\n".join(lines)
