"""`zinc perplexity`: how well a model predicts a text; lower is better.

`LLM.perplexity` defines the windows. Perplexities of models with different tokenizers cannot be
compared.
"""

from __future__ import annotations

import argparse
import json
import sys

from zinc.cli import argtypes, text, usage


def add_arguments(parser: argparse.ArgumentParser) -> None:
    usage.add_model(parser)
    parser.add_argument("file", metavar="FILE", help="a file of UTF-8 text; - reads stdin")
    parser.add_argument(
        "--window",
        type=argtypes.at_least_two,
        default=512,
        metavar="TOKENS",
        help="number of tokens that are scored together (default: %(default)s)",
    )
    usage.add_backend(parser)
    usage.add_rope(parser)
    usage.add_kv_dtype(parser)
    usage.add_lora(parser)
    usage.add_json(parser)


def run(args: argparse.Namespace) -> int:
    if args.file.endswith(".gguf"):
        raise argtypes.UsageError(f"{args.file} is a model: name the MODEL first, then a text FILE")
    content = text.read_file(args.file)

    from zinc.cli import loading
    from zinc.core.progress import ProgressBar

    # The cache never holds more than one window.
    args.context = args.window
    with loading.context_from("--window"):
        llm = loading.open_llm(args)
    with llm:
        ids = llm.tokenizer.encode(content)
        with ProgressBar("scoring") as progress:
            value = llm.perplexity(ids, args.window, progress)
        n_tokens = len(ids) // args.window * args.window
        report = {
            "model": str(llm.path),
            "file": args.file,
            "tokens": n_tokens,
            "window": args.window,
            "backend": llm.backend.name,
            "perplexity": value,
        }
    if args.json:
        json.dump(report, sys.stdout)
        print()
    else:
        windows = n_tokens // args.window
        print(f"perplexity {value:.4f} over {n_tokens:,} tokens in {windows} windows")
    return 0
