"""Answers of models that draft with their NextN block: the same tokens as without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from effort import EVERY, on_backends
from engine.speculative.verified import (
    Eager,
    accepted,
    check_same,
    finish,
    guess_mostly_right,
    plain,
    requests,
    verifying,
)
from models.nextn_files import CONVERTED_NAMES, model_with_blocks, with_nextn
from present import computing

from zinc.backends import micro_batches
from zinc.backends.api import FinishedStep
from zinc.backends.capabilities import BackendKind
from zinc.backends.micro_batches import Pipeline
from zinc.backends.plans import SplitPlan
from zinc.engine.load.model import LoadedModel
from zinc.engine.load.options import LoadOptions
from zinc.engine.speculative.draft import NO_DRAFT
from zinc.engine.speculative.tracker import Source
from zinc.gpu import program as gpu_program
from zinc.ops.step import Step
from zinc.plan.device_map import DeviceMap

DEVICES = [name for name in computing() if name != "cpu"]
NAMES = ["qwen35", "glm4moe", *["qwen3next", "deepseek2v3"] * EVERY]


@pytest.mark.alike(4)
@pytest.mark.parametrize(
    ("name", "backend"),
    on_backends([*NAMES, *CONVERTED_NAMES], computing(), ["qwen35"]),
)
def test_the_block_changes_no_token(
    name: str, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers are those of the model loaded without its block.

    A random block predicts no token, so two of three drafted tokens are those of the answer.
    """
    is_converted = name in CONVERTED_NAMES  # some of which have several blocks
    path = (
        model_with_blocks(name, tmp_path) if is_converted else with_nextn(name, tmp_path / "m.gguf")
    )
    options = LoadOptions(
        path,
        backend=backend,
        context=256,
        backend_options={} if backend == "cpu" else {"batch_invariant": "true"},
    )
    with LoadedModel.open(replace(options, speculate="off")) as model:
        asked = requests(model, 3, longer=9, max_tokens=30)
        want = finish(model, plain(asked))
    guess_mostly_right(want, monkeypatch)
    with LoadedModel.open(options) as model, verifying(model, Source.NEXTN, 3):
        found = finish(model, asked)
        check_same(want, found)
        model.engine.pool.check()
    assert sum(s.drafts.n_drafted for s in found) > 50
    assert 0.2 < accepted(found) < 0.9


@pytest.mark.parametrize("call", ["took", "catch_up"])
def test_a_block_that_fails_to_read_a_text_fails_no_answer(
    call: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = LoadOptions(with_nextn("qwen35", tmp_path / "m.gguf"), backend="cpu", context=256)
    with LoadedModel.open(options) as model, verifying(model, Source.NEXTN, 3):
        asked = requests(model, 3)
        want = finish(model, plain(asked))
        monkeypatch.setattr(model.drafter, call, lambda *_: 1 / 0)
        check_same(want, finish(model, asked))
        assert caplog.text.count("drafts of the source nextn are off") == 1
        model.engine.pool.check()


class Idle(Eager):
    """A policy of sequences that drafted, whose drafts do not pay at the moment."""

    def __init__(self, *, waits: bool) -> None:
        super().__init__(0)
        self._waits = waits

    def pays(self, n_streams: int, n_rows: int) -> bool:
        return self._waits


@pytest.mark.parametrize("backend", DEVICES)
def test_the_block_gets_the_rows_of_steps_that_others_were_queued_behind(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device runs one step ahead while no draft is likely, and a later draft needs the rows.

    Those of a prompt are not copied with its step.
    """
    monkeypatch.setattr(gpu_program, "MAX_HIDDEN_BYTES", 1024)
    options = LoadOptions(
        with_nextn("qwen35", tmp_path / "m.gguf"),
        backend=backend,
        context=128,
        backend_options={"batch_invariant": "true"},
    )
    found = []
    with LoadedModel.open(options) as model:
        engine = model.engine
        assert engine.speculation is not None
        chain, drafter = engine.speculation.chains[Source.NEXTN], model.drafter
        monkeypatch.setattr(engine.speculation, "_suffix", lambda *_: NO_DRAFT)
        assert drafter is not None
        for waits in (True, False):
            monkeypatch.setattr(chain, "policy", Idle(waits=waits))
            (request,) = requests(model, 1, max_tokens=30, ignore_eos=True)
            s, n_ahead, rows = engine.submit(request), 0, np.empty(0)
            while s.finish_reason is None:
                engine.step()
                n_ahead += engine._in_flight is not None
                if s.finish_reason is None:
                    progress = drafter.blocks[0].progress[s.id]
                    assert progress.end == len(s.ids)
                    rows = np.stack(progress.rows)
            assert (n_ahead > 20) is not waits
            found.append(rows)
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("backend", DEVICES)
def test_a_device_that_runs_ahead_measures_drafts_now_and_then(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = LoadOptions(
        with_nextn("qwen35", tmp_path / "m.gguf"),
        backend=backend,
        context=128,
        backend_options={"batch_invariant": "true"},
    )
    with LoadedModel.open(options) as model:
        engine = model.engine
        assert engine.speculation is not None
        policy = engine.speculation.chains[Source.NEXTN].policy
        monkeypatch.setattr(engine.speculation, "_suffix", lambda *_: NO_DRAFT)
        monkeypatch.setattr(policy, "wants", lambda: True)
        monkeypatch.setattr(policy, "_best_depth", lambda *_: (0, 1.0))
        n_steps: list[int] = []
        monkeypatch.setattr(policy, "took", lambda seconds, n: n_steps.append(n) or seconds)
        (request,) = requests(model, 1, max_tokens=90, ignore_eos=True)
        s, n_ahead = engine.submit(request), 0
        while s.finish_reason is None:
            engine.step()
            n_ahead += engine._in_flight is not None
        assert 70 < n_ahead < 89
        assert n_steps == [1, 1]  # steps of the block, after 32 and after 64 tokens


TWO_GPUS = [",".join(["vulkan:0"] * 2)] * ("vulkan" in DEVICES)


@pytest.mark.parametrize(
    ("name", "devices", "split"),
    [
        ("qwen35", "cpu,cpu,cpu", "layer"),
        ("qwen35", "cpu,cpu,cpu", "tensor"),
        *(
            pytest.param("glm4moe", two, split, marks=pytest.mark.every)
            for split in ("layer", "tensor")
            for two in TWO_GPUS
        ),
        *(
            pytest.param(name, devices, "tensor", marks=pytest.mark.every)
            for name in ("qwen3next", "deepseek2v3", *CONVERTED_NAMES)
            for devices in ("cpu,cpu", *TWO_GPUS)
        ),
    ],
)
def test_the_block_of_a_divided_model_changes_no_token(
    name: str, devices: str, split: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokens, also those that the block predicts, are those of one device.

    With layers, the last device has the block, and prompts run in micro-batches, whose hidden rows
    it reads. With tensors, each device has a part of the block.
    """
    monkeypatch.setattr(micro_batches, "MICRO_BATCH_TOKENS", dict.fromkeys(BackendKind, 8))
    monkeypatch.setattr(micro_batches, "LEAST_TOKENS", 3)
    path = (
        model_with_blocks(name, tmp_path)
        if name in CONVERTED_NAMES
        else with_nextn(name, tmp_path / "m.gguf")
    )
    backend = devices.partition(":")[0].split(",")[0]
    invariant = {} if backend == "cpu" else {"batch_invariant": "true"}
    one = LoadOptions(path, backend=backend, context=256, backend_options=invariant)
    with LoadedModel.open(replace(one, speculate="off")) as model:
        asked = requests(model, 3, longer=40, max_tokens=30)
        want = finish(model, plain(asked))
    drafts, n_parts, run = [], [], Pipeline.run

    def counted(self: Pipeline, steps: Sequence[Step], logits: bool) -> list[FinishedStep]:
        n_parts.append(len(steps))
        return run(self, steps, logits)

    monkeypatch.setattr(Pipeline, "run", counted)
    predicted = guess_mostly_right(want, monkeypatch)
    divided = replace(
        one,
        backend="auto",
        backend_options={**invariant, "device": devices},
        device_map=DeviceMap(split=split),
        speculate="mtp",
    )
    for options in (replace(one, speculate="mtp"), divided):
        with LoadedModel.open(options) as model, verifying(model, Source.NEXTN, 3):
            found = finish(model, asked)
            check_same(want, found)
            model.engine.pool.check()
            drafts.append(predicted.copy())
            predicted.clear()
            plan = model.plan
    assert isinstance(plan, SplitPlan)
    assert plan.hidden == plan.parts[0 if split == "tensor" else -1].hidden
    assert bool(n_parts) == (split == "layer")
    assert len(drafts[0]) > 50
    assert drafts[0] == drafts[1]
