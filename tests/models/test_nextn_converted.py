"""NextN blocks in files that llama.cpp's converter wrote beside models, against transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from engine.speculative.nextn_runs import Runs
from models.harness import Runner, relative_error, rewrite
from models.nextn_files import CONVERTED, CONVERTED_NAMES, model_with_blocks
from models.test_nextn_draft import BACKENDS, TOLERANCE, planned

from zinc.engine.load.speculation import with_nextn_beside
from zinc.formats.gguf import GGUFArray, GGUFFile
from zinc.models import load, load_drafts
from zinc.models.parts.spec import NextNInput

CASES = [
    pytest.param(
        name,
        backend,
        marks=() if backend in ("ref", "cpu") else pytest.mark.every,
    )
    for name in CONVERTED_NAMES
    for backend in BACKENDS
]


@pytest.mark.parametrize(("name", "backend"), CASES)
def test_logits_are_those_of_transformers(name: str, backend: str, tmp_path: Path) -> None:
    """The model makes the hidden rows, and each block reads a text in two chunks."""
    path = model_with_blocks(name, tmp_path)
    with np.load(CONVERTED / f"{name}.npz") as data:
        ids, want = data["tokens"], data["logits"]
    with GGUFFile.open(path) as alone:
        file = with_nextn_beside(alone, "mtp")
        spec, graph = load(file, hidden=True)
        model = Runner(path, loaded=planned(file, graph, backend))
        model.feed((0, ids))
        hidden = model.program.plan.hidden
        assert hidden is not None
        rows = model.program.read(hidden, len(ids))
        graphs, _ = load_drafts(file)
        assert len(graphs) == len(want) == spec.n_nextn
        for graph, its_logits in zip(graphs, want, strict=True):
            rows = np.concatenate([np.zeros((1, spec.hidden), np.float32), rows[:-1]])
            runner = Runner(path, loaded=planned(file, graph, backend))
            plan, logits, own = runner.program.plan, [], []
            assert plan.given is not None
            for part in (slice(0, 17), slice(17, None)):
                runner.program.write(plan.given, rows[part])
                logits += runner.feed((0, ids[part]))
                if plan.hidden is not None:
                    own.append(runner.program.read(plan.hidden, len(ids[part])))
            assert relative_error(np.concatenate(logits), its_logits) <= TOLERANCE[backend]
            if spec.nextn_input is NextNInput.PREVIOUS and own:
                rows = np.concatenate(own)


@pytest.mark.parametrize("name", CONVERTED_NAMES)
def test_drafts_are_those_of_a_file_with_both(name: str, tmp_path: Path) -> None:
    path = model_with_blocks(name, tmp_path)
    (tmp_path / "whole").mkdir()
    with GGUFFile.open(path) as alone:
        file = with_nextn_beside(alone, "mtp")
        whole = rewrite(
            path,
            tmp_path / "whole" / "model.gguf",
            metadata={
                key: value.to_list() if isinstance(value, GGUFArray) else value
                for key, value in file.metadata.items()
                if key.startswith(file.str("general.architecture"))
            },
            tensors={n: t.to_float32() for n, t in file.tensors.items() if n not in alone.tensors},
        )
    ids = np.random.default_rng(1).integers(96, size=30).tolist()
    found = []
    for each in (path, whole):
        with Runs(each, "cpu", speculate="mtp") as runs:
            s = runs.begin(ids)
            runs.run({s: len(ids) - 1})
            draft = runs.drafter.draft([s], {s.id: 4})[s.id]
            found.append((draft.tokens, draft.probabilities))
    (tokens, probabilities), (their_tokens, theirs) = found
    assert tokens == their_tokens
    # The blocks of the second file are float32, and products with F16 weights round to 15 bits.
    np.testing.assert_allclose(probabilities, theirs, rtol=3e-3)
