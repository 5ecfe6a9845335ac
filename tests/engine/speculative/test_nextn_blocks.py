"""Drafts of models with a NextN block for each drafted token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from effort import examples
from engine.speculative.nextn_runs import Runs
from models.nextn_files import model_with_blocks
from models.nextn_oracle import Block, Rows

from zinc.engine.sequence import Sequence
from zinc.engine.speculative.nextn import MOST_WAITING
from zinc.models.parts.spec import NextNInput

N_BLOCKS = {"mimo2": 3, "step35": 2}
NEAR = 2e-3  # difference of two logits that rounding may swap


@pytest.fixture(params=N_BLOCKS)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return model_with_blocks(request.param, tmp_path)


@pytest.fixture
def runs(path: Path) -> Iterator[Runs]:
    with Runs(path, "cpu", tokens=32, speculate="mtp") as found:
        yield found


def assert_is_the_draft(runs: Runs, s: Sequence, drafted: list[int]) -> None:
    """Compare each drafted token with the largest logit of the definition of its block."""
    spec, hidden = runs.model.spec, runs.hidden(s.ids[:-1]).astype(np.float64)
    rows: Rows = hidden
    for depth, token in enumerate(drafted):
        block = Block(runs.model.file, spec.n_layers + depth)
        rows = np.concatenate([np.zeros((1, spec.hidden)), rows])
        text = np.array([*s.ids, *drafted[:depth]], np.int32)
        logits, own = block.rows(text, rows)
        assert logits[-1].max() - logits[-1][token] <= NEAR
        if spec.nextn_input is NextNInput.PREVIOUS:
            rows = own


def test_each_block_drafts_one_token(path: Path) -> None:
    with Runs(path, "ref", tokens=32, speculate="mtp") as runs:
        draft_at_random(runs)


def draft_at_random(runs: Runs) -> None:
    """Run two sequences in random steps, with drafts of random lengths that are accepted in part.

    Each drafted token must be that of the definition.
    """
    rng, most = np.random.default_rng(2), len(runs.drafter.programs[0])
    texts = [runs.begin(rng.integers(96, size=n).tolist()) for n in (41, 7)]
    for s in texts:
        while s.pending > 1:
            runs.run({s: min(s.pending - 1, int(rng.integers(1, 32)))})
            if rng.random() < 0.5:
                runs.drafter.catch_up([s])
    for _ in range(examples(24)):
        asked = {s.id: int(rng.integers(1, most + 2)) for s in texts}
        drafts = runs.drafter.draft(texts, asked)
        for s in texts:
            tokens = drafts[s.id].tokens
            assert len(tokens) == min(most, asked[s.id])
            assert_is_the_draft(runs, s, tokens)
            s.ids += [*tokens[: rng.integers(len(tokens) + 1)], int(rng.integers(96))]
            runs.run({s: s.pending - 1})


def test_drafts_are_as_long_as_there_are_blocks(runs: Runs) -> None:
    n = N_BLOCKS[runs.model.spec.arch]
    assert runs.drafter.most_drafted == n
    s = runs.begin(list(range(20)))
    runs.run({s: 19})
    assert len(runs.drafter.draft([s], {s.id: 9})[s.id].tokens) == n


def test_blocks_that_drafted_nothing_catch_up(runs: Runs) -> None:
    """Rows of later blocks wait for a draft that is long enough, but not for ever."""
    ids = np.random.default_rng(3).integers(96, size=MOST_WAITING + 60).tolist()
    drafts = []
    for most in (1, 3):
        s = runs.begin(ids[:20])
        runs.run({s: 19})
        for token in ids[20:]:
            runs.drafter.draft([s], {s.id: most})
            s.ids.append(token)
            runs.run({s: 1})
            assert lag(runs, s) < MOST_WAITING
        drafts.append(runs.drafter.draft([s], {s.id: 3})[s.id])
        runs.end(s)
    assert drafts[0].tokens == drafts[1].tokens
    assert drafts[0].probabilities == pytest.approx(drafts[1].probabilities)


def test_no_block_is_far_behind(runs: Runs) -> None:
    """A later block waits for rows of the first, which waits for rows of the model."""
    s = runs.begin(list(range(20)))
    runs.run({s: 19})
    for most in [1] * 90 + [0] * 110:
        runs.drafter.draft([s], {s.id: most})
        s.ids.append(most)
        runs.run({s: 1})
        assert lag(runs, s) < MOST_WAITING


def lag(runs: Runs, s: Sequence) -> int:
    """Return how many positions the slowest block is behind the model."""
    return s.n_run - min(each.progress[s.id].n_run for each in runs.drafter.blocks)


def test_a_text_whose_start_is_cached_is_drafted_from_there(runs: Runs) -> None:
    s = runs.begin(np.random.default_rng(4).integers(96, size=40).tolist())
    rows = runs.hidden(s.ids[:-1])
    runs.drafter.took(s, 32, rows[32:])
    assert runs.drafter.behind(s) == 7
    n = N_BLOCKS[runs.model.spec.arch]
    assert len(runs.drafter.draft([s], {s.id: 3})[s.id].tokens) == n


def test_company_does_not_change_a_draft(runs: Runs) -> None:
    rng = np.random.default_rng(5)
    ids = rng.integers(96, size=30).tolist()
    alone, first, second = (runs.begin(each) for each in (ids, ids, ids[:9]))
    for s in (alone, first, second):
        runs.run({s: s.pending - 1})
    draft = runs.drafter.draft([alone], {alone.id: 3})[alone.id]
    both = runs.drafter.draft([first, second], {first.id: 3, second.id: 1})
    assert both[first.id].tokens == draft.tokens
    assert both[first.id].probabilities == pytest.approx(draft.probabilities)
    assert len(both[second.id].tokens) == 1
