"""Whether a client library is installed."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def needs(module: str, package: str) -> pytest.MarkDecorator:
    """Return the mark of tests that import `module`, which PyPI's `package` has."""
    try:
        found = find_spec(module)
    except ModuleNotFoundError:  # of a parent package
        found = None
    return pytest.mark.skipif(found is None, reason=f"{package} is not installed")
