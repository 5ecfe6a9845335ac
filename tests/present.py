"""Backends that tests run on: every one present that computes."""

from __future__ import annotations

import os

from zinc.backends import api
from zinc.core.errors import ZincError

UNFINISHED = {"vulkan"} - {os.environ.get("ZINC_TEST_BACKEND")}  # some of its kernels are missing


def computing() -> list[str]:
    """Names of the backends that are installed and work here, without the oracle."""
    found = []
    for name in api.discover():
        if name in ("ref", "null") or name in UNFINISHED:
            continue
        try:
            api.create(name)
        except ZincError:
            continue
        found.append(name)
    return found
