"""Early opening of a command's GPU, while Python imports the modules of the command."""

from __future__ import annotations

import argparse

from zinc.cli import parsed


def open_gpu(args: argparse.Namespace) -> None:
    """Start to open the GPU that `args` name or that "auto" probably chooses.

    Raises RequestError for an environment variable with a wrong value, and nothing else: an error
    of the GPU is reported when the model is loaded.
    """
    from zinc.engine.load import auto

    auto.open_early(parsed.backend_name(args), parsed.backend_options(args))
