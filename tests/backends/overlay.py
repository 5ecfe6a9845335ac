"""Replacement of zinc's Vulkan kernels by modified copies, for tests."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from zinc.backends import vulkan
from zinc.backends.vulkan import shaders


def copied_kernels(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Copy the kernels to `folder`, and let backends created from now on use the copies."""
    shutil.copytree(shaders.KERNELS, folder, dirs_exist_ok=True)
    patch.setattr(shaders, "KERNELS", folder)
    patch.setattr(shaders, "_source", shaders.source)
    # Another fixture may have replaced it already.
    patch.setattr(vulkan, "host_of", getattr(vulkan.host_of, "__wrapped__", vulkan.host_of))
