"""The SIMD level that the CPU backend chooses."""

from __future__ import annotations

import pytest

from zinc.core.errors import DeviceError

cpu = pytest.importorskip("zinc.backends.cpu")


def test_the_best_level_of_the_build_is_chosen():
    built, levels = cpu._cpu.built_levels(), cpu._cpu.levels()
    assert levels == [level for level in built if level in levels]
    assert cpu.create().level == levels[0]


def test_a_processor_without_any_level_of_the_build(monkeypatch):
    monkeypatch.setattr(cpu._cpu, "levels", list)
    monkeypatch.setattr(cpu._cpu, "built_levels", lambda: ["avx512", "avx2"])
    with pytest.raises(DeviceError) as caught:
        cpu.create()
    assert caught.value.message == (
        "the CPU backend has no kernels for this processor: it was built for avx512 and avx2 "
        "only. Run 'pip install --force-reinstall zinc-llm' for a build with all levels."
    )
