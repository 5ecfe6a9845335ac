"""Digest of kernel code, which edits of comments, indentation and blank lines leave unchanged.

It covers C++, CUDA C++ and Slang. Literals are copied as they are: `//` in a string starts no
comment. A character literal has one character or escape, which distinguishes it from the digit
separators of 1'000'000.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

_COMMENT = r"//(?:[^\\\n]+|\\.)*|/\*.*?\*/"  # a backslash continues it on the next line
_RAW = r'R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"'
_LITERAL = rf"""{_RAW}|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.[^'\n]*)'"""
# The lookaheads are for speed: other characters start no part, and a single space stays.
_PART = rf"""(?=[\s/"'R])(?! [^\s/])(?:(?P<literal>{_LITERAL})|(?:\s+|{_COMMENT})+)"""
_PARTS, _COMMENTS = re.compile(_PART, re.DOTALL), re.compile(_COMMENT, re.DOTALL)


def code_digest(sources: Mapping[str, str]) -> str:
    """Return a digest of the code in `sources`, the texts of source files by name."""
    code = sorted((name, code_of(text)) for name, text in sources.items())
    return hashlib.sha256(repr(code).encode()).hexdigest()


def code_of(text: str) -> str:
    """Return a source text without comments, indentation, blank lines and other padding.

    A comment counts as blank space. Blank space becomes one space, or one line break if it has any,
    because a line break ends a preprocessor directive.
    """
    return _PARTS.sub(_replaced, text).strip()


def _replaced(part: re.Match[str]) -> str:
    """Return a literal itself, or what remains of blank space and comments."""
    if part["literal"] is not None:
        return part[0]
    return "\n" if "\n" in _COMMENTS.sub("", part[0]) else " "
