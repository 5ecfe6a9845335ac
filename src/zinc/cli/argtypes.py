"""Types of the arguments of commands, as argparse calls them. Imports nothing heavy."""

from __future__ import annotations

import argparse
import re

from zinc.core.errors import RequestError

ALL_LAYERS = 1 << 16


class UsageError(Exception):
    """Contradicting or missing arguments. The program exits as after a parser error."""


def natural(text: str) -> int:
    """Return a whole number of at least 0."""
    return _whole(text, 0)


def count(text: str) -> int:
    """Return a whole number of at least 1."""
    return _whole(text, 1)


def at_least_two(text: str) -> int:
    """Return a whole number of at least 2."""
    return _whole(text, 2)


def _whole(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
    return number


def quantity(text: str) -> float:
    """Return a number of at least 0, which need not be whole."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e12:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return number


def token_limit(text: str) -> int | None:
    """Return a number of tokens; None (no limit) for -1 and -2, which other programs take."""
    return None if text in ("-1", "-2") else natural(text)


def context(text: str) -> int | None:
    """Return a number of tokens; None (the default) for 0, which llama.cpp takes."""
    return None if text == "0" else count(text)


def stop_string(text: str) -> str:
    """Return text that can end an answer: not empty, and UTF-8."""
    try:
        if text.encode():
            return text
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError("this is not UTF-8 text") from None
    raise argparse.ArgumentTypeError("an empty text would end the answer before its first word")


def gpu_layers(text: str) -> int | None:
    """Return a number of layers; "all" is more than any model has, "auto" and -1 are None."""
    if text in ("auto", "-1"):
        return None
    return ALL_LAYERS if text == "all" else natural(text)


def shares(text: str) -> tuple[float, ...]:
    """Return numbers that are separated by commas."""
    try:
        return tuple(float(number) for number in text.split(","))
    except ValueError:
        message = f"{text!r} is not a list of numbers such as 3,1"
        raise argparse.ArgumentTypeError(message) from None


def address(text: str) -> str:
    """Return the address of a server, without a slash at its end."""
    if re.fullmatch(r"https?://[^/\s][^\s]*", text) is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an address such as http://127.0.0.1:8080"
        )
    return text.rstrip("/")


def text_argument(value: str, name: str) -> str:
    """Return `value`. Raises RequestError when the shell passed bytes that are not UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{name} is not UTF-8 text",
            f"character {error.start + 1} is not valid",
            "convert it to UTF-8 first",
        ) from error
    return value
