"""Compilation of CUDA C++ kernels to cubins by NVRTC, with a cache on disk.

A cache entry is named by everything that is compiled: sources, macros, options, architecture and
the version of NVRTC. It starts with a digest of the cubin, so that a corrupt entry is rebuilt.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any

from zinc.backends.cuda.driver import PACKAGES_HINT
from zinc.core.env import cache_folder
from zinc.core.errors import DeviceError
from zinc.gpu.arguments.generate import cpp_headers
from zinc.gpu.code_digest import code_digest
from zinc.gpu.disk_cache import save
from zinc.gpu.dispatch import KernelVariant

KERNELS = Path(__file__).parent / "kernels"
OPTIONS = ("-std=c++20", "-default-device", "--ptxas-options=-v")
FOLDER = "cubin"  # in the cache folder
DIGEST_BYTES = 32
FIRST_OWN_ARCHITECTURE = 90  # first with instructions that no other generation has
# NVRTC has no standard headers.
STDINT = """#pragma once
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
"""


def sources() -> dict[str, str]:
    """Return the texts of all source files of kernels by name, and those of generated headers."""
    paths = sorted(KERNELS.rglob("*.cu*"))
    files = {x.relative_to(KERNELS).as_posix(): x.read_text(encoding="utf-8") for x in paths}
    return cpp_headers() | files


@functools.cache
def sources_digest() -> str:
    """Return a digest of the code of all kernels, without comments."""
    return code_digest(sources())


@functools.cache
def text_digest() -> str:
    """Return a digest of the source files of all kernels as they are, for names of cache entries.

    Comments count here: if `code_digest` missed an edit of code, an old cubin would run.
    """
    return hashlib.sha256(repr(sources()).encode()).hexdigest()


@functools.cache
def nvrtc() -> Any:
    """Return the module `cuda.bindings.nvrtc`. Raises DeviceError."""
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except Exception as error:  # the bindings have several errors for a missing library
        raise DeviceError(
            "the CUDA backend has no compiler", f"NVRTC is missing: {error}", PACKAGES_HINT
        ) from error
    return nvrtc


def architecture(capability: tuple[int, int]) -> str:
    """Return the newest architecture that NVRTC supports and a GPU of `capability` runs.

    From capability 9.0 on it is an architecture-specific one, such as "sm_90a", if NVRTC knows it.
    Then kernels may use instructions that other generations lack, such as wgmma. Cached code never
    runs on another generation, because the name of a cache entry contains the architecture. Raises
    DeviceError if there is none.
    """
    supported = _value(nvrtc().nvrtcGetSupportedArchs())
    wanted, oldest = 10 * capability[0] + capability[1], 10 * capability[0]
    able = [x for x in supported if oldest <= x <= wanted]
    if not able:
        raise DeviceError(
            f"the CUDA compiler does not know compute capability {capability[0]}.{capability[1]}",
            f"it compiles for {', '.join(map(str, supported))}",
            "pip install --upgrade nvidia-cuda-nvrtc",
        )
    suffix = "a" if max(able) == wanted >= FIRST_OWN_ARCHITECTURE else ""
    return f"sm_{max(able)}{suffix}"


def source(kernel: KernelVariant) -> str:
    """Return the text to compile for a kernel: the declarations, its macros and its file.

    Macros follow the declarations, because some are names of members there.
    """
    macros = "".join(f"#define {name} {value}\n" for name, value in kernel.defines)
    return f'#include "arguments.h"\n{macros}#include "{kernel.name}.cu"\n'


def entry(kernel: KernelVariant) -> bytes:
    """Return the name of a kernel's function, as the macro KERNEL of prelude.cuh defines it."""
    return f"zinc_{kernel.name}".encode()


def identity(arch: str) -> str:
    """Return a text that names what all cubins for `arch` depend on. Raises DeviceError."""
    version = _value(nvrtc().nvrtcVersion())
    return repr((text_digest(), OPTIONS, arch, version))


def cubin(kernel: KernelVariant, arch: str) -> bytes:
    """Return the machine code of a kernel for `arch`, such as "sm_90". Raises DeviceError."""
    given = repr((identity(arch), kernel.name, sorted(kernel.defines)))
    name = f"{kernel.name}-{hashlib.sha256(given.encode()).hexdigest()[:20]}.cubin"
    path = cache_folder() / FOLDER / name
    try:
        stored = path.read_bytes()
        digest, code = stored[:DIGEST_BYTES], stored[DIGEST_BYTES:]
        if code and hashlib.sha256(code).digest() == digest:
            return code
    except OSError:
        pass
    code, _ = compile(kernel, arch)
    save(path, hashlib.sha256(code).digest() + code)
    return code


def compile(kernel: KernelVariant, arch: str) -> tuple[bytes, str]:
    """Compile a kernel. Return its cubin and the compiler's log. Raises DeviceError."""
    api = nvrtc()
    headers = {"stdint.h": STDINT, **cpp_headers()}
    program = _value(
        api.nvrtcCreateProgram(
            source(kernel).encode(),
            f"{kernel.name}-variant.cu".encode(),
            len(headers),
            [text.encode() for text in headers.values()],
            [name.encode() for name in headers],
        )
    )
    options = [
        *OPTIONS,
        f"--gpu-architecture={arch}",
        f"--include-path={KERNELS}",
    ]
    try:
        (status,) = api.nvrtcCompileProgram(program, len(options), [x.encode() for x in options])
        log = b" " * _value(api.nvrtcGetProgramLogSize(program))
        _value(api.nvrtcGetProgramLog(program, log))
        text = log.rstrip(b"\0 ").decode(errors="replace")
        if status:
            macros = " ".join(f"-D{name}={value}" for name, value in kernel.defines)
            raise DeviceError(
                f"the kernel {kernel.name} ({macros}) does not compile for {arch}",
                f"NVRTC says: {_first_error(text)}",
                PACKAGES_HINT,
            )
        code = b" " * _value(api.nvrtcGetCUBINSize(program))
        _value(api.nvrtcGetCUBIN(program, code))
    finally:
        api.nvrtcDestroyProgram(program)
    return code, text


def _value(result: tuple[Any, ...]) -> Any:
    """Return the value of an NVRTC call. Raises DeviceError."""
    status, *values = result
    if status:
        raise DeviceError("the CUDA compiler failed", status.name, PACKAGES_HINT)
    return values[0] if len(values) == 1 else tuple(values)


def _first_error(text: str) -> str:
    lines = text.strip().splitlines()
    at = next((i for i, line in enumerate(lines) if "error" in line), 0)
    return " ".join(" ".join(line.split()) for line in lines[at : at + 4]) or "nothing"
