"""Acceptance of drafts by a trained hybrid.

A wrong hidden row leaves answers right and costs acceptance only, so acceptance is a test.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import effort
import numpy as np
import pytest
from engine.speculative.nextn_runs import Runs
from models.harness import Runner, planned, relative_error
from present import computing

from zinc.backends import api
from zinc.engine.sequence import Sequence
from zinc.engine.speculative.nextn import hidden_rows
from zinc.formats.gguf import GGUFFile
from zinc.models import load
from zinc.ops.step import Step
from zinc.ops.values import FloatArray
from zinc.plan.planner import make_plan
from zinc.plan.weights import tensor_data
from zinc.tokenizer import Tokenizer

# A folder with trained models that are too large for the repository.
MODELS = Path(os.environ.get("ZINC_TEST_MODELS", "models"))
TRAINED = MODELS / "zinc-demo-moe-48m-q8_0.gguf"
PROSE = Path(__file__).parents[2] / "data" / "oracle" / "prose.txt"  # no text of its training
WINDOW = 512
QUESTIONS = (
    "Tell me a short story about a fox.",
    "What is the capital of France?",
    "Write a list of three animals.",
    "Who are you?",
    "Why is the sky blue?",
    "Tell me about Peru.",
)

pytestmark = pytest.mark.skipif(
    not TRAINED.exists(), reason=f"ZINC_TEST_MODELS names no folder with {TRAINED.name}"
)


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    with Runs(TRAINED, "cpu", room=1024, tokens=WINDOW) as found:
        yield found


@pytest.fixture(scope="module", params=[name for name in computing() if name != "cpu"])
def on_device(request: pytest.FixtureRequest) -> Iterator[Runs]:
    with Runs(TRAINED, request.param, room=1024, tokens=WINDOW) as found:
        yield found


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_gguf(TRAINED)


def agreement(runs: Runs, ids: list[int], *, late: bool = False) -> float:
    """Return how often the first draft is the model's own most likely token, in windows of `ids`.

    late: give the block the hidden row of the token itself, not of the one before.
    """
    program = runs.drafter.programs[0][0]
    given = program.plan.given
    assert given is not None
    same = []
    for at in range(0, len(ids) - WINDOW + 1, WINDOW):
        s = runs.begin(ids[at : at + WINDOW])
        (logits,) = runs.run({s: WINDOW}, take=False)
        (rows,) = hidden_rows(runs.program, [WINDOW])
        before = rows if late else np.concatenate([np.zeros_like(rows[:1]), rows[:-1]])
        program.write(given, before)
        every = np.arange(WINDOW, dtype=np.int32)
        assert s.cache.allocation is not None
        tables = tuple(np.array([table], np.int32) for table in s.cache.allocation.tables)
        zero = np.zeros(1, np.int32)
        bounds = np.array([0, WINDOW], np.int32)
        ids_now = np.array(s.ids, np.int32)
        drafted = program.step(Step(ids_now, every, 0 * every, every, bounds, zero, tables))
        same.append((drafted.argmax(axis=1) == logits.argmax(axis=1)).mean())
        runs.end(s)
    return float(np.mean(same))


def test_the_first_draft_is_the_models_own_token(runs: Runs, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(PROSE.read_text())
    ids = ids if effort.EVERY else ids[: 8 * WINDOW]
    assert agreement(runs, ids) >= 0.62
    assert agreement(runs, ids[: 2 * WINDOW], late=True) < 0.45


def test_tokens_of_a_step_with_drafts_of_three(runs: Runs, tokenizer: Tokenizer) -> None:
    """Greedy answers, and continuations of prose."""
    turn = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    prompts = [tokenizer.encode_prompt(turn.format(each)) for each in QUESTIONS]
    prose = tokenizer.encode(PROSE.read_text())
    prompts += [prose[1000 * i : 1000 * i + 64] for i in range(6)]
    steps = [tokens_a_step(runs, ids, n_tokens=160, depth=3) for ids in prompts]
    assert np.mean(steps) >= 3.0


def test_a_device_drafts_as_the_cpu_does(runs: Runs, on_device: Runs, tokenizer: Tokenizer) -> None:
    """Compare drafts after a known text, which are equal but for near ties, and acceptance.

    Backends round rows and keys differently.
    """
    prose = tokenizer.encode(PROSE.read_text())
    n = WINDOW if effort.EVERY else 128
    assert agreement(on_device, prose[:WINDOW]) == pytest.approx(
        agreement(runs, prose[:WINDOW]), abs=0.01
    )
    drafts = [drafts_along(each, prose[:n]) for each in (runs, on_device)]
    assert (drafts[0] == drafts[1]).mean() >= 0.93


def drafts_along(runs: Runs, ids: list[int]) -> np.ndarray:
    """Return the three tokens that are drafted after each token of a text, [tokens - 1, 3]."""
    s, found = runs.begin(ids[:2]), []
    for token in ids[2:]:
        runs.run({s: 1})
        found.append(runs.drafter.draft([s], {s.id: 3})[s.id].tokens)
        s.ids.append(token)
    runs.end(s)
    return np.array(found)


def test_noise_that_block_and_model_share_makes_them_agree(
    runs: Runs, tokenizer: Tokenizer
) -> None:
    """At temperature 0.8, a token is the largest logit / 0.8 + Gumbel noise of its position."""
    prose = tokenizer.encode(PROSE.read_text())
    drafts = [
        tokens_a_step(runs, prose[at : at + 64], n_tokens=100, depth=1, temperature=0.8) - 1
        for at in range(0, 5000, 1000)
    ]
    assert np.mean(drafts) >= 0.60


def tokens_a_step(
    runs: Runs, ids: list[int], n_tokens: int, depth: int, temperature: float = 0.0
) -> float:
    """Generate an answer with drafts of `depth` tokens; return the tokens of a step.

    The model runs each drafted token alone and only as long as it is accepted, because states
    cannot be rolled back here.
    """

    def drawn(position: int, logits: np.ndarray) -> int:
        noise = np.random.default_rng((3, position)).gumbel(size=len(logits))
        return int((logits + temperature * noise).argmax())

    def choose(s: Sequence, depth: int, logits: FloatArray) -> tuple[int, float]:
        return drawn(len(s.ids) + depth, logits), 1.0

    s, n_steps = runs.begin(list(ids)), 0
    (logits,) = runs.run({s: s.pending})
    s.ids.append(drawn(len(s.ids), logits[-1]))
    start = len(s.ids)
    while len(s.ids) < start + n_tokens:
        drafted = runs.drafter.draft([s], {s.id: depth}, choose)[s.id].tokens
        n_steps += 1
        for token in [*drafted, None]:
            (logits,) = runs.run({s: 1})
            s.ids.append(drawn(len(s.ids), logits[-1]))
            if s.ids[-1] != token:
                break
    runs.end(s)
    return (len(s.ids) - start) / n_steps


def test_quantised_logits_keep_their_bits_beside_hidden_rows(runs: Runs) -> None:
    plain = Runner(TRAINED, "cpu", loaded=planned(TRAINED, "cpu"))
    with GGUFFile.open(TRAINED) as file:
        backend = api.create("cpu")
        plan = make_plan(load(file, hidden=True)[1], backend, max_tokens=96, max_outputs=96)
        for w in plan.weights:
            backend.upload(w, tensor_data(w, file.tensors[w.tensor]))
    kept = Runner(TRAINED, "cpu", loaded=(backend, plan))
    ids = np.random.default_rng(0).integers(8192, size=40).astype(np.int32)
    for part in (ids[:37], ids[37:38], ids[38:]):
        last = [len(part) - 1]
        want = plain.feed_for(last, (0, part))
        np.testing.assert_array_equal(kept.feed_for(last, (0, part)), want)
        assert plan.hidden is not None
        rows = kept.program.read(plan.hidden, len(part))
        with GGUFFile.open(TRAINED) as file:
            head = file.tensors["output.weight"].to_float32()
        assert relative_error(rows[last] @ head.T, want) <= 2e-2
