"""Sparse attention in the engine: prefix cache, batches and drafts change no token.

Prompts are many times longer than the number of positions that a token attends to.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from models.nextn_files import with_nextn
from present import computing

from zinc.engine.load.model import LoadedModel
from zinc.engine.load.options import LoadOptions
from zinc.engine.request import Request
from zinc.engine.sampling import SamplingParams

FIXTURES = Path(__file__).parent.parent / "data" / "fixtures"
GREEDY = SamplingParams(temperature=0, max_tokens=24)

pytestmark = pytest.mark.skipif("cpu" not in computing(), reason="the CPU backend is not built")


def options_of(name: str) -> LoadOptions:
    path = FIXTURES / f"{name}.gguf"
    return LoadOptions(path, backend="cpu", context=256, batch_tokens=32, speculate="off")


def prompt(n: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 96, n).tolist()


def answers(model: LoadedModel, prompts: list[list[int]]) -> list[list[int]]:
    """Return the ids of all prompts with their answers, which run at the same time."""
    sequences = [model.engine.submit(Request(ids, GREEDY)) for ids in prompts]
    while any(s.finish_reason is None for s in sequences):
        model.engine.step()
    model.engine.pool.check()
    return [list(s.ids) for s in sequences]


@pytest.mark.parametrize("name", ["deepseek32", "glmdsa"])
def test_a_second_turn_reuses_keys_and_index_keys(name: str, tmp_path: Path) -> None:
    """Within a process, and from a cache on disk."""
    found = []
    for prefix_cache, folder in ((False, None), (True, tmp_path), (True, tmp_path)):
        options = replace(options_of(name), prefix_cache=prefix_cache, cache_dir=folder)
        with LoadedModel.open(options) as model:
            (first,) = answers(model, [prompt(100, 1)])
            s = model.engine.submit(Request([*first, *prompt(40, 2)], GREEDY))
            while s.finish_reason is None:
                model.engine.step()
            assert (s.n_cached >= 64) is prefix_cache
            found.append(list(s.ids))
    assert found[0] == found[1] == found[2]


def test_answers_do_not_depend_on_company() -> None:
    prompts = [prompt(n, n) for n in (5, 60, 120)]
    with LoadedModel.open(replace(options_of("glmdsa"), prefix_cache=False)) as model:
        alone = [answers(model, [ids])[0] for ids in prompts]
        assert answers(model, prompts) == alone


@pytest.mark.parametrize("mode", ["suffix", "mtp"])
def test_drafts_change_no_token(mode: str, tmp_path: Path) -> None:
    """Rejected drafts leave index keys behind, which later tokens overwrite."""
    path = with_nextn("deepseek32", tmp_path / "m.gguf")
    ids = prompt(20, 3) * 4
    found = []
    for speculate in ("off", mode):
        options = replace(options_of("deepseek32"), path=path, speculate=speculate)
        with LoadedModel.open(options) as model:
            s = model.engine.submit(Request(ids, replace(GREEDY, max_tokens=80)))
            while s.finish_reason is None:
                model.engine.step()
            found.append(list(s.ids))
    assert found[0] == found[1]
    assert s.drafts.n_accepted < s.drafts.n_drafted
