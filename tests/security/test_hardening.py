"""Hardening flags of the compiled extension, which make memory errors hard to exploit."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from zinc.backends.cpu import _cpu

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="reads ELF"),
    pytest.mark.skipif(shutil.which("readelf") is None, reason="needs readelf"),
]


def readelf(option: str) -> list[str]:
    command = ["readelf", "--wide", option, _cpu.__file__]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_the_stack_is_not_executable():
    (line,) = (line for line in readelf("--program-headers") if "GNU_STACK" in line)
    assert line.split()[-2] == "RW"


def test_relocations_are_read_only_before_any_code_runs():
    assert any("GNU_RELRO" in line for line in readelf("--program-headers"))
    assert any("BIND_NOW" in line or "NOW" in line.split() for line in readelf("--dynamic"))


def test_stacks_are_guarded():
    assert any("__stack_chk_fail" in line for line in readelf("--dyn-syms"))


def test_copies_of_known_size_are_checked():
    """FORTIFY replaces calls such as memcpy by variants that end the process on an overflow."""
    checked = ("__memcpy_chk", "__memset_chk", "__memmove_chk", "__snprintf_chk", "__vsnprintf_chk")
    symbols = " ".join(readelf("--dyn-syms"))
    assert any(name in symbols for name in checked)
