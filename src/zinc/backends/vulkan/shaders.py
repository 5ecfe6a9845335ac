"""Compilation of Slang kernels to SPIR-V, and of SPIR-V to pipelines, with caches on disk.

The cache key of SPIR-V covers the source with its includes, the macros and the compiler options.
SPIR-V is looked up in the folder that a wheel may carry, then in the user's cache. If neither has
it, it is compiled. The driver's pipeline cache is saved for the next start.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from ctypes import addressof, byref, c_char, c_size_t, c_uint64
from functools import cache
from pathlib import Path

from zinc.backends.vulkan import slang
from zinc.backends.vulkan.coherent import coherent
from zinc.backends.vulkan.device import Device
from zinc.backends.vulkan.physical import MAX_PUSH_BYTES
from zinc.backends.vulkan.spirv import LOCAL_SIZE, Op, instructions
from zinc.backends.vulkan.vk import types as vk
from zinc.core.env import cache_folder
from zinc.core.errors import DeviceError
from zinc.gpu.code_digest import code_digest
from zinc.gpu.disk_cache import save
from zinc.gpu.dispatch import KernelVariant
from zinc.gpu.features import FULL_REGISTERS, SQUARE, Features
from zinc.gpu.host import Progress

KERNELS = Path(__file__).parent / "kernels"
PREBUILT = Path(__file__).parent / "spirv"
ENTRY = b"main"
# -O0 because -O1 runs spirv-opt, which the slangtorch wheel does not contain. Drivers optimise
# SPIR-V anyway.
OPTIONS = (
    *("-target", "spirv", "-profile", "spirv_1_5", "-O0"),
    *("-entry", "main", "-stage", "compute", "-matrix-layout-row-major"),
)
COMPILE_TIMEOUT_S = 120.0
INSTALL_SLANG = "pip install --no-deps slangtorch==1.3.22"


def source(name: str) -> str:
    """Return the text of kernel `name` and of all files that it includes."""
    texts: dict[str, str] = {}

    def visit(name: str) -> None:
        if name not in texts:
            texts[name] = text = (KERNELS / name).read_text(encoding="utf-8")
            for included in re.findall(r'^\s*#include\s+"([^"]+)"', text, re.MULTILINE):
                visit(included)

    visit(f"{name}.slang")
    return "\0".join(f"{name}\0{text}" for name, text in texts.items())


_source = cache(source)


@cache
def sources_digest() -> str:
    """Return a digest of the code of all kernels, without comments."""
    paths = KERNELS.rglob("*.slang")
    return code_digest(
        {x.relative_to(KERNELS).as_posix(): x.read_text(encoding="utf-8") for x in paths}
    )


_compilers = slang.Processes()


def key(shader: KernelVariant) -> str:
    """Return the file name of a kernel's SPIR-V, which depends on everything that is compiled."""
    given = repr((_source(shader.name), sorted(shader.defines), OPTIONS))
    return f"{shader.name}-{hashlib.sha256(given.encode()).hexdigest()[:20]}"


def for_device(shader: KernelVariant, features: Features) -> KernelVariant:
    """Return a kernel with the device's macros: subgroup size, few registers, unusual matrices."""
    defines = (*shader.defines, ("SUBGROUP", features.subgroup))
    if features.has_few_registers:
        # 1: half as many registers as most GPUs have; 2: a quarter.
        defines = (*defines, ("FEW_REGISTERS", FULL_REGISTERS // features.registers // 2))
    if features.matrix != SQUARE:
        m, n, k = features.matrix
        defines = (*defines, ("MATRIX_M", m), ("MATRIX_N", n), ("MATRIX_K", k))
    return KernelVariant(shader.name, defines)


@cache
def compiler() -> Path | None:
    """Return the path of `slangc`: on PATH, or in an installed slangtorch or slangpy package."""
    found = shutil.which("slangc")
    if found:
        return Path(found)
    for package in ("slangtorch", "slangpy"):
        spec = importlib.util.find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or []:
            for name in ("bin/slangc", "slangc", "bin/slangc.exe"):
                if (path := Path(folder) / name).is_file():
                    return path
    return None


def spirv(shader: KernelVariant, folder: Path | None = None) -> bytes:
    """Return the SPIR-V of a kernel, compiled if no cache has it. Raises DeviceError.

    folder: cache for compiled SPIR-V, by default the user's cache.
    """
    name = f"{key(shader)}.spv"
    kept = (folder or cache_folder() / "spirv") / name
    for path in (PREBUILT / name, kept):
        if path.is_file():
            return path.read_bytes()
    code = _compile(shader)
    save(kept, code)
    return code


def coherent_spirv(shader: KernelVariant) -> bytes:
    """Return the SPIR-V of a kernel with coherent stores, from the user's cache if it has it.

    Raises DeviceError.
    """
    kept = cache_folder() / "spirv" / f"{key(shader)}-coherent-{_rewriting()}.spv"
    if kept.is_file():
        return kept.read_bytes()
    code = coherent(spirv(shader))
    save(kept, code)
    return code


@cache
def _rewriting() -> str:
    """Return a digest of the code that makes stores coherent."""
    folder = Path(__file__).parent
    text = b"".join((folder / name).read_bytes() for name in ("coherent.py", "spirv.py"))
    return hashlib.sha256(text).hexdigest()[:8]


def threads(code: bytes) -> int:
    """Return the x size of the workgroups of this SPIR-V, 1 if it states none."""
    for op, x in instructions(code):
        if op == Op.EXECUTION_MODE and x[1] == LOCAL_SIZE:
            return x[2]
    return 1


def _compile(shader: KernelVariant) -> bytes:
    program = compiler()
    if program is None:
        raise DeviceError(
            f"the Vulkan kernel {shader.name} is not compiled yet",
            "no Slang compiler was found",
            f"install one: {INSTALL_SLANG}, or put slangc on the PATH",
        )
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "kernel.spv"
        try:
            report = _run(program, shader, out)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DeviceError(
                f"the kernel {shader.name} could not be compiled",
                f"{program}: {error}",
                f"reinstall the Slang compiler: {INSTALL_SLANG}",
            ) from error
        if report or not out.is_file():
            defines = " ".join(f"-D{name}={value}" for name, value in shader.defines)
            raise DeviceError(
                f"the kernel {shader.name} ({defines}) does not compile",
                f"{program} says: {_first_error(report)}",
                f"use Slang 2026.14: {INSTALL_SLANG}",
            )
        return out.read_bytes()


def _run(program: Path, shader: KernelVariant, out: Path) -> str:
    """Compile a kernel to the file `out`. Return the compiler's report, empty if it succeeds."""
    source = KERNELS / f"{shader.name}.slang"
    library = slang.library(program)
    if library is not None:
        return _compilers.compile(library, source, shader.defines, out, COMPILE_TIMEOUT_S)
    defines = [f"-D{name}={value}" for name, value in shader.defines]
    command = [str(program), str(source), *OPTIONS, *defines, "-I", str(KERNELS), "-o", str(out)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False
    )
    return done.stderr if done.returncode else ""


def _first_error(text: str) -> str:
    lines = text.strip().splitlines()
    at = next((i for i, line in enumerate(lines) if line.startswith("error")), 0)
    return " ".join(" ".join(line.split()) for line in lines[at : at + 5]) or "nothing"


class Pipelines:
    """The pipelines of one device by kernel variant, with the driver's pipeline cache."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._made: dict[KernelVariant, int] = {}
        ranges = vk.PushConstantRange(stages=vk.SHADER_STAGE_COMPUTE, size=MAX_PUSH_BYTES)
        self.layout = device.create(
            "vkCreatePipelineLayout",
            vk.PipelineLayoutCreateInfo(nRanges=1, ranges=addressof(ranges)),
        )
        self._file = cache_folder() / f"pipelines-{device.uuid}.bin"
        self._cache = self._load_cache()

    def get(self, shader: KernelVariant) -> int:
        return self._made[shader]

    def prepare(self, shaders: Iterable[KernelVariant], progress: Progress | None = None) -> None:
        """Make the pipelines that do not exist yet, on all cores. Raises DeviceError."""
        with self._lock:
            missing = [s for s in dict.fromkeys(shaders) if s not in self._made]
            if not missing:
                return
            with ThreadPoolExecutor(os.cpu_count() or 1) as threads:
                for done, (shader, pipeline) in enumerate(
                    zip(missing, threads.map(self._make, missing), strict=True)
                ):
                    self._made[shader] = pipeline
                    if progress is not None:
                        progress(done + 1, len(missing))
            self._save_cache()

    def _make(self, shader: KernelVariant) -> int:
        device, f = self._device, self._device.vk
        compiled = coherent_spirv if device.coherent else spirv
        code = compiled(for_device(shader, device.features))
        text = ctypes.create_string_buffer(code, len(code))
        module = device.create(
            "vkCreateShaderModule", vk.ShaderModuleCreateInfo(size=len(code), code=addressof(text))
        )
        name = ctypes.create_string_buffer(ENTRY)
        stage = vk.ShaderStageCreateInfo(
            stage=vk.SHADER_STAGE_COMPUTE, module=module, name=addressof(name)
        )
        if device.fills_subgroups and threads(code) % device.features.subgroup == 0:
            stage.flags = vk.STAGE_FLAG_FULL_SUBGROUPS
        if device.sets_subgroup_size:
            stage.chain(vk.RequiredSubgroupSize(size=device.features.subgroup))
        kept = vk.PIPELINE_KEEP_STATISTICS | vk.PIPELINE_KEEP_TEXT if device.explains else 0
        info = vk.ComputePipelineCreateInfo(flags=kept, layout=self.layout, stage=stage)
        handle = c_uint64()
        try:
            f.vkCreateComputePipelines(
                device.handle, self._cache, 1, byref(info), None, byref(handle)
            )
        except DeviceError as error:
            raise DeviceError(
                f"the driver rejects the kernel {shader.name}", error.why, error.hint
            ) from error
        finally:
            f.vkDestroyShaderModule(device.handle, module, None)
        return handle.value

    def _load_cache(self) -> int:
        try:
            data = self._file.read_bytes()
        except OSError:
            data = b""
        text = ctypes.create_string_buffer(data, len(data) or 1)
        info = vk.PipelineCacheCreateInfo(size=len(data), data=addressof(text) if data else None)
        return self._device.create("vkCreatePipelineCache", info)

    def _save_cache(self) -> None:
        f, handle = self._device.vk, self._device.handle
        size = c_size_t()
        f.vkGetPipelineCacheData(handle, self._cache, byref(size), None)
        data = (c_char * size.value)()
        f.vkGetPipelineCacheData(handle, self._cache, byref(size), byref(data))
        save(self._file, data.raw[: size.value])
