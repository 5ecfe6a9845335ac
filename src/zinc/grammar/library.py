"""The package llguidance, an optional dependency that is imported when a grammar first needs it."""

from __future__ import annotations

from typing import Any

from zinc.core.errors import UnsupportedError
from zinc.core.extras import STRUCTURED, install_command


def llguidance() -> Any:
    """Return the module llguidance. Raises UnsupportedError if it is not installed."""
    try:
        import llguidance as found
    except ImportError as error:
        raise UnsupportedError(
            "answers cannot follow a grammar or schema",
            "the package llguidance is not installed",
            f"install it with: {install_command(STRUCTURED)}",
        ) from error
    return found
