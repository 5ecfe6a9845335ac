"""Refactoring leaves every plan and every Vulkan dispatch as it was."""

from __future__ import annotations

from difflib import unified_diff

import pytest
from goldens import pins


@pytest.mark.alike(36)
@pytest.mark.parametrize("name", pins.names())
def test_plan_and_dispatches_equal_the_golden(name: str) -> None:
    path = pins.FOLDER / f"{name}.txt"
    golden, now = path.read_text(), pins.pinned(name)
    diff = list(unified_diff(golden.splitlines(), now.splitlines(), "golden", "now", n=0))
    assert not diff, (
        "\n".join(diff[:40])
        + f"\n{len(diff)} lines differ. "
        + f"If the change is intended: PYTHONPATH=tests python -m goldens.pins {name}"
    )


def test_goldens_belong_to_models_that_exist() -> None:
    assert sorted(path.stem for path in pins.FOLDER.glob("*.txt")) == sorted(pins.names())
