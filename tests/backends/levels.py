"""SIMD levels at which kernels are tested. Code that levels share is tested once."""

from __future__ import annotations

import effort
import pytest

_cpu = pytest.importorskip("zinc.backends.cpu._cpu")

# Levels that differ from avx512 in formats only. amx has its own products and shares BF16 with
# avx512bf16.
SHARING = ("amx", "avx512bf16")
ALL: list[str] = _cpu.levels()
# avxvnni is avx2 with other dot products of bytes, which the tests of formats cover.
REPEATED = () if effort.EVERY else ("avxvnni",)
OF_KERNELS = [level for level in ALL if level not in (*SHARING, *REPEATED)]
OF_FORMATS = [level for level in ALL if level != "avx512bf16" or "amx" not in ALL]
