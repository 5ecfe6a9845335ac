"""The program `zinc`: find the command, run it, report every failure in one line.

Exit status: 0 done, 1 failed (`zinc: what: why. Hint.` on stderr), 2 wrong usage, 130 interrupted,
141 if the reader of stdout has closed it (as a shell reports for SIGPIPE).
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Protocol, cast

from zinc import __version__
from zinc.cli import parsed
from zinc.cli.argtypes import UsageError
from zinc.cli.dialect import ALIASES, instead, translate
from zinc.cli.parser import Parser, nearest, usage_error
from zinc.cli.streams import standard_streams
from zinc.core import env
from zinc.core.errors import ZincError, next_step

FAILED, USAGE, INTERRUPTED, BROKEN_PIPE = 1, 2, 130, 141

COMMANDS = {
    "run": "answer one prompt on stdout",
    "chat": "talk to a model in the terminal",
    "batch": "answer a file of requests in the format of OpenAI's batch API",
    "serve": "serve a chat page and the APIs of OpenAI, Anthropic, Ollama and others",
    "cluster": "run replicas of the server on Ray behind one address",
    "launch": "start a coding agent with a local model",
    "pull": "download a model by name",
    "list": "list the models on this machine",
    "show": "describe a model and the memory that it needs",
    "rm": "delete a downloaded model",
    "ps": "list the models that a running server has loaded",
    "inspect": "show the metadata, tensors, types and memory of a model file",
    "plan": "show the launches that would run a model, their cost and memory",
    "tokenize": "turn text into token ids",
    "perplexity": "measure how well a model predicts a text file",
    "bench": "measure prefill and decode speed, and compare it with this machine's limits",
    "tune": "find the fastest tile sizes for matrix products on a GPU",
    "verify": "compare every launch of a backend with the numpy reference",
    "check": "check this machine: CPU, memory, GPUs, software and, if named, a model",
    "support": "show which architectures and block formats run on which backends",
}


class Command(Protocol):
    """A command module."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int: ...


def command(name: str) -> Command:
    return cast(Command, importlib.import_module(f"zinc.cli.{name}"))


def build_parser(selected: str | None = None) -> Parser:
    """Return the parser of the command `selected` alone, or of all commands.

    If `selected` is not a command, no module of a command is imported, and none has arguments.
    """
    parser = Parser(
        prog="zinc",
        description="Run GGUF language models on the hardware you own.",
        epilog=_epilog(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-v", "--version", action="version", version=f"zinc {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        if selected in COMMANDS and name != selected:
            continue
        text = f"{summary[0].upper()}{summary[1:]}."
        sub = commands.add_parser(name, help=summary, description=text)
        sub.set_defaults(parser=sub)
        if selected in (None, name):
            command(name).add_arguments(sub)
    return parser


def _epilog() -> str:
    variables = "\n".join(f"  {v.name.ljust(12)}  {v.doc}" for v in env.VARIABLES)
    return (
        "`zinc COMMAND --help` explains a command.\n"
        "Commands without a model use the embedded demo model.\n\n"
        f"environment variables, which options override:\n{variables}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status. Errors of users are never raised.

    If output cannot be written, the command ends quietly if the reader of stdout has closed it, and
    with a one-line error otherwise.
    """
    with standard_streams():
        try:
            try:
                return _main(sys.argv[1:] if argv is None else list(argv))
            finally:
                sys.stdout.flush()
        except KeyboardInterrupt:
            return INTERRUPTED
        except BrokenPipeError:
            _discard_output()
            return BROKEN_PIPE
        except OSError as error:
            _discard_output()
            # Commands name the files that they open; without a name, the error is about the output.
            what = f"cannot open {error.filename}" if error.filename else "cannot write the output"
            return _fail(ZincError(what, error.strerror or str(error), next_step(error)).message)


def _main(argv: list[str]) -> int:
    if not argv:
        build_parser("").print_help(sys.stderr)
        print("\nzinc: error: name a COMMAND", file=sys.stderr)
        return USAGE
    if argv[0] == "help":
        argv = [*argv[1:2], "--help"]
    argv = [ALIASES.get(argv[0], argv[0]), *argv[1:]]
    if argv[0] not in COMMANDS and not argv[0].startswith("-"):
        sys.stderr.write(usage_error("zinc", _no_command(argv[0]), see_help=True))
        return USAGE
    # If the first word is an option, the parser handles it without importing any command.
    parser = build_parser(argv[0])
    try:
        words = _translated(argv, parser)
        args, rest = parser.parse_known_args(words)
        if unknown := args.parser.add_rest(args, rest):
            sys.stderr.write(args.parser.unknown(unknown))
            return USAGE
        parsed.merge_models(args)
    except UsageError as error:
        sys.stderr.write(usage_error(f"zinc {argv[0]}", str(error)))
        return USAGE
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else USAGE
    return _run(args)


def _no_command(name: str) -> str:
    """Return the error for a command that zinc does not have."""
    what = f"there is no command {name!r}"
    if hint := instead(name):
        return f"{what}: {hint}"
    near = nearest(name, COMMANDS)
    return f"{what}; did you mean {near}?" if near else what


def _translated(argv: list[str], parser: Parser) -> list[str]:
    """Return a command line with options of other programs translated; print notes about them."""
    commands = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    if argv[0] not in commands.choices:
        return argv
    found = translate(argv[1:], commands.choices[argv[0]]._option_string_actions)
    for note in found.notes:
        print(f"zinc: {note}", file=sys.stderr)
    return [argv[0], *found.words]


def _run(args: argparse.Namespace) -> int:
    try:
        _start_log(env.LOG.get())
        return command(args.command).run(args)
    except UsageError as error:
        sys.stderr.write(usage_error(args.parser.prog, str(error)))
        return USAGE
    except ZincError as error:
        return _fail(error.in_options())
    except MemoryError:
        return _fail("there is not enough memory. Use a smaller model or a smaller --context.")


def _fail(message: str) -> int:
    # One line, even if a file name or metadata in the message has line breaks.
    line = "".join(char if char.isprintable() else repr(char)[1:-1] for char in message)
    print(f"zinc: {line}", file=sys.stderr)
    if "logging" in sys.modules:
        import logging

        logging.getLogger("zinc").debug("the error came from here", exc_info=True)
    return FAILED


def _start_log(level: str) -> None:
    if level == env.LOG.default:
        return
    import logging

    logging.basicConfig(
        stream=sys.stderr, format="zinc: %(relativeCreated)d ms: %(name)s: %(message)s"
    )
    logging.getLogger("zinc").setLevel(level.upper())


def _discard_output() -> None:
    """Redirect stdout to /dev/null, so that the flush at exit does not fail again."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
