"""Prompts that begin alike and come together are run once: the later ones wait for the first.

A sequence that waits is held back while another one, let in or ahead of it, still runs what both
begin with; the prefix cache then has it for everybody (eight answers to one prompt, agents with the
same system prompt). Nobody loses by it: what the others would have run again goes to the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from zinc.engine.sequence import Sequence
from zinc.kv import common_tokens


def held_back(
    sequences: Iterable[Sequence],
    cached: Callable[[Sequence], int],
    least_tokens: int,
    recurrent: bool,
) -> set[int]:
    """Ids of those that wait for a prompt that is being run.

    sequences: in order of arrival. cached: tokens that the prefix cache has of one that waits.
    least_tokens: for fewer than so many nobody waits. Whoever is waited for runs, or comes first:
    so there is always one of every group that may run.
    """
    back: set[int] = set()
    leaders: list[Sequence] = []
    ordered = sorted(sequences, key=lambda s: (s.holding is None, -s.priority, s.id))
    for s in ordered:
        if not s.key or not s.is_reusable:
            continue
        if (
            s.holding is None
            and not s.is_read
            and _waits(s, leaders, cached, least_tokens, recurrent)
        ):
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
    for leader in leaders:
        if leader.priority < s.priority or leader.namespace != s.namespace:
            continue
        shared = s.shares.get(leader.id)
        if shared is None:
            shared = _shared(leader, s, recurrent)
            # Decided once: who has waited for most of it waits for the rest as well.
            shared = s.shares[leader.id] = shared if shared - cached(s) >= least_tokens else 0
        if leader.n_run < shared and cached(s) < shared:
            return True
    return False


def _shared(leader: Sequence, s: Sequence, recurrent: bool) -> int:
    """What the cache will have for a sequence once another one has run it."""
    common = min(common_tokens(leader.key, s.key), len(s.ids) - 1)
    if recurrent:
        return max((m for m in leader.marks if m <= common), default=0)
    return common
