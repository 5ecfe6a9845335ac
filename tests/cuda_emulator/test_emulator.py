"""The emulator's own behaviour: barriers, warp functions and errors in their use."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from cuda_emulator.emulated import COMPILER, HERE

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no g++")

PROGRAM = """
#include "emulator.h"
int main() {
    int out[64] = {};
    emulator::launch({ 1, 1, 1 }, 64, 1, [&] {
        static __shared__ int shared[64];
        const int i = threadIdx.x;
        %s
    });
    for (int x : out) std::printf("%%d ", x);
}
"""


def run(tmp_path: Path, body: str) -> subprocess.CompletedProcess[str]:
    """Compile and run 64 threads that execute `body`, which fills `out`."""
    source, program = tmp_path / "main.cpp", tmp_path / "main"
    source.write_text(PROGRAM % body)
    options = ["-std=c++20", "-w", f"-I{HERE}"]
    subprocess.run([COMPILER, *options, str(source), "-o", str(program)], check=True)
    return subprocess.run([program], capture_output=True, text=True, check=False)


def test_barriers_and_shuffles_exchange_values(tmp_path: Path) -> None:
    body = """
        shared[i] = i;
        __syncthreads();
        out[i] = shared[63 - i] + __shfl_xor_sync(~0u, 100 * i, 1);
    """
    done = run(tmp_path, body)
    assert list(map(int, done.stdout.split())) == [63 - i + 100 * (i ^ 1) for i in range(64)]


def test_a_warp_function_that_not_all_lanes_of_its_mask_call_is_an_error(tmp_path: Path) -> None:
    body = "if (i % 2) __shfl_xor_sync(~0u, i, 1); else __syncthreads();"
    done = run(tmp_path, body)
    assert done.returncode != 0
    assert "threads wait for others that never come" in done.stderr


def test_a_lane_outside_the_mask_is_an_error(tmp_path: Path) -> None:
    done = run(tmp_path, "__shfl_xor_sync(1u, i, 1);")
    assert done.returncode != 0
    assert "without being in its mask" in done.stderr
