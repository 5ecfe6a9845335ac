"""Drafts from a draft model: the same answers as without it, in fewer steps."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from effort import examples
from engine.speculative.verified import accepted, check_same, finish, plain, requests, verifying
from models.harness import FIXTURES, rewrite
from present import computing

from zinc.engine.load.model import LoadedModel
from zinc.engine.load.options import LoadOptions
from zinc.engine.request import Request
from zinc.engine.sampling import SamplingParams
from zinc.engine.sequence import Sequence
from zinc.engine.speculative.draft_model import ModelChain, ModelDrafter
from zinc.engine.speculative.tracker import Source
from zinc.formats.gguf import GGUFFile

pytestmark = pytest.mark.skipif("cpu" not in computing(), reason="the CPU backend is not built")

# Noise in the weights of a draft model, with which it often, not always, prefers the same token.
NOISE = {"qwen3": 0.12, "qwen35": 0.08, "gptoss": 0.1, "deepseek2": 0.08}
FAMILIES = tuple(NOISE)
KEY = "tokenizer.ggml"


@contextmanager
def drafting(path: Path, draft: Path, n_tokens: int = 4, **options: Any) -> Iterator[LoadedModel]:
    """Yield a model whose tokens the model `draft` drafts, and which verifies every draft."""
    options = {"backend": "cpu", "threads": 2, "context": 512, **options}
    load = LoadOptions(path, draft=draft, **options)
    with LoadedModel.open(load) as model, verifying(model, Source.MODEL, n_tokens):
        yield model


def drafter_of(model: LoadedModel) -> ModelDrafter:
    assert model.engine.speculation is not None
    chain = model.engine.speculation.chains[Source.MODEL]
    assert isinstance(chain, ModelChain)
    return chain._model


def perturbed(name: str, target: Path) -> Path:
    """Write a fixture with noise in its weights."""
    noise = NOISE[name]
    rng = np.random.default_rng(3)

    def edit(name: str, values: Any) -> Any:
        if values.ndim < 2 or not name.startswith("blk."):
            return values
        return values * (1 + noise * rng.standard_normal(values.shape)).astype(np.float32)

    return rewrite(FIXTURES / f"{name}.gguf", target, edit=edit)


@pytest.mark.alike(2)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_draft_model_changes_no_token(name: str, tmp_path: Path) -> None:
    """Greedy and sampled requests of several lengths, which arrive while others run."""
    path = FIXTURES / f"{name}.gguf"
    with drafting(path, perturbed(name, tmp_path / "draft.gguf")) as model:
        asked = requests(model, 5)
        want = finish(model, plain(asked))
        found = finish(model, asked)
        check_same(want, found)
        assert sum(s.drafts.n_drafted for s in found) > 100
        assert 0.05 < accepted(found) < 0.95
        drafter_of(model).pool.check()
        assert not drafter_of(model)._texts


@pytest.mark.parametrize("name", [pytest.param("qwen3", marks=pytest.mark.every), "qwen35"])
@pytest.mark.parametrize("backend", [name for name in computing() if name != "cpu"])
def test_a_draft_model_changes_no_token_on_a_device(
    backend: str, name: str, tmp_path: Path
) -> None:
    """Tokens of the model are sampled on the device, in batch-invariant mode."""
    options = {"backend": backend, "backend_options": {"batch_invariant": "true"}, "context": 128}
    draft = perturbed(name, tmp_path / "draft.gguf")
    with drafting(FIXTURES / f"{name}.gguf", draft, 3, **options) as model:
        asked = requests(model, 2, longer=5, max_tokens=20)
        want, found = finish(model, plain(asked)), finish(model, asked)
        check_same(want, found)
        assert accepted(found) > 0.3


@pytest.mark.alike(2)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_model_accepts_its_own_drafts(name: str) -> None:
    path = FIXTURES / f"{name}.gguf"
    with drafting(path, path, n_tokens=7) as model:
        found = finish(model, requests(model, 4, temperature=0))
        assert accepted(found) > 0.9
        sampled = finish(model, requests(model, 4, temperature=0.8))
        assert accepted(sampled) > 0.9, "the noise is that of the token's place"


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return perturbed("qwen3", tmp_path_factory.mktemp("draft") / "qwen3.gguf")


def test_preempted_requests_and_a_full_draft_cache_change_no_token(noisy: Path) -> None:
    """Both caches are too small for all requests."""
    options = {"context": 256, "prefix_cache": False, "swap_bytes": 0}
    with drafting(FIXTURES / "qwen3.gguf", noisy, **options) as model:
        pool = model.engine.pool
        held, _ = pool.attach(b"", 0)
        pool.grow(held, 256 * (pool.groups[0].n_blocks * pool.block_tokens // 256 - 1))
        asked = requests(model, 4, longer=5, max_tokens=160, ignore_eos=True)
        want, found = finish(model, plain(asked), 1), finish(model, asked, 1)
        pool.release(held)
        check_same(want, found)
        assert sum(s.n_preempted for s in found) > 0
        drafter = drafter_of(model)
        assert sum(s.drafts.n_drafted > 0 for s in found) >= 2
        drafter.pool.check()
        assert not drafter._texts
        assert not drafter._refused


def test_cancelled_requests_give_their_memory_back(noisy: Path) -> None:
    with drafting(FIXTURES / "qwen3.gguf", noisy, prefix_cache=False) as model:
        free = drafter_of(model).pool.available
        running = [model.engine.submit(r) for r in requests(model, 3, ignore_eos=True)]
        for _ in range(8):
            model.engine.step()
        assert drafter_of(model)._texts
        for s in running:
            model.engine.cancel(s)
        assert not drafter_of(model)._texts
        assert drafter_of(model).pool.available == free


@pytest.mark.parametrize("name", ["qwen3", "qwen35", "gptoss"])
def test_a_shifted_context_is_drafted_again(name: str, tmp_path: Path) -> None:
    path = FIXTURES / f"{name}.gguf"
    with drafting(path, perturbed(name, tmp_path / "draft.gguf"), context=96) as model:
        params = {"max_tokens": 150, "ignore_eos": True, "context_shift": 8}
        asked = requests(model, 2, **params)
        want, found = finish(model, plain(asked)), finish(model, asked)
        check_same(want, found)
        assert all(s.n_shifted > 0 for s in found)
        assert sum(s.drafts.n_drafted for s in found) > 100


@pytest.mark.parametrize("name", ["qwen3", "qwen35"])
def test_the_next_turn_is_read_from_where_the_last_one_ended(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = FIXTURES / f"{name}.gguf"
    with drafting(path, perturbed(name, tmp_path / "draft.gguf")) as model:
        drafter, steps, n_read = drafter_of(model), [0], []
        read = drafter.read
        monkeypatch.setattr(drafter, "read", lambda texts: steps.append(read(texts)) or steps[-1])
        first = random.Random(1).choices(range(model.spec.vocab), k=200)
        params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
        for _ in range(2):
            before = sum(steps)
            (s,) = finish(model, [Request(first, params)])
            n_read.append(sum(steps) - before)
            first = [*s.ids, *random.Random(2).choices(range(model.spec.vocab), k=20)]
        assert n_read[0] >= 180
        assert n_read[1] < 40
        (want,) = finish(model, plain([Request(s.request.ids, params)]))
        check_same([want], [s])


def test_a_text_that_outgrows_the_plain_context_is_read_again() -> None:
    path = FIXTURES / "phi3long.gguf"
    with drafting(path, path, context=96) as model:
        assert 0 < model.spec.plain_context < 96
        asked = requests(model, 2, longer=10, max_tokens=60, ignore_eos=True)
        want, found = finish(model, plain(asked)), finish(model, asked)
        check_same(want, found)
        assert all(len(s.ids) > model.spec.plain_context for s in found)
        assert accepted(found) > 0.9


def test_text_beyond_the_context_of_the_draft_model_is_not_drafted(tmp_path: Path) -> None:
    path = FIXTURES / "qwen3.gguf"
    short = rewrite(path, tmp_path / "m.gguf", metadata={"qwen3.context_length": 64})
    with drafting(path, short) as model:
        asked = requests(model, 3, max_tokens=60, ignore_eos=True)
        want, found = finish(model, plain(asked)), finish(model, asked, apart=100)
        check_same(want, found)
        assert [s.drafts.n_drafted > 0 for s in found] == [True, True, False]


@pytest.mark.parametrize("is_smaller", [False, True])
def test_padding_of_the_vocabulary_may_differ(is_smaller: bool, tmp_path: Path) -> None:
    """One model has fewer rows of embeddings and logits than the other."""
    path = FIXTURES / "qwen3.gguf"
    with GGUFFile.open(path) as file:
        types = [
            5 if i >= 500 else kind for i, kind in enumerate(file.metadata[f"{KEY}.token_type"])
        ]
        keys = {f"{KEY}.tokens": list(file.metadata[f"{KEY}.tokens"]), f"{KEY}.token_type": types}
        names = {"token_embd.weight", "output.weight"} & set(file.tensors)
        rows = {name: file.tensors[name].to_float32()[:500] for name in names}
    long = rewrite(path, tmp_path / "long.gguf", metadata=keys)
    keys = {key: values[:500] for key, values in keys.items()}
    short = rewrite(path, tmp_path / "short.gguf", metadata=keys, tensors=rows)
    with drafting(*((long, short) if is_smaller else (short, long))) as model:
        asked = requests(model, 3)
        want, found = finish(model, plain(asked)), finish(model, asked)
        check_same(want, found)
        assert accepted(found) > 0.3


def test_a_draft_model_that_fails_is_not_used_again(
    noisy: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with drafting(FIXTURES / "qwen3.gguf", noisy) as model:
        asked = requests(model, 2)
        want = finish(model, plain(asked))
        monkeypatch.setattr(drafter_of(model)._programs[0], "step", lambda _: 1 / 0)
        check_same(want, finish(model, asked))
        assert caplog.text.count("drafts of the source model are off") == 1
        drafter_of(model).pool.check()
        assert not drafter_of(model)._texts


@pytest.mark.parametrize("name", ["qwen3", "qwen35"])
def test_a_draft_starts_where_the_text_and_the_last_draft_part(name: str) -> None:
    """Logits after random texts and rejected drafts are those of a text that runs at once."""
    path = FIXTURES / f"{name}.gguf"
    with drafting(path, path, prefix_cache=False) as model:
        drafter, rng = drafter_of(model), random.Random(5)
        s, fresh = (begin(model, rng, i) for i in range(2))
        for _ in range(examples(40)):
            n = rng.randrange(1, 9)
            while drafter.unread(s):
                drafter.read([s])
            draft = drafter.draft([s], {s.id: n})[s.id]
            fresh.ids = list(s.ids)
            drafter.ended(fresh)
            while drafter.unread(fresh):
                drafter.read([fresh])
            again = drafter.draft([fresh], {fresh.id: n})[fresh.id]
            assert again == draft
            taken = rng.randrange(len(draft.tokens) + 1)
            s.ids += [
                *draft.tokens[:taken],
                *rng.choices(range(model.spec.vocab), k=rng.choice((1, 1, 3))),
            ]
        drafter.ended(s)
        drafter.ended(fresh)
        drafter.pool.check()


def begin(model: LoadedModel, rng: random.Random, id: int) -> Sequence:
    ids = rng.choices(range(model.spec.vocab), k=150)
    return Sequence.of(id, Request(ids, SamplingParams(max_tokens=1)), 1, model.spec.vocab)
