"""SIMD levels at which kernels are tested. Code that levels share is tested once."""

from __future__ import annotations

import pytest

_cpu = pytest.importorskip("zinc.backends.cpu._cpu")

# Levels that differ from avx512 in formats only. amx has its own products and shares BF16 with
# avx512bf16.
SHARING = ("amx", "avx512bf16")
ALL: list[str] = _cpu.levels()
OF_KERNELS = [level for level in ALL if level not in SHARING]
OF_FORMATS = [level for level in ALL if level != "avx512bf16" or "amx" not in ALL]
