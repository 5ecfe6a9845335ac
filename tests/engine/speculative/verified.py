"""Requests to a model that verifies all tokens that a chain drafts, whether that pays or not."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from zinc.engine.load.model import LoadedModel
from zinc.engine.request import Request
from zinc.engine.sampling import SamplingParams
from zinc.engine.sequence import Sequence
from zinc.engine.speculative import chains
from zinc.engine.speculative.draft import NO_DRAFT
from zinc.engine.speculative.policy import Record
from zinc.engine.speculative.tracker import Source
from zinc.ops.values import FloatArray


class Eager:
    """A policy that drafts `n_tokens` tokens whenever it can."""

    is_due = False

    def __init__(self, n_tokens: int) -> None:
        self.n_tokens = n_tokens

    def wants(self) -> bool:
        return True

    def pays(self, n_streams: int, n_rows: int) -> bool:
        return True

    def repays(self, n_generated: int, n_unread: int) -> bool:
        return True

    def depth(self, n_streams: int, n_rows: int) -> int:
        return self.n_tokens

    def expected(self, depth: int) -> float:
        return float(depth)

    def record(self, *_: Any) -> None: ...

    skipped = record

    def took(self, *_: Any) -> float:
        return 0.0

    has_read = took


def guess_mostly_right(
    want: Iterable[Sequence], monkeypatch: pytest.MonkeyPatch
) -> list[tuple[int, int]]:
    """Make chains guess the tokens of `want`, but for every third one, which they predict.

    Return the list of all predictions, with their positions, which grows when they are made.
    """
    predicted: list[tuple[int, int]] = []
    texts = {tuple(s.request.ids): s.ids for s in want}
    guess = chains.guess

    def choose(s: Sequence, depth: int, logits: FloatArray) -> tuple[int, float]:
        token, _ = guess(s, depth, logits)
        at, text = len(s.ids) + depth, texts[tuple(s.request.ids)]
        predicted.append((at, token))
        return (text[at] if at % 3 and at < len(text) else token), 0.9

    monkeypatch.setattr(chains, "guess", choose)
    return predicted


@contextmanager
def verifying(model: LoadedModel, source: Source, n_tokens: int) -> Iterator[None]:
    """Draft `n_tokens` tokens with the chain of `source` before each step, and verify them all."""
    speculation = model.engine.speculation
    assert speculation is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speculation.chains[source], "policy", Eager(n_tokens))
        patch.setattr(Record, "guard", lambda *_: None)
        patch.setattr(speculation, "_can_pay", lambda *_: True)
        patch.setattr(speculation, "_suffix", lambda *_: NO_DRAFT)
        patch.setattr("zinc.engine.speculative.speculation.lengths", verify_all)
        yield


def verify_all(offers: Any, n_streams: int, n_rows: int, most: int, times: Any) -> list[int]:
    chosen = []
    for offer in offers:
        n = min(len(offer.draft.tokens), most)
        offer.record.rates = list(offer.rates[:n])
        chosen.append(n)
        most -= n
    return chosen


def requests(model: LoadedModel, n: int, longer: int = 37, **params: Any) -> list[Request]:
    """Return requests, every other one greedy, whose prompts grow by `longer` tokens."""
    found = []
    for i in range(n):
        ids = random.Random(i).choices(range(model.spec.vocab), k=20 + longer * i)
        settings = {"max_tokens": 40, "seed": i, "temperature": 0.8 * (i % 2), **params}
        found.append(Request(ids, SamplingParams(**settings)))
    return found


def finish(model: LoadedModel, requests: list[Request], apart: int = 3) -> list[Sequence]:
    """Run requests that arrive `apart` steps apart."""
    waiting, sequences = list(requests), []
    tick = 0
    while waiting or not model.engine.idle:
        while waiting and tick >= apart * len(sequences):
            sequences.append(model.engine.submit(waiting.pop(0)))
        model.engine.step()
        tick += 1
    return sequences


def plain(requests: list[Request]) -> list[Request]:
    return [replace(r, params=replace(r.params, speculate=False)) for r in requests]


def check_same(want: list[Sequence], found: list[Sequence]) -> None:
    for one, two in zip(want, found, strict=True):
        assert one.sampled == two.sampled
        assert one.finish_reason == two.finish_reason
        assert one.error is two.error is None


def accepted(sequences: list[Sequence]) -> float:
    drafted = sum(s.drafts.n_drafted for s in sequences)
    return sum(s.drafts.n_accepted for s in sequences) / drafted
