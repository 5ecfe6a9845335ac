"""Cubins and logs of NVRTC for tests, in the user's cache.

Compiling the kernels of a model takes half a minute. An entry is named by everything that is
compiled and by the version of the compiler, as one of `compiler.cubin`, which keeps no logs.
"""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache

from zinc.backends.cuda import compiler
from zinc.core.env import cache_folder
from zinc.gpu.disk_cache import save
from zinc.gpu.dispatch import KernelVariant


def compiled(kernel: KernelVariant, arch: str) -> tuple[bytes, str]:
    """Return the cubin of a kernel and the compiler's log. Raises DeviceError."""
    given = (_common(), compiler.source(kernel), arch)
    digest = hashlib.sha256(repr(given).encode()).hexdigest()[:20]
    path = cache_folder() / "cubin-logs" / f"{kernel.name}-{digest}.json"
    try:
        stored = json.loads(path.read_bytes())
        return base64.b64decode(stored["code"]), stored["log"]
    except (OSError, ValueError):
        pass
    code, log = compiler.compile(kernel, arch)
    save(path, json.dumps({"code": base64.b64encode(code).decode(), "log": log}).encode())
    return code, log


@cache
def _common() -> str:
    version = compiler.nvrtc().nvrtcVersion()
    given = (compiler.sources(), compiler.STDINT, compiler.OPTIONS, version)
    return hashlib.sha256(repr(given).encode()).hexdigest()
