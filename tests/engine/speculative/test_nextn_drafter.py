"""Drafts from NextN blocks: the rows that the block sees, and where drafts end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from effort import examples
from engine.speculative.nextn_runs import Runs
from models.harness import FIXTURES, rewrite
from models.nextn_files import FAMILIES, with_nextn
from models.nextn_oracle import Block

from zinc.backends.cpu import CpuCache
from zinc.engine.load.model import LoadedModel
from zinc.engine.load.options import LoadOptions
from zinc.engine.load.planning import plan_model
from zinc.engine.request import Request
from zinc.engine.sampling import SamplingParams
from zinc.engine.sequence import Sequence
from zinc.engine.speculative.nextn import MOST_WAITING, most_likely
from zinc.formats.gguf import GGUFFile
from zinc.models.parts.context import RopeScaling
from zinc.ops.values import FloatArray

NEAR = 2e-3  # difference of two logits that rounding may swap


def assert_is_the_draft(
    block: Block, ids: list[int], hidden: np.ndarray, drafted: list[int]
) -> None:
    """Compare drafted tokens with the largest logits of the definition.

    hidden: the model's rows of `ids` but the last. Each token after the first reads the block's row
    of the token before.
    """
    text, rows = list(ids), np.concatenate([np.zeros((1, hidden.shape[1])), hidden])
    for token in drafted:
        logits, own = block.rows(np.array(text, np.int32), rows)
        assert logits[-1].max() - logits[-1][token] <= NEAR
        text.append(token)
        rows = np.concatenate([rows, own[-1:]])


@pytest.mark.alike(3)
@pytest.mark.parametrize("name", FAMILIES)
def test_drafts_equal_the_definition(name: str, tmp_path: Path) -> None:
    """Two sequences of random steps, of which the model takes some of the drafted tokens."""
    path = with_nextn(name, tmp_path / "m.gguf")
    rng = np.random.default_rng(2)
    with Runs(path, "ref", tokens=32) as runs, GGUFFile.open(path) as file:
        vocab, block = runs.model.spec.vocab, Block(file, runs.model.spec.n_layers)
        texts = [runs.begin(rng.integers(vocab, size=n).tolist()) for n in (41, 7)]
        for s in texts:
            while s.pending > 1:
                runs.run({s: min(s.pending - 1, int(rng.integers(1, 32)))})
                if rng.random() < 0.5:
                    runs.drafter.catch_up([s])
        for _ in range(examples(16)):
            most = {s.id: int(rng.integers(1, 4)) for s in texts}
            drafts = runs.drafter.draft(texts, most)
            for s in texts:
                draft = drafts[s.id]
                assert len(draft.tokens) == len(draft.probabilities) == most[s.id]
                assert_is_the_draft(block, s.ids, runs.hidden(s.ids[:-1]), draft.tokens)
                taken = draft.tokens[: rng.integers(most[s.id] + 1)]
                s.ids += [*taken, int(rng.integers(vocab))]
                runs.run({s: s.pending - 1})


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    with Runs(with_nextn("qwen35moe", tmp_path / "m.gguf"), "cpu", tokens=16) as found:
        yield found


def prompt(runs: Runs, n: int, room: int | None = None) -> Sequence:
    """Return a sequence of random tokens, of which all but the last have run."""
    s = runs.begin(np.random.default_rng(4).integers(512, size=n).tolist(), room)
    while s.pending > 1:
        runs.run({s: min(16, s.pending - 1)})
    return s


def test_rows_that_wait_make_the_same_draft(runs: Runs) -> None:
    """More rows than a step has are run in several steps."""
    early, late = prompt(runs, 60), prompt(runs, 60)
    runs.drafter.catch_up([early])
    assert (runs.drafter.behind(early), runs.drafter.behind(late)) == (0, 59)
    drafts = runs.drafter.draft([early, late], {early.id: 3, late.id: 3})
    assert drafts[early.id].tokens == drafts[late.id].tokens
    assert drafts[early.id].probabilities == pytest.approx(drafts[late.id].probabilities)
    assert runs.drafter.behind(late) == 0
    assert runs.drafter.draft([late], {late.id: 3}) == {}  # until the model has run further


def test_many_rows_do_not_wait_for_a_draft(runs: Runs) -> None:
    s = prompt(runs, 200)
    assert runs.drafter.behind(s) < MOST_WAITING
    again = prompt(runs, 200)
    runs.drafter.catch_up([again])
    drafts = runs.drafter.draft([s, again], {s.id: 3, again.id: 3})
    assert drafts[s.id] == drafts[again.id]


def test_rows_wait_for_the_cache_block_of_their_position(runs: Runs) -> None:
    """The engine gives a prompt that runs in parts the blocks of the tokens that run."""
    ids = np.random.default_rng(4).integers(512, size=200).tolist()
    s, whole = runs.begin(ids, 0), prompt(runs, 200)
    assert s.cache.allocation is not None
    while s.pending > 1:
        n = min(16, s.pending - 1)
        runs.pool.grow(s.cache.allocation, s.n_run + n)
        runs.run({s: n})
        if s.n_run == MOST_WAITING:  # a multiple of the positions of a block
            assert runs.drafter.behind(s) == 0
    runs.pool.grow(s.cache.allocation, 256)
    drafts = runs.drafter.draft([s, whole], {s.id: 3, whole.id: 3})
    assert drafts[s.id] == drafts[whole.id]


def test_company_does_not_change_a_draft(runs: Runs) -> None:
    alone, first, second = prompt(runs, 30), prompt(runs, 30), prompt(runs, 11)
    draft = runs.drafter.draft([alone], {alone.id: 3})[alone.id]
    both = runs.drafter.draft([first, second], {first.id: 3, second.id: 1})
    assert both[first.id] == draft
    assert len(both[second.id].tokens) == 1


def test_the_chooser_sees_each_depth_and_ends_the_draft(runs: Runs) -> None:
    s, seen = prompt(runs, 9), []

    def choose(asked: Sequence, depth: int, logits: FloatArray) -> tuple[int, float]:
        assert asked is s
        assert logits.shape == (512,)
        seen.append(depth)
        return 5 + depth, 0.6

    draft = runs.drafter.draft([s], {s.id: 4}, choose, least=0.3)[s.id]
    assert (draft.tokens, draft.probabilities, seen) == ([5, 6, 7], [0.6] * 3, [0, 1, 2])


def test_a_draft_ends_with_the_blocks_of_its_sequence(runs: Runs) -> None:
    s = prompt(runs, 63, room=63)
    assert s.cache.allocation is not None
    assert len(runs.drafter.draft([s], {s.id: 9})[s.id].tokens) == 2  # of positions 62 and 63
    runs.pool.grow(s.cache.allocation, 65)
    s.ids.append(3)
    runs.run({s: 1})
    assert len(runs.drafter.draft([s], {s.id: 9})[s.id].tokens) == 9


def test_only_sequences_with_known_rows_get_a_draft(runs: Runs) -> None:
    unknown, behind, none = runs.begin([1, 2, 3]), prompt(runs, 5), prompt(runs, 5)
    behind.ids.append(7)  # a token whose row has not run
    most = {unknown.id: 2, behind.id: 2}
    assert runs.drafter.draft([unknown, behind, none], most) == {}
    assert runs.drafter.behind(unknown) == 0


def test_a_text_whose_start_is_cached_is_drafted_from_there(runs: Runs) -> None:
    s = prompt(runs, 40)
    runs.drafter.catch_up([s])
    runs.drafter.ended(s)
    rows = runs.hidden(s.ids[:-1])
    runs.drafter.took(s, 32, rows[32:])
    assert runs.drafter.behind(s) == 7
    assert len(runs.drafter.draft([s], {s.id: 2})[s.id].tokens) == 2
    runs.drafter.took(s, 0, rows)  # run again from its start, in other blocks
    assert runs.drafter.behind(s) == 39


def test_a_trimmed_head_drafts_its_tokens_only(tmp_path: Path) -> None:
    keys = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.token_type": [1] * 511 + [3]}
    path = rewrite(with_nextn("qwen35", tmp_path / "m.gguf"), tmp_path / "b.gguf", metadata=keys)
    with Runs(path, "cpu", nextn_tokens=64) as runs:
        s = prompt(runs, 20)

        def choose(asked: Sequence, depth: int, logits: FloatArray) -> tuple[int, float]:
            assert logits.shape == (512,)
            assert np.flatnonzero(np.isfinite(logits)).tolist() == [*range(64), 511]
            return most_likely(asked, depth, logits)

        draft = runs.drafter.draft([s], {s.id: 4}, choose)[s.id]
        assert len(draft.tokens) == 4
        assert all(0 < p <= 1 for p in draft.probabilities)


# -- Loading --------------------------------------------------------------------------------------


def test_the_block_shares_weights_and_cache_with_the_model(tmp_path: Path) -> None:
    path = with_nextn("glm4moe", tmp_path / "m.gguf")
    options = LoadOptions(
        path, backend="cpu", context=128, batch_tokens=16, kv_dtype="f16", speculate="off"
    )
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    answers, bytes_taken, block_bytes = [], [], []
    for nextn in (False, True):
        with LoadedModel.open(replace(options, nextn=nextn)) as model:
            assert (model.drafter is not None) is nextn
            s = model.engine.submit(Request(list(range(40)), params))
            while s.finish_reason is None:
                model.engine.step()
            answers.append(s.generated)
            bytes_taken.append(model.memory.weights_bytes)
            block_bytes.append([group.block_bytes for group in model.engine.pool.groups])
            assert isinstance(model.cache, CpuCache)
            assert ("blk.3" in model.cache.layers) is nextn
    assert answers[0] == answers[1]
    assert block_bytes[1][0] * 3 == block_bytes[0][0] * 4
    with GGUFFile.open(path) as file:
        block = sum(t.n_bytes for n, t in file.tensors.items() if n.startswith("blk.3."))
    assert 0 < bytes_taken[1] - bytes_taken[0] < 1.5 * block


def test_without_the_option_nothing_changes(tmp_path: Path) -> None:
    plain = plan_model(LoadOptions(FIXTURES / "qwen35.gguf", backend="cpu", speculate="off"))
    other = plan_model(
        LoadOptions(with_nextn("qwen35", tmp_path / "m.gguf"), backend="cpu", speculate="off")
    )
    with plain, other:
        assert [plan.hash for plan in other.all_plans] == [plan.hash for plan in plain.plans]
        assert other.states == plain.states


def test_longer_contexts_have_a_draft_plan_of_their_own(tmp_path: Path) -> None:
    path = with_nextn("qwen35", tmp_path / "m.gguf")
    scaling = RopeScaling("yarn", factor=2.0, original_context=64)
    options = LoadOptions(path, backend="ref", nextn=True, rope=scaling, context=128)
    with plan_model(options) as planned:
        assert len(planned.plans) == len(planned.draft_plans) == 2
        assert len({plan.hash for (plan,) in planned.draft_plans}) == 2
