"""Opening the GPU of a command while its modules are imported."""

from __future__ import annotations

import argparse

from zinc.cli import parsed


def open_gpu(args: argparse.Namespace) -> None:
    """Start to open the GPU that `args` name or that "auto" probably chooses. Raises nothing."""
    from zinc.engine.load import auto

    auto.open_early(parsed.backend_name(args), parsed.backend_options(args))
