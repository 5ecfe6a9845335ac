"""Computation of a shared prefix once for prompts that arrive together.

Examples are eight answers to one prompt, and agents with the same system prompt. If two waiting or
running sequences share a prefix, the scheduler lets the first one compute it and delays the second.
The second then reads the prefix from the prefix cache. It loses no time, because its share of the
tokens of each step goes to the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from zinc.engine.sequence import Sequence
from zinc.kv import common_tokens


def delayed(
    sequences: Iterable[Sequence],
    cached: Callable[[Sequence], int],
    least_tokens: int,
    recurrent: bool,
) -> set[int]:
    """Return the ids of sequences that should wait for another sequence to compute their prefix.

    sequences: in order of arrival. cached: returns the tokens that the prefix cache holds for a
    waiting sequence. least_tokens: no sequence waits for fewer tokens. The sequence that others
    wait for is running or comes first, so at least one of every group may run.
    """
    back: set[int] = set()
    leaders: list[Sequence] = []
    ordered = sorted(sequences, key=lambda s: (not s.is_running, -s.request.priority, s.id))
    for s in ordered:
        if not s.cache.key or not s.is_reusable:
            continue
        may_wait = not s.is_running and not s.is_read
        if may_wait and _waits(s, leaders, cached, least_tokens, recurrent):
            back.add(s.id)
        elif s.pending > 1:
            leaders.append(s)
    return back


def _waits(
    s: Sequence,
    leaders: Iterable[Sequence],
    cached: Callable[[Sequence], int],
    least_tokens: int,
    recurrent: bool,
) -> bool:
    """Return whether `s` should wait for one of `leaders`."""
    for leader in leaders:
        if leader.request.priority < s.request.priority or leader.namespace != s.namespace:
            continue
        shared = s.cache.shared_tokens.get(leader.id)
        if shared is None:
            shared = _shared(leader, s, recurrent)
            # Decided once: otherwise a sequence would stop waiting when only a short rest of the
            # shared prompt remains to be run.
            shared = shared if shared - cached(s) >= least_tokens else 0
            s.cache.shared_tokens[leader.id] = shared
        if leader.n_run < shared and cached(s) < shared:
            return True
    return False


def _shared(leader: Sequence, s: Sequence, recurrent: bool) -> int:
    """Return the tokens that the prefix cache will hold for `s` once `leader` has run them."""
    common = min(common_tokens(leader.cache.key, s.cache.key), len(s.ids) - 1)
    if recurrent:
        return max((at for at in leader.cache.checkpoints if at <= common), default=0)
    return common
