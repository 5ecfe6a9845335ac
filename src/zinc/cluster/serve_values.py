"""Values of `zinc serve`'s options in a config file of a cluster.

A value may be written as on the command line (`memory_budget: 12G`) or as a number of YAML or JSON.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import cache
from typing import Any

from zinc.cli import argtypes, serve
from zinc.core.errors import RequestError


def defaults() -> argparse.Namespace:
    """Return the options of `zinc serve` without arguments."""
    return _parser().parse_args([])


@cache
def names() -> frozenset[str]:
    """Return the names of the options."""
    return frozenset(vars(defaults()))


def converted(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as the command line would give them; unknown ones stay as they are.

    Raises RequestError for a value that the option does not take.
    """
    actions = _actions()
    return {
        name: _value(actions[name], value) if name in actions else value
        for name, value in given.items()
    }


@cache
def _actions() -> dict[str, argparse.Action]:
    return {action.dest: action for action in _parser()._actions if action.dest != "help"}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    return parser


def _value(action: argparse.Action, value: Any) -> Any:
    if value is None:
        return action.default
    if action.nargs == 0:  # a switch
        if not isinstance(value, bool):
            raise _wrong(action, f"{value!r} is neither true nor false")
        return value
    if isinstance(action.default, list) or action.nargs == "*":
        if not isinstance(value, list):
            raise _wrong(action, f"{value!r} is not a list such as [VALUE]")
        return [_single(action, each) for each in value]
    if action.type is argtypes.shares and isinstance(value, list):
        value = ",".join(map(str, value))
    return _single(action, value)


def _single(action: argparse.Action, value: Any) -> Any:
    """Return one value, read as the argument of the option."""
    kind = "text" if action.type is None else "a number"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (isinstance(value, str) or (is_number and action.type is not None)):
        raise _wrong(action, f"{value!r} is not {kind}")
    if action.type is not None:
        assert callable(action.type)
        try:
            return action.type(str(value))
        except argparse.ArgumentTypeError as error:
            raise _wrong(action, str(error)) from None
        except ValueError:
            raise _wrong(action, f"{value!r} is not {kind}") from None
    if action.choices is not None and value not in action.choices:
        raise _wrong(action, f"{value!r} is not one of {', '.join(map(str, action.choices))}")
    return value


def _wrong(action: argparse.Action, why: str) -> RequestError:
    return RequestError(f"the value of {action.dest} is wrong", why, "correct the config file")
