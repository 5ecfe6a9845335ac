"""A model whose answers tell whether the cache was right, without any arithmetic of a real one.

The next token is a hash of what the sequence can see through its block tables (every position in
one layer, a sliding window in another) and of a recurrent state. A block that belongs to somebody
else, a position that was never written, a stale state: each changes the answer.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from zinc.backends.api import CacheLayout, FinishedStep
from zinc.backends.plans import Launch, Plan, Ref
from zinc.ops.registry import Cost
from zinc.ops.values import Dim, KVState, RecurrentState, RowFormat

VOCAB = 97
END = 96
BLOCK = 8
RING = 24
FULL = KVState("full", 1, 16, 16)
SLIDING = KVState("sliding", 1, 16, 16, window=19)
STATE = RecurrentState("state", 4)
KINDS = {
    "full": (FULL,),
    "sliding": (FULL, SLIDING),
    "only sliding": (SLIDING,),
    "recurrent": (FULL, STATE),
    "everything": (FULL, SLIDING, STATE),
}
_PRIME = 2**31 - 1


def _content(token, position):
    return (token * 7919 + position * 104729 + 13) % _PRIME


def _mix(seen, state):
    value = state + 1
    for position, content in seen:
        value = (value * 31 + content * (position + 3)) % _PRIME
    return value % VOCAB


class FakeCache:
    def __init__(self, states, layout):
        self.layout, self.n_bytes = layout, 0
        self.layers = {
            s.name: (
                layout.group_of.get(s.name, 0),
                s.window,
                np.full((layout.n_blocks[layout.group_of.get(s.name, 0)], BLOCK), -1, np.int64),
            )
            for s in states
            if isinstance(s, KVState)
        }
        # The states after the last positions, so that a sequence can be rolled back.
        self.states = np.full((layout.state_slots, RING), -1, np.int64)
        self.is_recurrent = STATE in states

    def copy_block(self, group, source, target):
        for g, _, content in self.layers.values():
            if g == group:
                content[target] = content[source]

    def copy_state(self, source, target):
        self.states[target] = self.states[source]

    def block_views(self, group, block):
        return [c[block].view(np.uint8) for g, _, c in self.layers.values() if g == group]

    def state_views(self, slot):
        return [self.states[slot : slot + 1].view(np.uint8)] if self.is_recurrent else []

    def put_block(self, group, block, views):
        pass  # the views were not copies

    def put_state(self, slot, views):
        pass


class FakeProgram:
    """A program that counts its tokens, and the steps that began before their tokens were known.

    It samples the most likely token only. `fail_at`: the token whose step raises.
    """

    def __init__(self, plan, cache):
        self.plan, self.cache = plan, cache
        self.n_run = 0
        self.sizes = []
        self.fail_at = None
        self.sampled, self.n_ahead = np.empty(0, np.int32), 0

    def step(self, step):
        assert 0 < step.n_tokens <= self.plan.max_tokens
        assert step.n_sequences <= self.plan.max_outputs
        assert len(set(step.state_slot.tolist())) == step.n_sequences
        step = step.with_ids(self.sampled)
        self.n_run += step.n_tokens
        self.sizes.append(np.diff(step.seq_start).tolist())
        if self.fail_at is not None and self.fail_at in step.ids:
            raise RuntimeError("the device is lost")
        logits = np.zeros((len(step.output_rows), VOCAB), np.float32)
        for s in range(step.n_sequences):
            for row in range(step.seq_start[s], step.seq_start[s + 1]):
                self._run(step, s, row)
                for i in np.flatnonzero(step.output_rows == row):
                    logits[i, self._next(step, s, int(step.positions[row]))] = 1.0
        return logits

    def sample(self, step):
        self.n_ahead += step.sampled_rows is not None
        step = step.with_ids(self.sampled)
        logits = self.step(step)
        allowed = logits.copy()
        for i, (row, params) in enumerate(zip(allowed, step.sample_params, strict=True)):
            if step.penalties is not None:
                step.penalties.apply(i, row, int(step.ids[step.output_rows[i]]))
            row[params["banned"][: params["n_banned"]]] = -np.inf
        tokens = np.where(step.sample_params["k"] > 0, allowed.argmax(axis=1), -1)
        self.sampled = tokens.astype(np.int32)
        return FinishedStep(np.stack([self.sampled, allowed.max(axis=1)], axis=1), logits)

    def _run(self, step, s, row):
        token, position = int(step.ids[row]), int(step.positions[row])
        for group, _, content in self.cache.layers.values():
            block = step.tables[group][s, position // BLOCK]
            assert block >= 0
            content[block, position % BLOCK] = _content(token, position)
        slot = step.state_slot[s]
        old = 0 if position == 0 else int(self.cache.states[slot, (position - 1) % RING])
        assert old >= 0 or not self.cache.is_recurrent
        self.cache.states[slot, position % RING] = (old * 31 + token) % _PRIME

    def _next(self, step, s, position):
        seen = []
        for group, window, content in self.cache.layers.values():
            first = max(0, position - window + 1) if window else 0
            for p in range(first, position + 1):
                block = step.tables[group][s, p // BLOCK]
                assert block >= 0, f"position {p} is gone"
                seen.append((p, int(content[block, p % BLOCK])))
        states = self.cache.states[step.state_slot[s]]
        return _mix(seen, int(states[position % RING]) if self.cache.is_recurrent else 0)


def alone(kind, ids, n_tokens, ends=()):
    """Return a prompt and its answer by definition."""
    return list(_alone(kind, tuple(ids), n_tokens, tuple(ends)))


@lru_cache(4096)  # tests compare several answers to a prompt with one definition
def _alone(kind, ids, n_tokens, ends):
    ids, contents, state = list(ids), [], 0
    for _ in range(n_tokens):
        for p in range(len(contents), len(ids)):
            contents.append((p, _content(ids[p], p)))
            state = (state * 31 + ids[p]) % _PRIME
        seen = []
        for s in KINDS[kind]:
            if isinstance(s, KVState):
                seen += contents[-s.window :] if s.window else contents
        ids.append(_mix(seen, state if STATE in KINDS[kind] else 0))
        if ids[-1] in ends:
            break
    return ids


def shifted(kind, ids, n, context, n_kept, ends=()):
    """Return an answer that continues beyond the context, and the tokens that were dropped.

    Each stretch between two shifts is an answer of its own.
    """
    answer, text, n_shifted = [], list(ids), 0
    while len(answer) < n and not (answer and answer[-1] in ends):
        if len(text) > context:
            n_later = (context - n_kept) // 2
            n_shifted += len(text) - n_kept - n_later
            text = text[:n_kept] + text[-n_later:]
        text = alone(kind, text, 1)
        answer.append(text[-1])
    return answer, n_shifted


def model(
    kind, n_blocks, *, max_tokens=24, max_outputs=8, slots=6, window_blocks=None, samples=False
):
    """Return a program and its cache, with `n_blocks` blocks in each group.

    samples: whether the program samples tokens itself.
    """
    states = KINDS[kind]
    windows = sorted({s.window for s in states if isinstance(s, KVState)})
    layout = CacheLayout(
        BLOCK,
        tuple(window_blocks or n_blocks if w else n_blocks for w in windows),
        group_of={s.name: windows.index(s.window) for s in states if isinstance(s, KVState)},
        state_slots=max(slots, 1 if STATE in states else max_outputs),
    )
    launch = Launch("attention", Dim.TOKENS, states, (), (), Cost(), "")
    output = Ref(0, Dim.OUTPUTS, VOCAB, RowFormat.F32, 0, 0)
    sampled = Ref(1, Dim.OUTPUTS, 2, RowFormat.F32, 0, 8) if samples else None
    plan = Plan((launch,), output, 0, max_tokens, max_outputs, sampled)
    cache = FakeCache(states, layout)
    return FakeProgram(plan, cache), cache
