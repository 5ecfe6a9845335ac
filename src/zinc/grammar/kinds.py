"""Kinds of constraint that a request may name, and the text of their sources."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from zinc.core.errors import RequestError, with_article

Kind: TypeAlias = Literal["json_schema", "json_object", "regex", "grammar", "rules"]
Source: TypeAlias = str | Mapping[str, Any] | bool | None

MAX_SOURCE_CHARACTERS = 1 << 20

# Parts of llguidance's error messages.
_ANNOUNCED, _REASON = "regex parse error:", "error: "
_PLACE = re.compile(r"^at \d+\(\d+\): ")


def source_text(kind: Kind, source: Source) -> str:
    """Return the source of a constraint as text, so that equal sources have equal text.

    source: a JSON schema as text or data, a regular expression, a grammar, or nothing for
    "json_object". Raises RequestError if it is empty, too long or not JSON.
    """
    if kind == "json_object":
        return '{"type":"object"}'
    if kind == "json_schema" and not isinstance(source, str):
        if not isinstance(source, Mapping | bool):
            raise refused(kind, "a schema is an object, or true or false")
        try:
            source = json.dumps(source, default=_mapping)
        except RecursionError:
            raise refused(kind, "it is nested too deeply") from None
        except (TypeError, ValueError) as error:
            raise refused(kind, str(error)) from None
    if not isinstance(source, str) or not source.strip():
        raise refused(kind, "it must be text that is not empty")
    if len(source) > MAX_SOURCE_CHARACTERS:
        raise refused(
            kind, f"it has {len(source):,} characters, and at most {MAX_SOURCE_CHARACTERS:,} "
            "are accepted",
        )  # fmt: skip
    return source


def _mapping(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"it contains {with_article(value)}, which is not JSON")


def refused(kind: Kind, why: str) -> RequestError:
    """Return the error for a source that is not valid or not supported."""
    name = {"json_schema": "JSON schema", "regex": "regular expression"}.get(kind, "grammar")
    line = first_line(why)
    if kind == "regex":  # the place is one in llguidance's grammar around the expression
        line = _PLACE.sub("", line)
    return RequestError(f"the {name} cannot be followed", line)


def first_line(text: str) -> str:
    """Return the first line of an error message of llguidance, with the reason it announces.

    A regular expression that cannot be parsed is shown on lines of its own before the reason.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return "llguidance gives no reason"
    first = lines[0][:300]
    reason = next((line for line in lines if line.startswith(_REASON)), None)
    if reason is None or not first.endswith(_ANNOUNCED):
        return first
    return first.removesuffix(_ANNOUNCED) + reason.removeprefix(_REASON)
