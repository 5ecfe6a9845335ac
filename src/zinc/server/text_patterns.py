"""What a JSON schema asks of a string, as regular expressions of text that stands without quotes.

llguidance holds strings of JSON to their schema itself; text between tags gets its expressions from
here. What they cannot say is refused, and never let through unheld.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zinc.engine.structured import lark_regex
from zinc.server.errors import unsupported

_MAX_COUNT = 10_000

_DATE = (
    r"[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    r"|02-(0[1-9]|1[0-9]|2[0-8]))"
)
_TIME = (
    r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]+)?([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
)
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_BYTE = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
# RFC 3339, 5321 (the common forms), 1123, 2673, 9562 and 3986 (its characters).
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}[Tt]{_TIME}",
    "email": rf"[A-Za-z0-9!#$%&'*+\/=?^_`{{|}}~-]+(\.[A-Za-z0-9!#$%&'*+\/=?^_`{{|}}~-]+)*"
    rf"@{_LABEL}(\.{_LABEL})*",
    "hostname": rf"{_LABEL}(\.{_LABEL})*",
    "ipv4": rf"{_BYTE}(\.{_BYTE}){{3}}",
    "uuid": "[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
    "uri": r"[A-Za-z][A-Za-z0-9+.-]*:([A-Za-z0-9._~:\/?#\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+",
}


def text_pattern(schema: Mapping[str, Any]) -> str:
    """Expressions in Lark's notation, all of which a string of the schema matches as a whole.

    Raises ApiError for a format or pattern that cannot be held.
    """
    return " & ".join(f"/{each}/" for each in _patterns(schema)) or "/(?s:.*)/"


def count(schema: Mapping[str, Any], key: str) -> int | None:
    """A bound on lengths, where it is one that a grammar can hold."""
    value = schema.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 <= value <= _MAX_COUNT else None


def _patterns(schema: Mapping[str, Any]) -> Iterator[str]:
    least, most = count(schema, "minLength") or 0, count(schema, "maxLength")
    if least or most is not None:
        yield f"(?s:.{{{least},{'' if most is None else most}}})"
    pattern, format = schema.get("pattern"), schema.get("format")
    if isinstance(pattern, str):
        yield lark_regex(_whole(pattern))
    if isinstance(format, str):
        if format not in _FORMATS:
            raise unsupported(
                "tools",
                f"text in this model's calls cannot be held to the format {format[:40]!r}",
                'take it out of the schema, or use tool_choice "auto"',
            )
        yield _FORMATS[format]


def _whole(pattern: str) -> str:
    """A pattern that may be found anywhere, unless it is anchored, as one of the whole text."""
    branches: list[str] = []
    depth, start, i, in_class = 0, 0, 0, False
    anchors: list[int] = []
    while i < len(pattern):
        match pattern[i]:
            case "\\":
                i += 1
            case "]":
                in_class = False
            case "[":
                in_class = True
            case _ if in_class:
                pass
            case "(":
                depth += 1
            case ")":
                depth -= 1
            case "^" | "$":
                anchors.append(i)
            case "|" if depth == 0:
                branches.append(_branch(pattern, start, i, anchors))
                start = i + 1
        i += 1
    return "|".join([*branches, _branch(pattern, start, len(pattern), anchors)])


def _branch(pattern: str, start: int, end: int, anchors: list[int]) -> str:
    first = start in anchors and pattern[start] == "^"
    last = end - 1 in anchors and pattern[end - 1] == "$"
    if sum(start <= i < end for i in anchors) > first + last:
        raise unsupported(
            "tools",
            f"text in this model's calls cannot be held to the pattern {pattern[:80]!r}",
            "put ^ and $ at its ends alone",
        )
    inside = pattern[start + first : end - last]
    free = "(?s:.*)"
    return f"{'' if first else free}(?:{inside}){'' if last else free}"
