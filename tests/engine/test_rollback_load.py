"""Models that are loaded with recurrent states that can be rolled back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from effort import on_backends
from present import computing

from zinc.core.errors import RequestError
from zinc.engine.cache_layout import state_bytes_per_sequence
from zinc.engine.load.model import LoadedModel
from zinc.engine.load.options import LoadOptions
from zinc.engine.load.planning import plan_model
from zinc.engine.readout import ReadoutKind
from zinc.engine.request import Request
from zinc.engine.sampling import SamplingParams
from zinc.formats.gguf import GGUFFile
from zinc.ops.recurrent_state import CHUNK

FIXTURES = Path(__file__).parent.parent / "data" / "fixtures"
GREEDY = SamplingParams(temperature=0, max_tokens=40)
TURNS = [np.random.default_rng(i).integers(3, 500, 70).tolist() for i in (1, 2)]

pytestmark = pytest.mark.skipif("cpu" not in computing(), reason="the CPU backend is not built")


def options_of(
    name: str, rollback: int, cache_dir: Path | None = None, backend: str = "cpu"
) -> LoadOptions:
    return LoadOptions(
        path=FIXTURES / f"{name}.gguf",
        backend=backend,
        backend_options={} if backend == "cpu" else {"batch_invariant": "true"},
        context=256,
        rollback=rollback,
        speculate="off",
        cache_dir=cache_dir,
    )


def conversation(model: LoadedModel) -> tuple[list[int], int]:
    """Return the ids of two turns with their answers, and the cached tokens of the second."""
    ids: list[int] = []
    n_cached = 0
    for turn in TURNS:
        s = model.engine.submit(Request([*ids, *turn], GREEDY))
        while s.finish_reason is None:
            model.engine.step()
        ids, n_cached = list(s.ids), s.n_cached
    model.engine.pool.check()
    return ids, n_cached


@pytest.mark.parametrize(("name", "backend"), on_backends(["qwen35", "qwen3next"], computing(), []))
def test_answers_do_not_change_and_caches_on_disk_are_apart(
    name: str, backend: str, tmp_path: Path
) -> None:
    texts, keys = [], []
    for rollback in (0, CHUNK, CHUNK):
        with LoadedModel.open(options_of(name, rollback, tmp_path, backend)) as model:
            text, n_cached = conversation(model)
            assert n_cached >= 64  # of the first turn
            texts.append(text)
            assert model.engine.disk is not None
            keys.append(model.engine.disk.store.key)
    assert texts[0] == texts[1] == texts[2]
    assert keys[0] != keys[1] == keys[2]


def test_memory_counts_the_larger_states() -> None:
    found = []
    for rollback in (0, CHUNK):
        with plan_model(options_of("qwen35", rollback)) as planned:
            (budget,) = planned.budgets()
            assert budget.states == planned.plans[0].states
            found.append(state_bytes_per_sequence(budget.states))
        with LoadedModel.open(replace(options_of("qwen35", rollback), sequences=2)) as model:
            pool = model.engine.pool
            assert pool.state_bytes == found[-1]
            assert model.cache.n_bytes == pool.total_bytes
    assert found[1] > 2 * found[0]


def test_a_model_without_recurrent_layers_is_the_same() -> None:
    hashes = set()
    for rollback in (0, CHUNK):
        with plan_model(options_of("gemma3", rollback)) as planned:
            hashes.add(planned.plans[0].hash)
    assert len(hashes) == 1


def test_programs_for_readouts_use_the_same_states() -> None:
    with LoadedModel.open(options_of("qwen35", CHUNK)) as model:
        prepare = model.engine._runner._prepare
        assert prepare is not None
        assert prepare(ReadoutKind.HIDDEN, False, False).plan.states == model.plan.states


def test_a_file_is_closed_if_its_cache_folder_cannot_be_used(tmp_path: Path) -> None:
    taken = tmp_path / "file"
    taken.touch()
    options = options_of("gemma3", 0, cache_dir=taken)
    assert options.path is not None
    file = GGUFFile.open(options.path)
    with pytest.raises(RequestError, match="not a folder"):
        plan_model(options, file=file)
    assert not file.tensors
