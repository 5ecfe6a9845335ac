"""`zinc tokenize`: the token ids of a text, each with its text."""

from __future__ import annotations

import argparse
import json
import sys

from zinc.cli import argtypes, parsed, text, usage


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", metavar="TEXT", help="text to tokenize; - reads stdin")
    usage.add_model_option(parser)
    parser.add_argument(
        "--special",
        action="store_true",
        help="parse control tokens such as <|im_end|> in TEXT",
    )
    parser.add_argument(
        "--no-add-special",
        action="store_true",
        help="do not add the model's BOS and EOS tokens",
    )
    usage.add_json(parser)


def run(args: argparse.Namespace) -> int:
    if args.text.endswith(".gguf") and not any(map(str.isspace, args.text)):
        raise argtypes.UsageError(f"{args.text} looks like a model: name it with -m")
    given = text.read_stdin() if args.text == "-" else argtypes.text_argument(args.text, "the text")

    from zinc.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_gguf(parsed.model_path(args))
    ids = tokenizer.encode(given, add_special=not args.no_add_special, parse_special=args.special)
    # A token may be part of a character; such pieces are shown as bytes.
    pieces = [tokenizer.token_bytes(id) for id in ids]
    if args.json:
        shown = [piece.decode("utf-8", "backslashreplace") for piece in pieces]
        json.dump({"ids": ids, "pieces": shown, "count": len(ids)}, sys.stdout)
        print()
        return 0
    for id, piece in zip(ids, pieces, strict=True):
        print(f"{id:8d}  {_quoted(piece)}")
    print(f"{len(ids)} tokens")
    return 0


def _quoted(piece: bytes) -> str:
    """Return a token's text as a Python literal, which shows blanks and control characters."""
    try:
        return repr(piece.decode())
    except UnicodeDecodeError:
        return repr(piece)
