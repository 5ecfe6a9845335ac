"""Vulkan kernels of a test's own in the place of zinc's."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from zinc.backends import vulkan
from zinc.backends.vulkan import shaders


def copied_kernels(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Copies the kernels to `folder`, from which backends that are made now take them."""
    shutil.copytree(shaders.KERNELS, folder, dirs_exist_ok=True)
    patch.setattr(shaders, "KERNELS", folder)
    patch.setattr(shaders, "_source", shaders.source)
    patch.setattr(vulkan, "host_of", vulkan.host_of.__wrapped__)
