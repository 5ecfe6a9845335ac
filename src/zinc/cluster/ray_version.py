"""Check that Ray is installed in a version that zinc knows."""

from __future__ import annotations

import importlib.metadata

from zinc.core.errors import UnsupportedError
from zinc.core.extras import RAY, install_command

KNOWN = "2.60"


def check_ray() -> None:
    """Raise UnsupportedError without Ray, or with a version that zinc was not tested with."""
    hint = f"install it with: {install_command(RAY)}"
    try:
        found = importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        raise UnsupportedError("a cluster needs Ray", "it is not installed", hint) from None
    if not found.startswith(f"{KNOWN}."):
        why = f"Ray {found} is installed, and zinc needs Ray {KNOWN}"
        raise UnsupportedError("a cluster cannot run on this Ray", why, hint)
    try:
        import ray.serve  # noqa: F401
    except ImportError as error:
        why = f"it is installed without Ray Serve ({error})"
        raise UnsupportedError("a cluster needs Ray Serve", why, hint) from None
