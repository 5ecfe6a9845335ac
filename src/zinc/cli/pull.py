"""`zinc pull`: download models by name. The path of each is printed on stdout."""

from __future__ import annotations

import argparse

from zinc.cli import usage


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models",
        metavar="MODEL",
        nargs="+",
        help="qwen3:8b, org/repo[:quantisation], a Hugging Face URL, or ollama:name[:tag]; without "
        "a quantisation, the best one that fits this machine is downloaded",
    )
    parser.add_argument(
        "--only-model",
        action="store_true",
        help="do not download the repository's image encoder (mmproj) and NextN blocks (mtp)",
    )
    usage.add_json(parser, "print each event as a line of JSON")


def run(args: argparse.Namespace) -> int:
    from zinc.cli import downloads

    for model in args.models:
        path = downloads.pull(model, as_json=args.json, siblings=not args.only_model)
        if not args.json:
            print(path)
    return 0
