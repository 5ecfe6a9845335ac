"""Correct use of Vulkan: by many threads, by objects that are freed during a step, and under the
validation layer of Khronos.
"""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from ctypes import byref, c_uint64
from pathlib import Path

import pytest
from models.harness import FIXTURES
from present import absent

from zinc import LLM, SamplingParams
from zinc.backends.vulkan.device import CommandBuffer, Device, open_device
from zinc.backends.vulkan.memory import Memory
from zinc.backends.vulkan.vk import types as vk
from zinc.gpu.memory import MemoryKind

pytestmark = pytest.mark.skipif("vulkan" in absent(), reason=absent().get("vulkan", ""))

LAYERS = [Path(at, "vulkan/explicit_layer.d") for at in ("/usr/share", "/usr/local/share", "/etc")]
needs_layer = pytest.mark.skipif(
    not any(path.glob("VkLayer_khronos_validation.json") for path in LAYERS),
    reason="there is no validation layer (Debian's package vulkan-validationlayers)",
)
PATH = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
LONG = SamplingParams(temperature=0, max_tokens=200)  # the device samples, one step ahead


def fills(device: Device, target: int, value: int) -> CommandBuffer:
    """Return commands that fill 64 bytes of the buffer `target` with `value`."""
    commands = CommandBuffer(device)
    device.vk.vkBeginCommandBuffer(commands.handle, byref(vk.CommandBufferBeginInfo()))
    device.vk.vkCmdFillBuffer(commands.handle, target, 0, 64, value)
    device.vk.vkEndCommandBuffer(commands.handle)
    return commands


def test_threads_can_record_submit_and_free_at_the_same_time():
    """Other threads allocate during each call, so a struct freed too early is overwritten."""
    device = open_device()
    memory, stop = Memory(device), threading.Event()
    wrong: list[object] = []

    def work(value: int) -> None:
        buffer = memory.buffer(256, MemoryKind.STEP)
        assert buffer.bytes is not None
        for i in range(200):
            device.wait(device.submit(fills(device, buffer.handle, value + i)))
            found = buffer.bytes[:64].view("u4")
            if (found != value + i).any():
                wrong.append(found)

    def churn() -> None:
        while not stop.is_set():
            [c_uint64(0xDEAD << 32 | i) for i in range(50)]

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    others = [threading.Thread(target=churn) for _ in range(4)]
    threads = [threading.Thread(target=work, args=(1000 * i,)) for i in range(4)]
    try:
        for thread in others + threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        stop.set()
        sys.setswitchinterval(before)
        for thread in others:
            thread.join()
    assert not wrong


def test_running_commands_are_freed_only_after_they_end():
    device = open_device()
    buffer = Memory(device).buffer(256 << 20)
    commands = CommandBuffer(device)
    device.vk.vkBeginCommandBuffer(commands.handle, byref(vk.CommandBufferBeginInfo()))
    transfers = (vk.STAGE_TRANSFER, vk.ACCESS_TRANSFER_WRITE)
    for value in range(16):  # takes a while
        device.vk.vkCmdFillBuffer(commands.handle, buffer.handle, 0, buffer.size, value)
        device.barrier(commands.handle, transfers, transfers)
    device.vk.vkEndCommandBuffer(commands.handle)
    submitted = device.submit(commands)
    del commands
    gc.collect()
    assert device.reached() >= submitted


def test_python_can_exit_while_threads_submit():
    code = "from backends.test_vulkan_valid import leave_submitting as leave; leave()"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, **PATH}, check=True)


def leave_submitting() -> None:
    """Start threads that submit until the process ends, and return."""
    device = open_device()
    memory, begun = Memory(device), threading.Barrier(5)

    def work() -> None:
        buffer = memory.buffer(4 << 20, MemoryKind.STEP)
        assert buffer.bytes is not None
        commands = fills(device, buffer.handle, 7)
        begun.wait()
        while True:
            device.wait(device.submit(commands))
            buffer.bytes[:] = 1

    for _ in range(4):
        threading.Thread(target=work, daemon=True).start()
    begun.wait()


def talk() -> None:
    """Abandon streams of a model while their steps run, and generate another answer."""
    with LLM(FIXTURES / "qwen3.gguf", backend="vulkan") as llm:
        stream = llm.stream([1, 2, 3], LONG)
        for _ in range(3):
            next(stream)
        until = time.monotonic() + 60
        while llm.engine._in_flight is None:  # its thread is between two steps
            assert time.monotonic() < until
        del stream
        llm.generate([4, 5, 6], LONG)
        list(llm.stream(list(range(1, 40)), SamplingParams(temperature=0.7, max_tokens=9)))
        stream = llm.stream([1, 2, 3], LONG)
        next(stream)
    del llm, stream
    gc.collect()


@needs_layer
@pytest.mark.parametrize("coherent", ["off", pytest.param("on", marks=pytest.mark.every)])
def test_the_validation_layer_reports_nothing_for_two_models_at_once(
    coherent: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    settings = {
        "debug_action": "VK_DBG_LAYER_ACTION_LOG_MSG",
        "report_flags": "error,warn,info",
        "log_filename": log,
    }
    (tmp_path / "vk_layer_settings.txt").write_text(
        "".join(f"khronos_validation.{name} = {value}\n" for name, value in settings.items())
    )
    subprocess.run(
        [sys.executable, __file__],
        env={
            **os.environ,
            **PATH,
            "VK_INSTANCE_LAYERS": "VK_LAYER_KHRONOS_validation",
            "VK_LAYER_SETTINGS_PATH": str(tmp_path),
            "ZINC_VULKAN_COHERENT": coherent,
        },
        check=True,
    )
    said = log.read_text()
    assert "Settings File: Found" in said
    found = re.findall(r"^\S+\((?:ERROR|WARN).*(?:\n%.*)?", said, re.MULTILINE)
    # Layers older than the compiler do not know its id.
    assert not [x for x in found if "Invalid source language operand" not in x]


if __name__ == "__main__":
    with ThreadPoolExecutor(2) as threads:
        for talking in [threads.submit(talk) for _ in range(2)]:
            talking.result()
