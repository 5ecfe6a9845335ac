"""The emulator's own behaviour: barriers, warp functions and errors in their use."""

from __future__ import annotations

import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from cuda_emulator import emulated
from cuda_emulator.emulated import COMPILER, OPTIONS, folder

from zinc.backends.cuda import compiler
from zinc.gpu.dispatch import KernelVariant

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

EARLY_PROGRAM = """
#include "emulator.h"
#define THREADS 32
struct None {};
EARLY_KERNEL(early, None)
{
    if (threadIdx.x != 3) waitForInputs();
}
int main() {
    None none;
    zinc_launch(&none, 1, 1, 1, 1);
}
"""


# A producer warp copies B in two steps of 16 rows, and a warp group multiplies.
GROUP_PROGRAM = """
#include "emulator.h"
#include "wgmma.cuh"
#define SHARED_BYTES 16384

float a(int i, int k) { return (7 * i + 3 * k) % 5 - 2; }
float b(int k, int j) { return (k + 2 * j) % 7 - 3; }
uint pair(float low, float high) { return packHalves(low, high); }

int main() {
    alignas(16) static uint8_t source[2][SHARED_BYTES];
    for (int step = 0; step < 2; step++)
        for (int k = 0; k < 16; k++)
            for (int j = 0; j < 64; j++)
            {
                const int at = j / 8 * GROUP_STRIDE / 2 + k / 8 * 64 + j % 8 * 8 + k % 8;
                ((uint16_t*)source[step])[at] = f32tof16(b(16 * step + k, j));
            }
    int wrong = 0;
    emulator::launch({ 1, 1, 1 }, 160, 1, [&] {
        static __shared__ __align__(16) uint8_t stage[SHARED_BYTES];
        static __shared__ Barrier full, empty;
        if (threadIdx.x == 0) initBarrier(&full, 1), initBarrier(&empty, 1);
        __syncthreads();
        if (threadIdx.x >= 128)
        {
            for (int step = 0; step < 2; step++)
            {
                if (threadIdx.x > 128) continue;
                if (step) waitForPhase(&empty, 0);
                arriveExpecting(&full, SHARED_BYTES);
                copyBulk(stage, source[step], SHARED_BYTES, &full);
            }
            return;
        }
        const int lane = threadIdx.x % 32, q = threadIdx.x / 32 * 16 + lane / 4, c = 2 * (lane % 4);
        float d[8][4] = {};
        for (int step = 0; step < 2; step++)
        {
            waitForPhase(&full, step);
            const int k = 16 * step + c;
            const uint f[4] = { pair(a(q, k), a(q, k + 1)), pair(a(q + 8, k), a(q + 8, k + 1)),
                                pair(a(q, k + 8), a(q, k + 9)),
                                pair(a(q + 8, k + 8), a(q + 8, k + 9)) };
            multiplyGroup(d, f, stage);
            commitProducts();
            WAIT
            if (threadIdx.x == 0) arrive(&empty);
        }
        for (int j = 0; j < 64; j++)
            for (int e = 0; e < 4; e++)
            {
                float sum = 0;
                const int row = q + 8 * (e / 2), column = j / 8 * 8 + c + e % 2;
                for (int k = 0; k < 32; k++) sum += a(row, k) * b(k, column);
                wrong += d[j / 8][e] != sum;
            }
    });
    std::printf("%d", wrong);
}
"""


def run(tmp_path: Path, body: str) -> subprocess.CompletedProcess[str]:
    """Compile and run 64 threads that execute `body`, which fills `out`."""
    return run_program(tmp_path, PROGRAM % body)


def run_program(tmp_path: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Compile a C++ program against the precompiled emulator, and run it."""
    source, program = tmp_path / "main.cpp", tmp_path / "main"
    source.write_text(text)
    headers = [f"-I{path}" for path in (folder(), compiler.KERNELS)]
    objects = [str(source), str(folder() / "runtime.o")]
    command = [COMPILER, *OPTIONS, *headers, *objects, "-o", str(program)]
    subprocess.run(command, check=True)
    return subprocess.run([program], capture_output=True, text=True, check=False)


def test_processes_that_share_a_cache_compile_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise one would write headers and sources while another one compiles them."""
    made: list[str] = []

    def slow(*arguments: Path) -> None:
        time.sleep(0.1)  # the others come meanwhile
        made.append(arguments[-1].name)
        arguments[-1].touch()

    monkeypatch.setenv("ZINC_CACHE", str(tmp_path))
    monkeypatch.setattr(emulated, "_compile", slow)
    monkeypatch.setattr(emulated, "folder", emulated.folder.__wrapped__)
    monkeypatch.setattr(emulated.ctypes, "CDLL", lambda path: SimpleNamespace(zinc_launch=Mock()))
    kernel = KernelVariant("concat", (("THREADS", 64),))
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(emulated.compiled, [kernel] * 3))
    assert len(made) == len(set(made)) == 3


def test_barriers_and_shuffles_exchange_values(tmp_path: Path) -> None:
    body = """
        shared[i] = i;
        __syncthreads();
        out[i] = shared[63 - i] + __shfl_xor_sync(~0u, 100 * i, 1);
    """
    done = run(tmp_path, body)
    assert list(map(int, done.stdout.split())) == [63 - i + 100 * (i ^ 1) for i in range(64)]


def test_lanes_find_those_with_the_same_value(tmp_path: Path) -> None:
    done = run(tmp_path, "out[i] = __popc(__match_any_sync(~0u, i % 32 < 5 ? 7 : i % 2));")
    assert (
        list(map(int, done.stdout.split())) == [5 if i < 5 else 13 + i % 2 for i in range(32)] * 2
    )


def test_a_warp_function_that_not_all_lanes_of_its_mask_call_is_an_error(tmp_path: Path) -> None:
    body = "if (i % 2) __shfl_xor_sync(~0u, i, 1); else __syncthreads();"
    done = run(tmp_path, body)
    assert done.returncode != 0
    assert "threads wait for others that never come" in done.stderr


def test_a_kernel_that_does_not_wait_for_its_inputs_is_an_error(tmp_path: Path) -> None:
    done = run_program(tmp_path, EARLY_PROGRAM)
    assert done.returncode != 0
    assert "thread 3: a thread ends without waiting for inputs" in done.stderr


def test_a_lane_outside_the_mask_is_an_error(tmp_path: Path) -> None:
    done = run(tmp_path, "__shfl_xor_sync(1u, i, 1);")
    assert done.returncode != 0
    assert "without being in its mask" in done.stderr


def test_a_product_of_tiles_multiplies_the_matrices_that_lanes_hold(tmp_path: Path) -> None:
    # A[i][k] = i + k and B[k][j] = j, if k is j: then D[i][j] = j * (i + j).
    body = """
        if (i >= 32) return;
        const int q = i / 4, c = 2 * (i %% 4);
        auto half = [](float x) { return uint32_t(bitCast<uint16_t>(_Float16(x))); };
        auto pair = [&](float x, float y) { return half(x) | half(y) << 16; };
        const uint32_t a[4] = { pair(q + c, q + c + 1), pair(q + c + 8, q + c + 9),
                                pair(q + c + 8, q + c + 9), pair(q + c + 16, q + c + 17) };
        float d[4] = { 0, 0, 0, 0 };
        emulator::multiply_tiles(d, a, pair(c == q ? q : 0, c + 1 == q ? q : 0), 0);
        bool same = true;
        for (int j = 0; j < 4; j++)
        {
            const int row = q + 8 * (j / 2), col = c + j %% 2;
            same = same && d[j] == col * (row + col);
        }
        out[i] = same;
    """
    done = run(tmp_path, body.replace("%%", "%"))
    assert list(map(int, done.stdout.split())) == [1] * 32 + [0] * 32


def test_a_product_of_bytes_multiplies_the_matrices_that_lanes_hold(tmp_path: Path) -> None:
    # A[i][k] = i - k and B[k][j] = -j, if k is j + 16: then D[i][j] = 1 - j * (i - j - 16).
    body = """
        if (i >= 32) return;
        const int q = i / 4, c = 4 * (i % 4);
        auto word = [](auto number) {
            uint32_t x = 0;
            for (int k = 0; k < 4; k++) x |= uint32_t(uint8_t(number(k))) << 8 * k;
            return x;
        };
        auto a = [&](int row, int col) { return word([&](int k) { return row - col - k; }); };
        auto b = [&](int row) { return word([&](int k) { return row + k == q + 16 ? -q : 0; }); };
        const uint32_t words[4] = { a(q, c), a(q + 8, c), a(q, c + 16), a(q + 8, c + 16) };
        int d[4] = { 1, 1, 1, 1 };
        emulator::multiply_byte_tiles(d, words, b(c), b(c + 16));
        bool same = true;
        for (int e = 0; e < 4; e++)
        {
            const int row = q + 8 * (e / 2), col = 2 * (i % 4) + e % 2;
            same = same && d[e] == 1 - col * (row - col - 16);
        }
        out[i] = same;
    """
    done = run(tmp_path, body)
    assert list(map(int, done.stdout.split())) == [1] * 32 + [0] * 32


def test_matrices_are_loaded_by_rows_or_by_columns(tmp_path: Path) -> None:
    body = """
        static __shared__ __align__(16) uint16_t rows[32][8];
        if (i >= 32) return;
        for (int j = 0; j < 8; j++) rows[i][j] = 8 * i + j;
        __syncwarp();
        uint32_t r[4];
        emulator::load_matrices(r, rows[i]);
        out[i] = r[3];
        emulator::load_matrices_transposed(r, rows[i]);
        out[32 + i] = r[3];
    """
    done = run(tmp_path, body)
    got = list(map(int, done.stdout.split()))
    for lane in range(32):
        q, c = lane // 4, 2 * (lane % 4)
        first, column = 192 + 8 * q + c, 192 + 8 * c + q
        assert got[lane] == first | first + 1 << 16
        assert got[32 + lane] == column | column + 8 << 16


def test_asynchronous_copies_take_effect_when_their_group_is_waited_for(tmp_path: Path) -> None:
    body = """
        static __shared__ __align__(16) int copied[64][8];
        alignas(16) int source[4] = { i, i, i, i };
        copied[i][4] = -1;
        emulator::copy_async(copied[i], source);
        emulator::commit_copies();
        emulator::copy_async(copied[i] + 4, nullptr);
        emulator::commit_copies();
        emulator::wait_for_copies(1);
        const int early = copied[i][4];
        emulator::wait_for_copies(0);
        out[i] = copied[i][3] + 100 * early + copied[i][4];
    """
    done = run(tmp_path, body)
    assert list(map(int, done.stdout.split())) == [i - 100 for i in range(64)]


def run_group(tmp_path: Path, wait: str) -> int:
    """Return how many results of the warp group are wrong."""
    done = run_program(tmp_path, GROUP_PROGRAM.replace("WAIT", wait))
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_a_warp_group_multiplies_what_bulk_copies_have_brought(tmp_path: Path) -> None:
    assert run_group(tmp_path, "waitForProducts<0>();") == 0


def test_products_that_are_not_waited_for_are_wrong(tmp_path: Path) -> None:
    assert run_group(tmp_path, "waitForProducts<1>();") > 0
