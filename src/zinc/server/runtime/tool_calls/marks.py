"""Markers of tool calls, such as `<tool_call>`, as symbols of a grammar."""

from __future__ import annotations

import json
import re

from zinc.tokenizer import Tokenizer


class Marks:
    """Markers as grammar symbols: control tokens by id, others as quoted text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def has(self, marker: str) -> bool:
        """Return whether `marker` is a control token of the vocabulary."""
        return self._tokenizer.id_of(marker) in self._tokenizer.special_ids

    def __call__(self, marker: str) -> str:
        return f"<[{self._tokenizer.id_of(marker)}]>" if self.has(marker) else literal(marker)

    def split(self, text: str) -> str:
        """Return the symbols of `text`, which may contain markers of the form <...>."""
        parts = [part for part in re.split(r"(<[^<>]*>)", text) if part]
        return " ".join(self(part) for part in parts)

    def text_to(self, name: str, marker: str, pattern: str) -> tuple[str, list[str]]:
        """Return symbols for text that ends with `marker`, and the rules they refer to.

        pattern: a regular expression for the text. name: the name of its rule.
        """
        if self.has(marker):
            terminal = name.upper()  # Lark's terminals have upper-case names
            return f"{terminal} {self(marker)}", [f"{terminal}: {pattern}"]
        return name, [f"{name}[suffix={literal(marker)}]: {pattern}"]


def literal(text: str) -> str:
    """Return `text` as a quoted grammar symbol."""
    return json.dumps(text, ensure_ascii=False)
