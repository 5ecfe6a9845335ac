"""Conversion of a search pattern to a full match, which resolves the anchors ^ and $.

JSON Schema looks for a match anywhere in a string, while llguidance matches whole texts.
"""

from __future__ import annotations

from functools import lru_cache

from zinc.grammar.pattern.chars import PatternError
from zinc.grammar.pattern.parser import parse
from zinc.grammar.pattern.tree import (
    ANY_TEXT,
    EMPTY,
    Anchor,
    Choice,
    Node,
    Repeat,
    Sequence,
)

MAX_BRANCHES = 256


@lru_cache(256)
def full_match(pattern: str) -> Node:
    """Return a tree without anchors that matches each text in which `pattern` is found."""
    options: list[Node] = []
    for branch in _branches(parse(pattern)):
        found = _anchored(branch)
        if found is not None:
            options.append(found)
    return Choice(tuple(options)) if len(options) != 1 else options[0]


def _branches(node: Node) -> list[tuple[Node, ...]]:
    """Rewrite `node` as alternatives whose anchors all stand at the top level."""
    if not _has_anchor(node):
        return [(node,)]
    match node:
        case Choice(options):
            found = [branch for option in options for branch in _branches(option)]
        case Sequence(items):
            found = [()]
            for item in items:
                more = _branches(item)
                if len(found) * len(more) > MAX_BRANCHES:
                    raise PatternError("it has too many alternatives with anchors")
                found = [(*before, *after) for before in found for after in more]
        case Repeat(item, least, most) if most == 1:
            found = _branches(item) + ([()] if least == 0 else [])
        case Repeat():
            raise PatternError("an anchor is inside a repeated group")
        case _:
            found = [(node,)]
    if len(found) > MAX_BRANCHES:
        raise PatternError("it has too many alternatives with anchors")
    return found


def _has_anchor(node: Node) -> bool:
    """Return whether a tree contains an anchor."""
    match node:
        case Anchor():
            return True
        case Sequence(items) | Choice(items):
            return any(map(_has_anchor, items))
        case Repeat(item, _, _):
            return _has_anchor(item)
    return False


def _anchored(branch: tuple[Node, ...]) -> Node | None:
    """Return a tree for the whole text of a branch, or None if its anchors can never hold."""
    starts = [i for i, item in enumerate(branch) if isinstance(item, Anchor) and item.is_start]
    ends = [i for i, item in enumerate(branch) if isinstance(item, Anchor) and not item.is_start]
    if starts and ends and ends[0] < starts[-1]:
        # The end comes before the start: only the empty text can match.
        parts = [item for item in branch if not isinstance(item, Anchor)]
        return EMPTY if all(map(_nullable, parts)) else None
    first, last = (starts[-1] + 1 if starts else 0), (ends[0] if ends else len(branch))
    outside = (*branch[:first], *branch[last:])
    if not all(isinstance(item, Anchor) or _nullable(item) for item in outside):
        return None
    before = () if starts else (ANY_TEXT,)
    after = () if ends else (ANY_TEXT,)
    return Sequence((*before, *branch[first:last], *after))


def _nullable(node: Node) -> bool:
    """Return whether a tree matches the empty text."""
    match node:
        case Sequence(items):
            return all(map(_nullable, items))
        case Choice(options):
            return any(map(_nullable, options))
        case Repeat(item, least, _):
            return least == 0 or _nullable(item)
    return False
