"""The prompt of `zinc run`: from the command line, a file or standard input."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from zinc.cli import argtypes, streams, text
from zinc.cli.argtypes import UsageError
from zinc.core.errors import RequestError
from zinc.hub.modelfile import is_modelfile
from zinc.hub.names import FileName, is_model_name, parse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "prompt",
        metavar="[MODEL] PROMPT",
        nargs="*",
        help="prompt text; - or a pipe reads stdin, and a pipe is added to PROMPT. The first "
        "argument is the model if it has no blanks and ends in .gguf, contains a /, or is a short "
        "name such as qwen3:8b",
    )
    parser.add_argument(
        "-f",
        "--file",
        metavar="FILE",
        help="read the prompt from a file, or add the file to PROMPT; - reads stdin",
    )


def read(args: argparse.Namespace) -> str:
    """Return the prompt text from PROMPT, a file and stdin.

    A first word that names a model is moved to `args.model`. Text from a file or a pipe is appended
    after a blank line, or directly with --raw. Raises UsageError for contradicting arguments and
    for an empty prompt, and RequestError for text that cannot be read. With --raw, whether a prompt
    may be empty depends on the model: some put a token before every text.
    """
    prompt = _read(args)
    if not args.raw and not prompt.strip():
        source = "the PROMPT" if args.file is None else f"the file {args.file}"
        if args.prompt[-1:] == ["-"] or args.file == "-":
            source = "stdin"
        raise _nothing_to_ask(args, f"{source} is empty; give a PROMPT, or --file FILE with text")
    return prompt


def _read(args: argparse.Namespace) -> str:
    words = list(args.prompt)
    if words and is_model_name(words[0]):
        args.model = _model(words.pop(0), args.model)
    if len(words) > 1:
        quotes = "a PROMPT of several words needs quotes around it"
        named = args.model is not None or any(map(str.isspace, words[0]))
        raise UsageError(quotes if named else f"{words[0]!r} is not a model, and {quotes}")
    given = words[0] if words else None
    if given == "-" and args.file is not None:
        raise UsageError("- and --file both say where to read the prompt: give one of them")
    if given is None or given == "-":
        return _whole(args, required=given is None and args.file is None)
    prompt = argtypes.text_argument(given, "the prompt")
    if args.file is not None:
        content = _content(args.file, args.raw)
    elif streams.has_piped_input():
        content = _content("-", args.raw)
    else:
        return prompt
    return prompt + ("\n\n" if content and not args.raw else "") + content


def _model(word: str, option: str | None) -> str:
    """Return the model named by the first argument. Raises UsageError, RequestError."""
    if option is not None:
        raise UsageError(
            f"{word} looks like a model, and -m names {option}: give one of them; if {word} is "
            "the prompt, add a blank to it"
        )
    name = parse(word)
    if not isinstance(name, FileName):
        return word
    path = name.path
    if not path.exists():
        raise RequestError(
            f"cannot open {word}",
            "there is no such file",
            "check the path; if it is the prompt, add a blank to it",
        )
    if path.is_file() and not (path.suffix == ".gguf" or _is_gguf(path) or is_modelfile(path)):
        raise RequestError(
            f"{word} is not a model",
            "it is not a GGUF file",
            f"read a prompt from it with --file {word}",
        )
    return word


def _is_gguf(path: Path) -> bool:
    """Return whether a file starts like a GGUF file, or cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except OSError:
        return True  # loading it reports the error


def _whole(args: argparse.Namespace, *, required: bool) -> str:
    """Return a prompt that comes entirely from a file or from standard input."""
    if required and sys.stdin.isatty():
        why = "give a PROMPT, or --file FILE; `zinc chat` starts a conversation"
        raise _nothing_to_ask(args, why)
    content = _content(args.file or "-", args.raw)
    if required and not content.strip():
        why = "no PROMPT is given, and stdin is empty; give a PROMPT, or --file FILE"
        raise _nothing_to_ask(args, why)
    return content


def _nothing_to_ask(args: argparse.Namespace, why: str) -> UsageError:
    model = "" if args.model is None else f" the model {args.model}"
    return UsageError(f"there is nothing to ask{model}: {why}")


def _content(file: str, raw: bool) -> str:
    """Return the text of a file. Without `raw`, its final newline is dropped."""
    if file == "-":
        streams.wait_for_input()
    content = text.read_file(file)
    return content if raw else content.removesuffix("\n")
