"""GPUs that share one memory with the CPU: memory types, uploads and free memory.

tests/engine/test_device_map.py looks at models that are divided between such a GPU and the CPU.
"""

from __future__ import annotations

import numpy as np
import pytest
from backends.apple import KOSMICKRISP_MEMORY, MOLTENVK_MEMORY
from models.harness import FIXTURES
from present import absent

from zinc import LLM, SamplingParams
from zinc.backends import vulkan
from zinc.backends.vulkan import device, memory
from zinc.backends.vulkan.device import open_device
from zinc.backends.vulkan.memory import Memory, Staging, choose_type, set_aside_bytes
from zinc.backends.vulkan.vk import types as vk
from zinc.core import host_memory
from zinc.gpu.memory import MemoryKind

needs_device = pytest.mark.skipif("vulkan" in absent(), reason=absent().get("vulkan", ""))

LOCAL, VISIBLE, COHERENT, CACHED = 1, 2, 4, 8
PROTECTED = 32
SHARED, HOST = LOCAL | VISIBLE | COHERENT, VISIBLE | COHERENT
RADV_UNCACHED = 0xC0  # DEVICE_COHERENT and DEVICE_UNCACHED of AMD
GB = 1 << 30

# Heaps in bytes, and types as (flags, heap). Those of AMD and Intel are what RADV and ANV of Mesa
# 26.1.6 report in dev/gpu-rigs for strix1, navi21 and lnl, scaled to machines of 128 and 32 GB, and
# those of Apple what the sources of the drivers say (apple.py).
STRIX_HALO = (
    [42 * GB, 85 * GB],
    [
        *((LOCAL, 1), (LOCAL, 1), (HOST, 0), (SHARED, 1), (SHARED, 1), (HOST | CACHED, 0)),
        *((HOST | CACHED, 0), (LOCAL | RADV_UNCACHED, 1), (HOST | RADV_UNCACHED, 0)),
        (SHARED | RADV_UNCACHED, 1),
    ],
)
# Cached memory of Lunar Lake and Meteor Lake is not coherent, so zinc does not use it.
LUNAR_LAKE = (
    [30 * GB],
    [
        *((SHARED, 0), (LOCAL | VISIBLE | CACHED, 0), (LOCAL | PROTECTED, 0)),
        *((SHARED, 0), (LOCAL | VISIBLE | CACHED, 0)),
    ],
)
# A discrete GPU whose host sees 256 MB of its memory.
NAVI21 = (
    [16 * GB, 16 * GB, GB >> 2],
    [(LOCAL, 0), (LOCAL, 0), (HOST, 1), (SHARED, 2), (SHARED, 2), (HOST | CACHED, 1)],
)
# A discrete GPU whose host sees all of its memory (resizable BAR).
NAVI31 = (
    [24 * GB, 32 * GB],
    [(LOCAL, 0), (HOST, 1), (SHARED, 0), (HOST | CACHED, 1)],
)


def chosen(table, kind: MemoryKind, unified: bool) -> int:
    heaps, types = table
    properties = vk.MemoryProperties(nTypes=len(types), nHeaps=len(heaps))
    for i, size in enumerate(heaps):
        properties.heaps[i].size = size
    for i, (flags, heap) in enumerate(types):
        properties.types[i].flags, properties.types[i].heap = flags, heap
    return types[choose_type(properties, kind, unified, 0xFFFFFFFF)]


@pytest.mark.parametrize(
    ("table", "unified", "device_type"),
    [
        pytest.param(STRIX_HALO, True, (SHARED, 1), id="strix-halo"),
        pytest.param(LUNAR_LAKE, True, (SHARED, 0), id="lunar-lake"),
        pytest.param(MOLTENVK_MEMORY, True, (SHARED | CACHED, 0), id="moltenvk"),
        pytest.param(KOSMICKRISP_MEMORY, True, (SHARED | CACHED, 0), id="kosmickrisp"),
        pytest.param(NAVI21, False, (LOCAL, 0), id="navi21"),
        pytest.param(NAVI31, False, (LOCAL, 0), id="navi31"),
        # Of a large heap that the host cannot see and a small one that it sees, size counts.
        pytest.param(NAVI21, True, (LOCAL, 0), id="two-heaps"),
    ],
)
def test_weights_lie_in_memory_that_the_host_sees_only_if_it_is_shared(table, unified, device_type):
    assert chosen(table, MemoryKind.DEVICE, unified) == device_type
    for kind in (MemoryKind.STEP, MemoryKind.DOWNLOAD):
        flags, _ = chosen(table, kind, unified)
        assert flags & HOST == HOST


@pytest.fixture
def unified(monkeypatch):
    """The device of these tests, as if it were an integrated GPU."""
    monkeypatch.setattr(device, "_open", {})
    monkeypatch.setattr(vulkan, "host_of", vulkan.host_of.__wrapped__)
    opened = open_device()
    opened.unified = True
    return opened


@needs_device
def test_an_idle_device_is_written_without_copies(unified):
    pool = Memory(unified)
    staging, target = Staging(pool), pool.buffer(1 << 20)
    assert target.bytes is not None
    data = np.random.default_rng(1).integers(0, 256, 1000, dtype=np.uint8)
    staging.write(target, 24, data)
    assert unified._last == 0, "nothing was submitted"
    assert np.array_equal(target.bytes[24:1024], data)
    assert np.array_equal(staging.read(target, 24, 1000), data)


@needs_device
def test_a_busy_device_is_written_in_order(unified):
    """A write waits in the queue for the copies before it, instead of overtaking them."""
    pool = Memory(unified)
    staging, target, large = Staging(pool), pool.buffer(64 << 20), pool.buffer(64 << 20)
    data = np.random.default_rng(2).integers(0, 256, 1000, dtype=np.uint8)
    for _ in range(8):
        staging.clear(large)
        staging.copy(large, 0, target, 0, target.size)
        staging.write(target, 500, data)
    found = staging.read(target, 0, 2000)
    assert np.array_equal(found[500:1500], data)
    assert not found[:500].any()
    assert not found[1500:].any()


@needs_device
def test_a_model_gives_the_same_tokens_and_uploads_nothing(unified, monkeypatch):
    staged: list[int] = []
    real = Staging._turn
    monkeypatch.setattr(Staging, "_turn", lambda self: staged.append(1) or real(self))
    greedy = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)

    def answer() -> list[int]:
        with LLM(FIXTURES / "qwen3.gguf", backend="vulkan", context=64) as llm:
            return llm.generate([1, 2, 3], greedy).token_ids

    found = answer()
    n_staged, staged[:] = len(staged), []
    unified.unified = False
    assert found == answer()
    assert n_staged < len(staged)


@needs_device
def test_free_memory_is_what_programs_can_still_allocate(unified, monkeypatch):
    free = Memory(unified).device.memory()[1][0]
    monkeypatch.setattr(host_memory, "available_memory_bytes", lambda: free // 2)
    monkeypatch.setattr(memory, "set_aside_bytes", lambda address: 100)
    assert Memory(unified).available_bytes() == free // 2 + 100
    assert Memory(unified).shared_bytes() == free // 2 + 100
    unified.unified = False
    assert Memory(unified).available_bytes() == free
    assert Memory(unified).shared_bytes() is None


def test_memory_that_firmware_sets_aside_counts_for_amd(tmp_path):
    folder = tmp_path / "0000:c4:00.0"
    folder.mkdir()
    assert set_aside_bytes("0000:c4:00.0", tmp_path) == 0
    (folder / "mem_info_vram_total").write_text(f"{96 * GB}\n")
    (folder / "mem_info_vram_used").write_text(f"{GB}\n")
    assert set_aside_bytes("0000:c4:00.0", tmp_path) == 95 * GB
    assert set_aside_bytes("", tmp_path) == 0
