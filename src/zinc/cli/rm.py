"""`zinc rm`: delete downloaded models."""

from __future__ import annotations

import argparse
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models",
        metavar="MODEL",
        nargs="+",
        help="name as printed by `zinc list`; without a quantisation, all files of the repository "
        "are deleted",
    )


def run(args: argparse.Namespace) -> int:
    from zinc.cli.text import size
    from zinc.hub.folders import folders
    from zinc.hub.remove import remove

    for model in args.models:
        freed = remove(model, folders())
        print(f"zinc: {model} is deleted, {size(freed)} are free again", file=sys.stderr)
    return 0
