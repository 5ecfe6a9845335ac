"""`zinc verify --kernels`: the cases of the op registry on a backend; wrong kernels are named."""

from __future__ import annotations

import json

import effort
import pytest
from backends.overlay import copied_kernels
from present import computing

from zinc.backends import api, vulkan
from zinc.backends.vulkan import shaders
from zinc.testing import parity

needs_compiler = pytest.mark.skipif(
    "vulkan" not in computing() or shaders.compiler() is None,
    reason="Vulkan or a Slang compiler is not here",
)


@pytest.fixture
def few_cases(monkeypatch):
    """Run one case in thirty, or in 120 by default, so that they take seconds."""
    few = parity.every_case()[:: 30 if effort.EVERY else 120]
    monkeypatch.setattr(parity, "every_case", lambda: few)
    return few


@pytest.mark.parametrize("name", computing())
def test_every_kernel_is_tested_before_the_model(zinc, few_cases, fixture_model, name):
    result = zinc("verify", fixture_model, "--kernels", "--tokens", 4, "--backend", name)
    assert result.status == 0, result.out
    n_cases = sum(parity.is_for(api.kernels(name), op, case) for op, case in few_cases)
    assert f"kernels agree in {n_cases} cases" in result.out
    assert "launches agree\n" in result.out
    options = ("--tokens", 4, "--backend", name, "--json")
    found = json.loads(zinc("verify", fixture_model, "--kernels", *options).out)["kernels"]
    assert found["departures"] == []
    assert {"embed", "linear"} <= set(found["tested"])


@pytest.mark.parametrize("name", computing())
def test_launches_of_fused_ops_agree(name):
    kernels = api.kernels(name)
    cases = [
        (op, case)
        for op, case in parity.every_case()
        if op.alternative is not None and parity.is_for(kernels, op, case)
    ]
    for op, case in cases:
        checks = parity.compare_case(op, case, api.create(name))
        assert not [check for check in checks if check.departs]


@pytest.mark.parametrize("name", computing())
def test_numbers_that_kernels_store_as_zeros_are_no_fault(zinc, monkeypatch, fixture_model, name):
    smallest = [each for each in parity.every_case() if each[1].name == "smallest"]
    assert smallest
    monkeypatch.setattr(parity, "every_case", lambda: smallest)
    result = zinc("verify", fixture_model, "--kernels", "--tokens", 4, "--backend", name)
    assert result.status == 0, result.out


@needs_compiler
def test_the_kernels_of_all_cases_are_compiled_at_once(few_cases, monkeypatch):
    """The cases themselves then compile nothing."""
    monkeypatch.setattr(parity, "every_case", lambda: few_cases[::2])
    backend = vulkan.create()
    batches = []

    def prepare(self, wanted, progress=None):
        batches.append({s for s in wanted if s not in self._made})
        return made(self, batches[-1], progress)

    made = shaders.Pipelines.prepare
    monkeypatch.setattr(shaders.Pipelines, "prepare", prepare)
    monkeypatch.setattr(backend.host.pipelines, "_made", {})
    results = list(parity.compare_cases(lambda: vulkan.VulkanBackend(backend.device)))
    assert len(results) == sum(parity.is_for(backend, op, case) for op, case in few_cases[::2])
    assert batches[0]
    assert not set().union(*batches[1:])


@needs_compiler
@pytest.mark.parametrize(
    ("case", "kernel", "file", "right", "wrong"),
    [
        ("row256", "rms_norm", "norm", "/ float(n) + args.eps", "/ float(n + 1) + args.eps"),
        pytest.param(
            *("Q4_K-48x512-1", "linear", "product", "sum -= w.m.x * x.s", "sum += w.m.x * x.s"),
            marks=pytest.mark.every,
        ),
        pytest.param(
            *("few", "attention", "few_queries", "y / all.sum", "y / (all.sum + 0.1)"),
            marks=pytest.mark.every,
        ),
    ],
)
def test_a_kernel_that_is_compiled_wrongly_is_named(
    zinc, monkeypatch, tmp_path, fixture_model, case, kernel, file, right, wrong
):
    """One line of the source is changed, as if a compiler had a bug."""
    folder = tmp_path / "kernels"
    copied_kernels(folder, monkeypatch)
    text = (folder / f"{file}.slang").read_text()
    assert right in text
    (folder / f"{file}.slang").write_text(text.replace(right, wrong))
    monkeypatch.setenv("ZINC_CACHE", str(tmp_path / "cache"))
    named = [(op, c) for op, c in parity.every_case() if (op.name, c.name) == (kernel, case)]
    monkeypatch.setattr(parity, "every_case", lambda: named)
    result = zinc("verify", fixture_model, "--tokens", 2, "--backend", "vulkan", "--kernels")
    assert result.status == 1
    _, first, runs, *_ = result.out.splitlines()
    assert f"({kernel}) differs in the case {case} of {kernel}: relative error" in first
    assert runs.startswith("it runs ")
    assert f"-DSUBGROUP={vulkan.create().features.subgroup}" in runs
