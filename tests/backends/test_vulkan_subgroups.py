"""Vulkan kernels with subgroups of 16, which Intel's GPUs have.

Lavapipe, Mesa's driver for CPUs, has as many lanes as its vectors have float32 numbers. It reads
LP_NATIVE_VECTOR_WIDTH when it starts, so child processes run the tests. Vectors have at most 512
bits, so 32 lanes cannot be had, and zinc refuses the 4 lanes of 128 bits.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from present import absent

from zinc.backends.vulkan import physical, shaders

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.every,
    pytest.mark.skipif("vulkan" in absent(), reason=absent().get("vulkan", "")),
    pytest.mark.skipif(shaders.compiler() is None, reason="needs a Slang compiler"),
]

# Tests for a child, with the name of a selection. The first has the registers of Intel's GPUs.
SELECTIONS = {
    "few registers": ("tests/backends/test_vulkan_registers.py", "attention or delta or ssm"),
    "ops": ("tests/ops/test_ops.py", "vulkan and not linear and not moe"),
    "models": ("tests/models/test_fixtures.py", "vulkan and (qwen3-vulkan or qwen35moe)"),
}


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """The environment of a child. Pipelines of other vectors are not reused."""
    if physical.choose().kind != "CPU":
        pytest.skip("the default Vulkan device is not lavapipe")
    paths = [str(ROOT / "src"), str(ROOT / "tests")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "LP_NATIVE_VECTOR_WIDTH": "512",
        "MESA_SHADER_CACHE_DISABLE": "true",
        "ZINC_CACHE": str(tmp_path),
    }


def output(variables: dict[str, str], *arguments: str) -> str:
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    return done.stdout


def test_the_vectors_are_16_lanes_wide(variables: dict[str, str]) -> None:
    code = "from zinc.backends import api; print(api.create('vulkan').features.subgroup)"
    assert output(variables, "-c", code).split()[-1] == "16"


@pytest.mark.parametrize("name", SELECTIONS)
def test_kernels_with_16_lanes_agree_with_reference(variables: dict[str, str], name: str) -> None:
    path, selection = SELECTIONS[name]
    text = output(variables, "-m", "pytest", "--every", "-p", "no:xdist", path, "-k", selection)
    found = re.search(r"(\d+) passed", text)
    assert found
    assert int(found[1]) > 0
