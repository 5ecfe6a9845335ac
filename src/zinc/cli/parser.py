"""The argument parser: exact option names, errors of one line.

argparse reads `-n 5` as `-ngl 5` and `-ctk q8_0` as `-c tk`. Here an option must be spelled out;
the only abbreviation is a number after a letter (`-n5`). An unknown name gets a suggestion.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from typing import Any, NoReturn

# What argparse calls an "invalid int value".
_NUMBERS: dict[Any, str] = {int: "a whole number", float: "a number"}
_LETTER_AND_NUMBER = re.compile(r"-[A-Za-z]-?[0-9.]+")


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` without prefix matching."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)
        self.color = False  # from Python 3.14 on, help has escape sequences otherwise

    def error(self, message: str) -> NoReturn:
        self.exit(2, usage_error(self.prog, message, see_help=True))

    def add_rest(self, args: argparse.Namespace, rest: list[str]) -> list[str]:
        """Add later words to the positional that takes a list; return the words that remain.

        argparse fills such a positional from one run of words only, but `MODEL --seed 1 PROMPT` has
        two. Words after `--` are never options.
        """
        lists = [a for a in self._actions if a.nargs == "*" and not a.option_strings]
        at = rest.index("--") if "--" in rest else len(rest)
        words = [*rest[:at], *rest[at + 1 :]]
        if not lists or any(word.startswith("-") for word in rest[:at]):
            return rest
        setattr(args, lists[0].dest, [*getattr(args, lists[0].dest), *words])
        return []

    def unknown(self, arguments: list[str]) -> str:
        """Return the error for arguments that this parser does not take."""
        option = next((text for text in arguments if text.startswith("-")), None)
        if option is None:
            message = f"{arguments[0]!r} is one argument too many"
        else:
            name = option.partition("=")[0]
            near = self._near(name)
            message = f"there is no option {name}" + (f"; did you mean {near}?" if near else "")
        return usage_error(self.prog, message, see_help=True)

    def _near(self, name: str) -> str:
        """Return the option that `name` probably means, or nothing."""
        long = [option for option in self._option_string_actions if option.startswith("--")]
        return nearest(name, long) if name.startswith("--") else ""

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError:
            kind = _NUMBERS.get(action.type)
            if kind is None:
                raise
            raise argparse.ArgumentError(action, f"{arg_string!r} is not {kind}") from None

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            names = ", ".join(map(str, action.choices))
            raise argparse.ArgumentError(action, f"{value!r} is not one of {names}")

    # argparse has no public option that turns off prefixes of single-dash options.
    def _get_option_tuples(self, option_string: str) -> list[Any]:
        if not _LETTER_AND_NUMBER.fullmatch(option_string):
            return []
        found = super()._get_option_tuples(option_string)
        return [entry for entry in found if entry[1] == option_string[:2]]


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that begins with `name` or differs from it by a typo, or nothing.

    A typo is one wrong, missing, additional or exchanged character, or two in a name of six.
    Hyphens before the name do not count.
    """
    known = list(known)
    begun = next((each for each in known if each.startswith(name)), None)
    if begun is not None:
        return begun
    word = name.lstrip("-")
    typos = {each: _n_edits(word, each.lstrip("-")) for each in known}
    near = min(known, key=typos.__getitem__, default="")
    return near if near and typos[near] <= min(2, len(word) // 3) else ""


def _n_edits(a: str, b: str) -> int:
    """Return how many characters to insert, delete, replace or exchange with the next one.

    This is the optimal string alignment distance.
    """
    rows = [list(range(len(b) + 1))]  # rows[i][j]: edits between the first i of a and j of b
    for i, x in enumerate(a, 1):
        row = [i]
        for j, y in enumerate(b, 1):
            edits = min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (x != y))
            if i > 1 and j > 1 and (x, y) == (b[j - 2], a[i - 2]):
                edits = min(edits, rows[-2][j - 2] + 1)
            row.append(edits)
        rows.append(row)
    return rows[-1][-1]


def usage_error(prog: str, message: str, *, see_help: bool = False) -> str:
    """Return the line on stderr for wrong usage of the command `prog`."""
    end = "" if message.endswith("?") else "."
    hint = f"{end} See `{prog} --help`." if see_help else ""
    return f"{prog}: error: {message}{hint}\n"
