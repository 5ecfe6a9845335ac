"""Kernels whose stores make themselves available, and the barriers between them (docs/barriers.md).

tests/benchmarks/test_gpu_rigs.py looks at what AMD's driver makes of them.
"""

from __future__ import annotations

import struct
from collections import Counter
from contextlib import nullcontext, suppress
from typing import NamedTuple

import pytest
from effort import EVERY
from models.harness import FIXTURES
from present import absent

from zinc import LLM, SamplingParams
from zinc.backends import vulkan
from zinc.backends.vulkan import VulkanKernels, coherent, device, prebuild, shaders, spirv
from zinc.backends.vulkan.spirv import (
    Capability,
    Decoration,
    Instruction,
    MemoryAccess,
    Op,
    Semantics,
    StorageClass,
)
from zinc.backends.vulkan.vk import types as vk
from zinc.core.env import VULKAN_COHERENT
from zinc.core.errors import DeviceError, ModelError
from zinc.formats.gguf import GGUFFile
from zinc.gpu import ahead
from zinc.gpu.features import Features
from zinc.models import load
from zinc.plan.planner import make_plan

needs_compiler = pytest.mark.skipif(shaders.compiler() is None, reason="there is no Slang compiler")
needs_device = pytest.mark.skipif("vulkan" in absent(), reason=absent().get("vulkan", ""))


def kernels(name: str) -> dict[str, bytes]:
    """Return the SPIR-V of the kernels of a fixture for AMD's GPUs, by name.

    By default these are one variant of each kernel, and of each kind of product.
    """
    with GGUFFile.open(FIXTURES / f"{name}.gguf") as file:
        spec, graph = load(file)
    plan = make_plan(graph, VulkanKernels(), max_tokens=64, max_outputs=8, samples=True)
    features = Features(32, cooperative_matrix=True, shared_bytes=65536, compute_units=64)
    steps = ahead.distinct_buckets(plan, min(spec.context, 1024))
    found = prebuild.shaders(plan, features, steps, "f16")
    if not EVERY:
        ordered = sorted(found, key=str)
        found = {*{(x.name, dict(x.defines).get("PRODUCT")): x for x in ordered}.values()}
    return {str(kernel): shaders.spirv(kernel) for kernel in found}


@pytest.fixture(
    scope="module", params=["qwen3", pytest.param("qwen35moe", marks=pytest.mark.every)]
)
def modules(request):
    """Kernels before and after, as instructions."""
    return [
        ([*spirv.instructions(code)], [*spirv.instructions(coherent.coherent(code))])
        for code in kernels(request.param).values()
    ]


class Access(NamedTuple):
    """A load or store. is_constant: it goes through a struct whose member is read-only."""

    op: int
    storage: int
    flags: int
    alignment: int
    is_constant: bool


def accesses(module: list[Instruction]) -> list[Access]:
    pointers = {x[0]: x[1:] for op, x in module if op == Op.TYPE_POINTER}
    read_only = {
        x[0] for op, x in module if op == Op.MEMBER_DECORATE and x[2] == Decoration.NON_WRITABLE
    }
    made = {x[1]: (op, x) for op, x in module if op in coherent.MOVES or op in coherent.MAKES}
    found = []
    for op, x in module:
        if op in coherent.LOADS or op in coherent.STORES:
            where, end = {**coherent.LOADS, **coherent.STORES}[Op(op)]
            source, operands = made[x[where]]
            base = made.get(operands[2]) if source == Op.ACCESS_CHAIN else None
            holder = pointers.get(base[1][0], [0, 0])[1] if base else 0
            flags, alignment = (*x[end : end + 2], 0, 0)[:2]
            alignment *= bool(flags & MemoryAccess.ALIGNED)
            storage = pointers[operands[0]][0]
            found.append(Access(op, storage, flags, alignment, holder in read_only))
    return found


@needs_compiler
def test_every_store_is_available_and_every_load_synchronises_or_reads_constants(modules):
    assert len(modules) > 10
    n_constant = 0
    for _, module in modules:
        for op, storage, flags, _, is_constant in accesses(module):
            if storage == StorageClass.PHYSICAL_STORAGE_BUFFER:
                assert is_constant or flags & MemoryAccess.NON_PRIVATE_POINTER
                assert not is_constant or not flags & MemoryAccess.NON_PRIVATE_POINTER
                assert bool(flags & MemoryAccess.MAKE_POINTER_AVAILABLE) == (op in coherent.STORES)
                assert not (is_constant and op in coherent.STORES)
                n_constant += is_constant
            elif storage == StorageClass.WORKGROUP:
                assert flags & MemoryAccess.NON_PRIVATE_POINTER
    assert n_constant > 10


@needs_compiler
def test_products_load_their_weights_as_constants():
    """Their other wide loads are activations, which have the same pointers but no `Matrix`."""
    products = {k: code for k, code in kernels("qwen3").items() if k.startswith(("matvec", "gemm"))}
    assert len(products) >= 3
    for name, code in products.items():
        wide = Counter(
            x.is_constant
            for x in accesses([*spirv.instructions(coherent.coherent(code))])
            if x.op == Op.LOAD and x.alignment == 16
        )
        assert wide[True], name
        assert wide[False], name


@needs_compiler
def test_modules_use_the_vulkan_memory_model(modules):
    for before, after in modules:
        (model,) = (x for op, x in after if op == Op.MEMORY_MODEL)
        assert model[1] == spirv.VULKAN_MODEL
        capabilities = [x[0] for op, x in after if op == Op.CAPABILITY]
        assert len(capabilities) == len({*capabilities})
        assert {*capabilities} >= {*Capability}
        constants = {x[1]: x[2] for op, x in after if op == Op.CONSTANT}
        barriers = [
            constants[x[-1]] for op, x in after if op in (Op.CONTROL_BARRIER, Op.MEMORY_BARRIER)
        ]
        ordering = [bits for bits in barriers if bits & Semantics.ACQUIRE_RELEASE]
        both = Semantics.MAKE_AVAILABLE | Semantics.MAKE_VISIBLE
        assert all(bits & both == both for bits in ordering)
        kept = sum(op in (Op.CONTROL_BARRIER, Op.MEMORY_BARRIER) for op, _ in before)
        assert len(barriers) == kept + 1


@needs_compiler
def test_the_entry_point_begins_with_an_acquire_barrier(modules):
    for _, module in modules:
        (main,) = (x[1] for op, x in module if op == Op.ENTRY_POINT)
        at = next(i for i, (op, x) in enumerate(module) if op == Op.FUNCTION and x[1] == main)
        body = [i for i in module[at + 1 :] if i.op not in (Op.LABEL, Op.VARIABLE, Op.LINE)]
        constants = {x[1]: x[2] for op, x in module if op == Op.CONSTANT}
        op, (scope, semantics) = body[0]
        assert op == Op.MEMORY_BARRIER
        assert constants[scope] == spirv.DEVICE_SCOPE
        assert constants[semantics] == (
            Semantics.ACQUIRE | Semantics.UNIFORM_MEMORY | Semantics.MAKE_VISIBLE
        )


@needs_compiler
def test_rewriting_twice_changes_no_access(modules):
    """Kernels with cooperative matrices come with available stores already."""
    code = next(iter(kernels("qwen3").values()))
    once = coherent.coherent(code)
    again = coherent.coherent(once)
    found = [accesses([*spirv.instructions(x)]) for x in (once, again)]
    assert Counter(found[0]) == Counter(found[1])


def test_a_module_that_is_not_understood_is_an_error():
    code = struct.pack("<7I", 0x07230203, 0x10500, 0, 9, 0, 3 << 16 | Op.COPY_MEMORY, 1)
    code += struct.pack("<I", 2)
    body = [
        Instruction(Op.TYPE_INT, [1, 32, 0]),
        Instruction(Op.ENTRY_POINT, [5, 2, 0x6E69616D, 0]),
        Instruction(Op.FUNCTION, [3, 2, 0, 4]),
        *spirv.instructions(code),
    ]
    with pytest.raises(
        DeviceError, match="cannot be made coherent: its SPIR-V has the operation 63"
    ):
        coherent.coherent(spirv.assemble(code, 9, body))


# -- barriers -------------------------------------------------------------------------------------


def barriers_of_a_step(monkeypatch, switch: str) -> list[tuple[int, int]]:
    """Return (source access, target access) of the barriers that are recorded for two tokens."""
    monkeypatch.setenv(VULKAN_COHERENT.name, switch)
    monkeypatch.setattr(device, "_open", {})
    monkeypatch.setattr(vulkan, "host_of", vulkan.host_of.__wrapped__)
    seen: list[tuple[int, int]] = []
    real = device.Device.barrier

    def barrier(self, commands, source, target):
        if source[0] == target[0] == vk.STAGE_COMPUTE:
            seen.append((source[1], target[1]))
        real(self, commands, source, target)

    monkeypatch.setattr(device.Device, "barrier", barrier)
    # Mesa 22.3 computes wrong logits with coherent kernels (docs/barriers.md), at times NaN.
    may_fail = suppress(ModelError) if switch == "on" else nullcontext()
    with LLM(FIXTURES / "qwen3.gguf", backend="vulkan") as llm, may_fail:
        llm.generate([1, 2, 3], SamplingParams(temperature=0, max_tokens=2, ignore_eos=True))
    return seen


@needs_device
def test_coherent_kernels_need_barriers_of_execution_only(monkeypatch):
    assert {*barriers_of_a_step(monkeypatch, "on")} == {(0, 0)}


@needs_device
@pytest.mark.parametrize("switch", ["off", ""])
def test_other_devices_keep_the_usual_barrier(switch, monkeypatch):
    both = vk.ACCESS_SHADER_READ | vk.ACCESS_SHADER_WRITE
    assert {*barriers_of_a_step(monkeypatch, switch)} == {(vk.ACCESS_SHADER_WRITE, both)}


@needs_device
def test_a_device_that_cannot_is_named(monkeypatch):
    monkeypatch.setenv(VULKAN_COHERENT.name, "on")
    monkeypatch.setattr(device, "_open", {})
    monkeypatch.setattr(device, "DEVICE_SCOPE", "noSuchFeature")
    with pytest.raises(DeviceError, match=r"cannot store coherently on .*: it lacks noSuchFeature"):
        device.open_device()


@needs_device
def test_a_self_test_that_passed_without_coherent_kernels_is_run_again_with_them(monkeypatch):
    monkeypatch.setattr(vulkan, "host_of", vulkan.host_of.__wrapped__)
    identities = set()
    for switch in ("on", "off"):
        monkeypatch.setenv(VULKAN_COHERENT.name, switch)
        monkeypatch.setattr(device, "_open", {})
        identities.add(vulkan.create().identity())
    assert len(identities) == 2
