"""Tests of the Vulkan host: compiled kernels, devices, memory, caches and recorded steps."""

from __future__ import annotations

import ctypes
import shutil
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from effort import EVERY
from models.harness import FIXTURES, Runner, expected, planned
from present import absent

from zinc import LLM, SamplingParams
from zinc.backends import api, vulkan
from zinc.backends.api import CacheLayout
from zinc.backends.vulkan import SLANG_KERNELS, VulkanKernels, physical, prebuild, shaders, spirv
from zinc.backends.vulkan.commands import Commands, Recorder
from zinc.backends.vulkan.memory import Memory, Staging
from zinc.backends.vulkan.spirv import Decoration, Op
from zinc.backends.vulkan.vk import types as vk
from zinc.backends.vulkan.vk.library import PORTABILITY, Library, check
from zinc.core.env import cache_folder
from zinc.core.errors import DeviceError, MemoryLimitError, UnsupportedError
from zinc.engine.load.files import EMBEDDED_MODEL
from zinc.formats.gguf import GGUFFile
from zinc.gpu import ahead
from zinc.gpu.addresses import NominalAddresses
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import KernelVariant
from zinc.gpu.errors import DeviceLostError
from zinc.gpu.features import Features
from zinc.gpu.kernel_set import LOWERINGS
from zinc.gpu.memory import MemoryKind
from zinc.models import load
from zinc.ops.cases import Case
from zinc.ops.registry import Phase
from zinc.ops.values import KVState, RecurrentState
from zinc.plan.planner import make_plan

needs_device = pytest.mark.skipif("vulkan" in absent(), reason=absent().get("vulkan", ""))
KV = KVState("blk.0", n_heads=2, head_dim=32, head_dim_v=64)
LATENT = KVState("blk.1", n_heads=1, head_dim=64, head_dim_v=32, v_from_k=True)
STATE = RecurrentState("blk.2", 100)


def plan_of(name):
    with GGUFFile.open(FIXTURES / f"{name}.gguf") as file:
        return make_plan(load(file)[1], VulkanKernels(), max_tokens=16, max_outputs=4)


# -- kernels --------------------------------------------------------------------------------------


def test_a_kernel_is_compiled_again_when_an_include_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(shaders, "KERNELS", tmp_path)
    monkeypatch.setattr(shaders, "_source", shaders.source)
    (tmp_path / "a.slang").write_text('#include "b.slang"\n')
    (tmp_path / "b.slang").write_text("// 1\n")
    keys = {shaders.key(KernelVariant("a")), shaders.key(KernelVariant("a", (("N", 1),)))}
    (tmp_path / "b.slang").write_text("// 2\n")
    keys.add(shaders.key(KernelVariant("a")))
    assert len(keys) == 3


def test_without_a_compiler_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(shaders, "compiler", lambda: None)
    with pytest.raises(DeviceError, match="pip install --no-deps slangtorch"):
        shaders.spirv(KernelVariant("limits", (("KIND", 7),)), tmp_path)


@pytest.mark.skipif(shaders.compiler() is None, reason="there is no Slang compiler")
def test_a_kernel_that_does_not_compile_is_named(tmp_path):
    with pytest.raises(DeviceError, match=r"the kernel limits \(-DKIND=oops\) does not compile"):
        shaders.spirv(KernelVariant("limits", (("KIND", "oops"),)), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(shaders.compiler() is None, reason="there is no Slang compiler")
def test_drivers_may_not_fuse_the_products_of_penalties():
    """The host rounds them, and a driver may fuse others with the sum that follows."""
    kernel = KernelVariant("penalize", (("THREADS", 256), ("SUBGROUP", 32)))
    code = list(spirv.instructions(shaders.spirv(kernel)))
    products = {x.operands[1] for x in code if x.op == Op.F_MUL}
    decorated = {
        x.operands[0]
        for x in code
        if x.op == Op.DECORATE and x.operands[1:] == [Decoration.NO_CONTRACTION]
    }
    assert len(products) == 2
    assert products == decorated


def test_kernels_of_a_plan_are_known_without_a_device():
    plan = plan_of("qwen35moe")
    features = Features(subgroup=64, compute_units=60)
    few = prebuild.shaders(plan, features, [Bucket(1, 1, 1, 256)], "f16")
    many = prebuild.shaders(plan, features, ahead.buckets(16, 4, 300), "f16")
    assert few < many
    assert all(("SUBGROUP", 64) in shader.defines for shader in many)


@pytest.mark.parametrize(
    ("name", "subgroup", "matrix"),
    [
        pytest.param(name, *device, marks=pytest.mark.every if (i + j) % 3 else ())
        for i, name in enumerate(["qwen3", "gptoss", "deepseek2", "qwen35moe"])
        for j, device in enumerate([(8, False), (32, True), (64, True)])
    ],
)
def test_batch_invariant_launches_use_the_same_kernels_for_every_step(name, subgroup, matrix):
    plan = plan_of(name).without_alternatives()
    features = Features(subgroup, cooperative_matrix=matrix, compute_units=132)
    features = replace(features, shared_bytes=49152, batch_invariant=True)
    at = NominalAddresses(features, "f16", 64)
    for launch in {ahead.lowering_key(x): x for x in plan.launches}.values():
        if launch.kernel == "group_experts":  # sums of integers do not depend on their order
            continue
        made = {
            tuple(dispatch.kernel for dispatch in LOWERINGS[launch.kernel](launch, at, bucket))
            for bucket in ahead.buckets(1024, 64, 1 << 16)
            if bucket.rows(launch.dim)
        }
        assert len(made) == 1, launch.kernel


@pytest.mark.parametrize(
    ("heads", "head_dim", "narrow", "wide"),
    [
        (1, 128, False, False),
        (2, 128, True, False),
        (4, 128, True, False),
        (8, 128, True, True),
        (8, 256, True, False),
        (16, 64, True, True),
        (8, 80, True, True),
        (8, 72, False, False),
    ],
)
def test_few_queries_use_matrices_if_the_device_has_them(heads, head_dim, narrow, wide):
    case = Case("attention", 1)
    g, state = case.graph, KVState("kv", 2, head_dim, head_dim)
    q, k, v = (case.rows(n * head_dim) for n in (2 * heads, 2, 2))
    table = g.rope_table(case.rope_frequencies(head_dim))
    q, k = (g.rope(rows, table, head_dim=head_dim, neox=True) for rows in (q, k))
    g.kv_store(k, v, state)
    case.returns(g.attention(q, state, scale=1.0))
    plan = make_plan(case.graph, VulkanKernels(), max_tokens=1, max_outputs=1)
    launch = next(x for x in plan.launches if x.kernel == "attention")
    for columns, matrices in ((8, narrow), (16, wide), (0, False)):
        features = Features(32, cooperative_matrix=columns > 0, narrow_matrix=columns == 8)
        features = replace(features, shared_bytes=49152, compute_units=132)
        for keys, deep in ((256, False), (1 << 15, True)):
            at = NominalAddresses(features, "f16", 64)
            first = LOWERINGS["attention"](launch, at, Bucket(1, 1, 1, keys))[0]
            kernel = "attention_few_matrices" if matrices and deep else "attention"
            assert first.kernel.name == kernel
            if kernel != "attention":
                assert ("COLUMNS", columns) in first.kernel.defines
                assert 1 <= first.groups[0] * first.groups[1] <= 132, (
                    "at most one workgroup for each compute unit"
                )
                # A kernel takes 0.2 s to compile, and other sizes are the same code.
                is_compiled = EVERY or (heads, head_dim) == (8, 128)
                if is_compiled and shaders.compiler() is not None:
                    assert shaders.spirv(shaders.for_device(first.kernel, features))


@needs_device
@pytest.mark.skipif(shaders.compiler() is None, reason="there is no Slang compiler")
def test_a_wheel_has_all_kernels_of_the_embedded_model(tmp_path, monkeypatch):
    features = api.create("vulkan").device.features
    with GGUFFile.open(EMBEDDED_MODEL) as file:
        spec, graph = load(file)
    plan = make_plan(graph, VulkanKernels(), max_tokens=512, max_outputs=64, samples=True)
    if not EVERY:
        monkeypatch.setattr(prebuild, "DTYPES", ("f16",))
    wanted = prebuild.shipped(plan, [features], spec.context)
    compiled, wheel = cache_folder() / "spirv", tmp_path / "wheel"
    assert prebuild.build(wanted, compiled) == len(wanted)
    wheel.mkdir()
    for shader in wanted:
        shutil.copy(compiled / f"{shaders.key(shader)}.spv", wheel)

    monkeypatch.setattr(shaders, "PREBUILT", wheel)
    monkeypatch.setattr(shaders, "compiler", lambda: None)
    monkeypatch.setenv("ZINC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(vulkan, "host_of", vulkan.host_of.__wrapped__)
    short = SamplingParams(temperature=0, max_tokens=2)
    penalised = replace(short, presence_penalty=1.5)
    with LLM(backend="vulkan", context=512, kv_dtype="f16") as llm:
        answers = llm.generate(["Once upon a time", "The sea"], short)
        assert [a.finish_reason for a in answers] == ["length"] * 2
        llm.generate("Once upon a time there was a fox that lived by the sea with a bear.", short)
        llm.generate("The sea", penalised)
    assert not list((tmp_path / "cache").glob("spirv/*"))


@pytest.mark.parametrize(
    ("matrix", "units", "around"), [(True, 84, (64, 96)), (False, 46, (32, 48))]
)
def test_device_classes_cover_devices_between_them(matrix, units, around):
    with GGUFFile.open(EMBEDDED_MODEL) as file:
        plan = make_plan(load(file)[1], VulkanKernels(), max_tokens=64, max_outputs=8)
    classes = [
        c
        for c in prebuild.device_classes()
        if (c.subgroup, c.cooperative_matrix, c.narrow_matrix) == (32, matrix, False)
        and c.compute_units in around
    ]
    assert len(classes) == 2
    device = replace(classes[0], shared_bytes=65536, compute_units=units)
    assert prebuild.shipped(plan, [device], 300) <= prebuild.shipped(plan, classes, 300)


# -- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "error", "text"),
    [
        (-2, MemoryLimitError, "the device has no memory left"),
        (-1, MemoryLimitError, "the Vulkan driver has no memory left"),
        (-4, DeviceLostError, "the Vulkan device was lost"),
        (-13, DeviceError, "unknown error"),
        (-99, DeviceError, "error -99"),
    ],
)
def test_error_results_raise_errors(result, error, text):
    with pytest.raises(error, match=text):
        check(result, "vkQueueSubmit")
    assert check(2, "vkWaitSemaphores") == 2


@needs_device
def test_a_device_is_chosen_by_number_or_name():
    first = physical.candidates()[0]
    for wanted in ("vulkan:0", "0", first.name, first.name[:5].upper()):
        assert physical.choose(wanted).index == 0
    with pytest.raises(DeviceError, match="there is no Vulkan device 'vulkan:99'"):
        physical.choose("vulkan:99")


def test_a_device_without_a_required_feature_is_refused(monkeypatch):
    lacking = physical.Candidate(0, 0, "Old", "discrete GPU", "driver 1", ("shaderInt8",), False)
    able = physical.Candidate(1, 0, "New", "integrated GPU", "driver 1", (), True)
    monkeypatch.setattr(physical, "candidates", lambda: [lacking, able])
    assert physical.choose() is able
    with pytest.raises(DeviceError, match="Old cannot run zinc: it lacks shaderInt8"):
        physical.choose("old")
    monkeypatch.setattr(physical, "candidates", list)
    with pytest.raises(DeviceError, match="no Vulkan device was found"):
        physical.choose()


PLAIN = SimpleNamespace(
    maxComputeWorkGroupInvocations=1024,
    maxComputeWorkGroupSize=(1024, 1024, 64),
    maxComputeSharedMemorySize=32768,
    maxPushConstantsSize=128,
)
SUBGROUPS = SimpleNamespace(operations=0xFF, subgroupSize=32)
SIZES = SimpleNamespace(requiredStages=0x20, minSubgroupSize=8, maxSubgroupSize=32, maxSubgroups=32)


@pytest.mark.parametrize(
    ("change", "lacking"),
    [
        ({}, None),
        ({"maxComputeWorkGroupInvocations": 512}, "workgroups of 1024 threads (it has 512)"),
        ({"maxComputeWorkGroupSize": (256, 256, 64)}, "workgroups of 1024 threads (it has 256)"),
        ({"maxSubgroups": 16}, "workgroups of 1024 threads (it has 512)"),
        ({"maxComputeSharedMemorySize": 16384}, "32768 bytes of shared memory"),
        ({"maxPushConstantsSize": 64}, "128 bytes of push constants"),
        ({"operations": 0b111}, "arithmetic and shuffles within a subgroup"),
        ({"maxSubgroupSize": 4}, "subgroups of 8, 16, 32 or 64 lanes (it has 4)"),
        ({"minSubgroupSize": 128}, "subgroups of 8, 16, 32 or 64 lanes (it has 128)"),
    ],
)
def test_a_device_below_the_required_limits_is_refused(change, lacking):
    limits, p11, p13 = (
        SimpleNamespace(**{k: change.get(k, v) for k, v in vars(given).items()})
        for given in (PLAIN, SUBGROUPS, SIZES)
    )
    if "minSubgroupSize" in change:
        p13.maxSubgroupSize = 128
    if change.get("maxSubgroupSize") == 4:
        p13.minSubgroupSize, p13.maxSubgroups = 4, 256
    found = physical._missing(
        {*physical.NEEDED, "subgroupSizeControl"},
        SimpleNamespace(limits=limits, vendor=0),
        p11,
        p13,
    )
    assert found == ([lacking] if lacking else [])


def test_a_grid_above_the_limit_is_an_error(monkeypatch):
    plan = plan_of("qwen3")
    launch = next(x for x in plan.launches if x.kernel == "linear")
    at = NominalAddresses(Features(32), "f16", 64)
    (first, *_) = SLANG_KERNELS.lower(launch, at, Bucket(1, 1, 1, 256))
    for groups in ((65536, 1, 1), (1, 65536, 1)):
        wide = replace(first, groups=groups)
        monkeypatch.setitem(LOWERINGS, "linear", lambda *_, wide=wide: [wide])
        with pytest.raises(
            UnsupportedError, match="linear: it needs 65536 workgroups in one dimension"
        ):
            SLANG_KERNELS.lower(launch, at, Bucket(1, 1, 1, 256))


def test_a_kernel_that_needs_too_much_shared_memory_is_an_error():
    launch = next(x for x in plan_of("qwen35moe").launches if x.kernel == "delta_rule")
    wide = replace(launch, attrs=tuple({**dict(launch.attrs), "k_dim": 256}.items()))
    for shared_bytes, fits in ((49152, True), (32768, False)):
        at = NominalAddresses(Features(32, shared_bytes=shared_bytes), "f16", 64)
        if fits:
            assert SLANG_KERNELS.lower(wide, at, Bucket(16, 1, 1, 256))
            continue
        with pytest.raises(UnsupportedError, match="there are 32768"):
            SLANG_KERNELS.lower(wide, at, Bucket(16, 1, 1, 256))


@needs_device
def test_a_queue_without_timestamps_cannot_measure(monkeypatch):
    backend = api.create("vulkan")
    monkeypatch.setattr(backend.device, "timestamp_bits", 0)
    assert backend.measure() is None
    with pytest.raises(UnsupportedError, match="kernels cannot be timed on"):
        Recorder(backend.device, backend.host.pipelines, 2)


@needs_device
def test_the_portability_subset_is_enabled_if_a_device_has_it(monkeypatch):
    opened, asked = api.create("vulkan").device, []
    monkeypatch.setattr(opened, "extensions", opened.extensions | {physical.PORTABILITY})

    def create(physical, info, *_):
        names = (ctypes.c_char_p * info._obj.nExtensions).from_address(info._obj.extensions)
        asked.extend(name.decode() for name in names)

    monkeypatch.setattr(opened._lib, "vkCreateDevice", create)
    opened._create()
    assert physical.PORTABILITY in asked


@needs_device
def test_the_instance_asks_for_portability_devices(monkeypatch):
    asked = []
    library = physical.library()
    plain, functions = library._get, {}

    def get(instance, name):
        if name != b"vkCreateInstance":
            return plain(instance, name)

        def create(info, *_):
            given = vk.InstanceCreateInfo.from_address(info)
            asked.append((given.flags, given.nExtensions))
            return -9

        functions[name] = ctypes.CFUNCTYPE(
            ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
        )(create)
        return ctypes.cast(functions[name], ctypes.c_void_p).value

    monkeypatch.setattr(library, "_get", get)
    for known, flags in ((set(), 0), ({PORTABILITY}, 1)):
        monkeypatch.setattr(library, "_extensions", lambda known=known: known)
        with pytest.raises(DeviceError, match="no Vulkan driver could be started"):
            library._create_instance()
        assert asked.pop() == (flags, flags)


@needs_device
def test_kernels_with_full_subgroups_require_them(monkeypatch):
    opened, flags = api.create("vulkan").device, []
    make = opened.vk.vkCreateComputePipelines

    def look(handle, cache, count, info, *rest):
        flags.append(info._obj.stage.flags)
        return make(handle, cache, count, info, *rest)

    monkeypatch.setattr(opened.vk, "vkCreateComputePipelines", look)
    for fills, want in ((True, vk.STAGE_FLAG_FULL_SUBGROUPS), (False, 0)):
        monkeypatch.setattr(opened, "fills_subgroups", fills)
        shaders.Pipelines(opened).prepare([KernelVariant("limits", (("KIND", 0),))])
        assert flags.pop() == want


def test_without_a_loader_the_error_says_what_to_install(monkeypatch):
    def none(name):
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", none)
    with pytest.raises(DeviceError, match=r"the Vulkan loader is missing: .* was not found. Inst"):
        Library()


@needs_device
def test_without_a_driver_the_error_says_what_to_install(monkeypatch):
    for variable in ("VK_ICD_FILENAMES", "VK_DRIVER_FILES"):
        monkeypatch.setenv(variable, "/nonexistent/driver.json")
    monkeypatch.setattr(physical, "_library", None)  # newer loaders start, but find no device
    with pytest.raises(DeviceError, match=r"no Vulkan .* Install the driver of your GPU"):
        physical.choose()


@needs_device
def test_the_error_names_a_kernel_that_the_driver_refuses(monkeypatch):
    opened = api.create("vulkan").device

    def refuse(*arguments):
        check(-13, "vkCreateComputePipelines")

    monkeypatch.setattr(opened.vk, "vkCreateComputePipelines", refuse)
    pipelines = shaders.Pipelines(opened)
    with pytest.raises(DeviceError, match="the driver rejects the kernel limits: vkCreateC"):
        pipelines.prepare([KernelVariant("limits", (("KIND", 0),))])


@needs_device
def test_memory_is_freed_when_loading_runs_out_of_it(monkeypatch):
    opened = api.create("vulkan").device
    allocate, left = opened.vk.vkAllocateMemory, [4]

    def short(*arguments):
        left[0] -= 1
        return allocate(*arguments) if left[0] > 0 else check(-2, "vkAllocateMemory")

    monkeypatch.setattr(opened.vk, "vkAllocateMemory", short)
    with pytest.raises(MemoryLimitError, match="Use a smaller `context="):
        LLM(FIXTURES / "qwen3.gguf", backend="vulkan", context=128)
    left[0] = 1 << 20
    greedy = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    with LLM(FIXTURES / "qwen3.gguf", backend="vulkan", context=128) as llm:
        assert len(llm.generate([5, 6, 7], greedy).token_ids) == 3


@needs_device
def test_a_step_that_runs_out_of_memory_does_not_change_later_steps(monkeypatch):
    path, ids = FIXTURES / "qwen3.gguf", list(range(3, 303))
    greedy = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    with LLM(path, backend="vulkan", context=512) as llm:
        want = llm.generate(ids, greedy).token_ids
    with LLM(path, backend="vulkan", context=512) as llm:
        few = llm.generate(ids[:5], greedy).token_ids
        device = llm.backend.device
        with monkeypatch.context() as short:
            # Splits of keys need scratch memory for partial sums.
            short.setattr(device.vk, "vkAllocateMemory", lambda *_: check(-2, "vkAllocateMemory"))
            with pytest.raises(MemoryLimitError, match="the device has no memory left"):
                llm.generate(ids, greedy)
            assert llm.generate(ids[:5], greedy).token_ids == few
        assert llm.generate(ids, greedy).token_ids == want


@needs_device
def test_staging_works_after_it_ran_out_of_memory(monkeypatch):
    memory = Memory(api.create("vulkan").device)
    staging, target, data = Staging(memory), memory.buffer(256), np.arange(256, dtype=np.uint8)
    plain, made = memory.buffer, []

    def short(*arguments):
        made.append(arguments)
        return plain(*arguments) if len(made) != 2 else check(-2, "vkAllocateMemory")

    monkeypatch.setattr(memory, "buffer", short)
    with pytest.raises(MemoryLimitError):
        staging.write(target, 0, data)
    for _ in range(2):
        staging.write(target, 0, data)
    assert np.array_equal(staging.read(target, 0, 256), data)


# -- memory and state -----------------------------------------------------------------------------


def test_memory_types_of_extensions_are_not_used():
    local, visible, coherent, lazy, protected, uncached = 1, 2, 4, 0x10, 0x20, 0x80
    properties = vk.MemoryProperties(nTypes=4, nHeaps=1)
    seen = local | visible | coherent
    for i, flags in enumerate((seen, local | lazy, local | protected, seen | uncached)):
        properties.types[i].flags = flags
    memory = Memory(SimpleNamespace(memory=lambda: (properties, [0]), unified=False))
    assert {memory.type_of(kind)[0] for kind in MemoryKind} == {0}


@pytest.fixture(scope="module")
def backend():
    return api.create("vulkan")


@needs_device
def test_a_buffer_that_is_too_large_is_an_error_and_leaks_nothing(backend):
    before = backend.available_bytes()
    with pytest.raises(MemoryLimitError):
        backend.host.buffer(backend.device.max_allocation + 1)
    assert backend.available_bytes() >= before // 2


@needs_device
@pytest.mark.parametrize("kv_dtype", ["f16", "q8_0"])
def test_blocks_and_states_can_be_copied_and_restored(backend, kv_dtype):
    layout = CacheLayout(16, (5, 3), kv_dtype, group_of={LATENT.name: 1}, state_slots=3)
    cache = backend.allocate((KV, LATENT, STATE), layout)
    rng = np.random.default_rng(3)

    def content(views):
        return [rng.integers(0, 256, view.size, dtype=np.uint8) for view in views]

    assert [len(cache.block_views(group, 0)) for group in (0, 1)] == [2, 1]
    for group, source, target in ((0, 4, 1), (1, 0, 2)):
        wanted = content(cache.block_views(group, source))
        untouched = cache.block_views(group, 1 if group else 2)
        cache.put_block(group, source, wanted)
        cache.copy_block(group, source, target)
        for block in (source, target):
            for got, want in zip(cache.block_views(group, block), wanted, strict=True):
                assert np.array_equal(got, want)
        for got, want in zip(cache.block_views(group, 1 if group else 2), untouched, strict=True):
            assert np.array_equal(got, want)
    wanted = content(cache.state_views(2))
    cache.put_state(2, wanted)
    cache.copy_state(2, 0)
    assert np.array_equal(cache.state_views(0)[0], wanted[0])
    assert not cache.state_views(1)[0].any(), "a new cache is zeros"


@needs_device
def test_a_step_is_recorded_once_and_values_can_be_read_and_written():
    runner = Runner(FIXTURES / "qwen3.gguf", "vulkan")
    ids, want = expected("qwen3")
    first = runner.feed((0, ids[:8]))[0]
    program = runner.program
    recordings = dict(program._recordings)
    runner.feed((0, ids[8:16]))
    assert dict(program._recordings) == recordings, "eight more tokens are the same bucket"
    assert np.linalg.norm(first - want[:8]) <= 5e-3 * np.linalg.norm(want[:8])
    ref = next(r for launch in program.plan.launches for r in launch.outputs if r.format == "f32")
    rows = np.random.default_rng(0).standard_normal((3, ref.cols)).astype(np.float32)
    program.write(ref, rows)
    assert np.array_equal(program.read(ref, 3), rows)


def step_of(runner, ids):
    """Run `ids` and return the step that the runner made of them."""
    steps = []
    run = runner.program.step
    runner.program.step = lambda s: (steps.append(s), run(s))[1]
    runner.feed((0, ids))
    return steps[0]


@needs_device
def test_parts_of_a_step_are_recorded_once_and_give_its_result():
    runner = Runner(FIXTURES / "qwen35moe.gguf", "vulkan")
    ids, want = expected("qwen35moe")
    program, plan = runner.program, runner.program.plan
    cuts = [0, 1, 9, 9, len(plan.launches)]

    def step(step):
        for first, last in pairwise(cuts):
            program.run(step, first, last)
        return program.read(plan.output, len(step.output_rows))

    program.step = step
    first = runner.feed((0, ids[:8]))[0]
    recorded = {bucket: dict(parts) for bucket, parts in program._parts.items()}
    assert [set(parts) for parts in recorded.values()] == [set(pairwise(cuts))]
    second = runner.feed((0, ids[8:16]))[0]
    assert program._parts == recorded, "eight more tokens are the same bucket"
    got = np.concatenate([first, second])
    assert np.linalg.norm(got - want[:16]) <= 5e-3 * np.linalg.norm(want[:16])


@needs_device
def test_writing_a_view_leaves_the_other_columns_alone():
    runner = Runner(FIXTURES / "qwen3.gguf", "vulkan")
    program = runner.program
    whole = next(r for launch in program.plan.launches for r in launch.outputs if r.format == "f32")
    rows = np.random.default_rng(0).standard_normal((3, whole.cols)).astype(np.float32)
    program.write(whole, rows)
    view = replace(whole, cols=5, first=3, offset=whole.offset + 12)
    rows[:, 3:8] = 7.0
    program.write(view, rows[:, 3:8])
    assert np.array_equal(program.read(whole, 3), rows)
    assert np.array_equal(program.read(view, 3), rows[:, 3:8])


@needs_device
def test_a_profile_has_a_time_for_each_launch():
    runner = Runner(FIXTURES / "qwen35moe.gguf", "vulkan")
    step = step_of(runner, expected("qwen35moe")[0][:4])
    seconds = runner.program.profile(step)
    launches = runner.program.plan.launches
    assert len(seconds) == len(launches)
    assert [s > 0 for s in seconds] == [x.runs_in(step) for x in launches]
    assert {launch.phase for launch in launches} == set(Phase) - {Phase.SAMPLING}


@needs_device
def test_seconds_of_launches_add_up_to_the_measured_time(monkeypatch):
    runner = Runner(FIXTURES / "qwen35moe.gguf", "vulkan")
    step = step_of(runner, expected("qwen35moe")[0][:4])
    spans = []
    seconds = Commands.seconds
    monkeypatch.setattr(Commands, "seconds", lambda c: spans.append(seconds(c)) or spans[-1])
    launches = runner.program.profile(step)
    assert sum(launches) == pytest.approx(sum(spans[0]))
    assert len(spans[0]) == runner.program.counts(step).barriers + 1


@needs_device
@pytest.mark.parametrize(("name", "n"), [("qwen3", 1), ("qwen35moe", 4), ("gemma4e", 40)])
def test_counts_without_a_step_equal_the_recorded_counts(name, n):
    path = FIXTURES / f"{name}.gguf"
    runner, plan = Runner(path, "vulkan"), planned(path, "vulkan")[1]
    step = step_of(runner, expected(name)[0][:n])
    recorded = runner.program.counts(step)
    said = api.create("vulkan").counts(plan, "f16", tokens=n, outputs=n, sequences=1, keys=n)
    assert said == recorded
    assert 0 < recorded.barriers < recorded.dispatches
    assert runner.program.work.submissions == 1
