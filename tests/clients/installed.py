"""A mark for tests that need a client library."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def needs(module: str, package: str) -> pytest.MarkDecorator:
    """Return a mark that skips tests unless `module` of PyPI's `package` is installed."""
    try:
        found = find_spec(module)
    except ModuleNotFoundError:  # the parent package is missing
        found = None
    return pytest.mark.skipif(found is None, reason=f"{package} is not installed")
