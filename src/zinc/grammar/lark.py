"""Checks of regular expressions, Lark and GBNF before native code compiles them.

llguidance limits most costs of a grammar. But it follows references between rules by recursion, and
references that nest too deeply end the process; so can its compiler of JSON schemas (`%json`). So
the nesting of references is checked here, and `%json` is replaced by rules of
`zinc.grammar.schema`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from zinc.core.errors import RequestError
from zinc.grammar.schema.document import load
from zinc.grammar.schema.rules import Rules, rules_of

MAX_CHARACTERS = 1 << 20
MAX_REGEX_CHARACTERS = 200_000
MAX_REGEX_ATOMS = 20_000  # with repeats expanded to their minimum
MAX_REFERENCES = 500  # length of a chain of rules that refer to each other
MAX_GBNF_CHARACTERS = 1 << 18


class SourceError(RequestError):
    """A grammar or regular expression that is refused for the reason `why`."""

    def __init__(self, why: str) -> None:
        super().__init__("the grammar cannot be followed", why)


# Text that llguidance would tokenize differently must be refused: otherwise a reference or `%json`
# could hide in what these expressions take for a literal.
_COMMENT = r"//[^\n]*|\#[^\n]*"
_STRING = r'"(?:\\.|[^"\\\n])*"'
_REGEX = r"/(?:\\.|[^/\\])+/"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_TOKEN = re.compile(
    rf"""(?P<comment>{_COMMENT})
    |(?P<string>{_STRING})
    |(?P<regex>{_REGEX})
    |(?P<json>%(?:json|llguidance|regex))
    |(?P<other>[\s\w:|()\[\]{{}}*+?~,.&=<>^!@%;-])""",
    re.VERBOSE | re.DOTALL,
)
_LITERAL = re.compile(f"{_COMMENT}|{_STRING}|{_REGEX}", re.DOTALL)
_DEFINITION = re.compile(
    rf"^[ \t]*[?!]*({_NAME.pattern})[ \t]*(?:::[ \t]*\w+[ \t]*)?(?:\[|\.|:)", re.MULTILINE
)


def check_regex(source: str) -> None:
    """Raise SourceError if an expression is too long, or its repeats are too large."""
    if len(source) > MAX_REGEX_CHARACTERS:
        raise SourceError(f"a regular expression has more than {MAX_REGEX_CHARACTERS:,} characters")
    if _atoms(source) > MAX_REGEX_ATOMS:
        raise SourceError("the repeats of a regular expression are too large")


_QUANTIFIER = re.compile(r"\{(\d*)(,?)(\d*)\}")


def _atoms(source: str) -> int:
    """Count the atoms of an expression, with each repeat expanded to its minimum."""
    sums, last, at = [0], 0, 0  # sums of the open groups; the size of the item before
    while at < len(source):
        char = source[at]
        if char == "\\":
            at, last = at + 1, 1
            sums[-1] += 1
        elif char == "[":
            at = _class_end(source, at)
            last = 1
            sums[-1] += 1
        elif char == "(":
            sums.append(0)
        elif char == ")" and len(sums) > 1:
            last = sums.pop()
            sums[-1] += last
        elif found := _QUANTIFIER.match(source, at):
            digits = found[1] or "0"
            times = int(digits) if len(digits) < 12 else 10**12
            sums[-1] += last * max(0, times - 1)
            last *= max(1, times)
            at = found.end() - 1
        elif char not in "*+?|":
            last = 1
            sums[-1] += 1
        at += 1
    return sum(sums)


def _class_end(source: str, at: int) -> int:
    """Return the end of the character class that opens at `at`; classes may be nested."""
    depth = 0
    while at < len(source):
        if source[at] == "\\":
            at += 1
        elif source[at] == "[":
            depth += 1
        elif source[at] == "]":
            depth -= 1
            if depth == 0:
                return at
        at += 1
    return at


def from_gbnf(source: str) -> str:
    """Return a GBNF grammar in the Lark dialect. Raises SourceError."""
    from llguidance.gbnf_to_lark import gbnf_to_lark

    if len(source) > MAX_GBNF_CHARACTERS:
        raise SourceError(f"a GBNF grammar has more than {MAX_GBNF_CHARACTERS:,} characters")
    try:
        converted: str = gbnf_to_lark(source)
    except RecursionError:
        raise SourceError("its groups are nested too deeply") from None
    except Exception as error:  # its parser has no error class of its own for every failure
        raise SourceError(str(error) or "it is not GBNF") from None
    return converted


def from_lark(source: str) -> str:
    """Return a Lark grammar that is safe to compile, with rules for `%json`. Raises SourceError."""
    if len(source) > MAX_CHARACTERS:
        raise SourceError(f"it has more than {MAX_CHARACTERS:,} characters")
    parts: list[str] = []
    added: list[str] = []
    for kind, text in _tokens(source):
        if kind == "regex":
            check_regex(text)
        if kind == "schema":
            rules = _schema_rules(text, len(added))
            added += ["", *rules.lines]
            text = rules.start
        parts.append(text)
    checked = "".join(parts) + "\n".join(added)
    check_references(checked)
    return checked


def _schema_rules(text: str, number: int) -> Rules:
    return rules_of(load(text), prefix=f"zinc_json_{number}")


def _tokens(source: str) -> Iterator[tuple[str, str]]:
    """Yield the kind and text of each token; the JSON after `%json` has the kind "schema"."""
    at = 0
    decoder = json.JSONDecoder()
    while at < len(source):
        found = _TOKEN.match(source, at)
        if found is None:
            raise SourceError(f"{source[at : at + 20]!r} is not understood")
        kind, text, at = str(found.lastgroup), found[0], found.end()
        if kind == "json":
            while source[at : at + 1].isspace():
                at += 1
            try:
                _, end = decoder.raw_decode(source, at)
            except (ValueError, RecursionError):
                raise SourceError(f"{text} is not followed by JSON") from None
            kind, text = ("schema", "") if text == "%json" else ("data", f"{text} ")
            text, at = text + source[at:end], end
        elif "%json" in text:
            raise SourceError("%json is inside a literal or comment")
        yield kind, text


def check_references(source: str) -> None:
    """Raise SourceError if rules of a Lark grammar refer to one another too deeply."""
    graph = _references(source)
    for order in (1, -1):
        seen: set[str] = set()
        for name in graph:
            if _depth(graph, name, seen, order) > MAX_REFERENCES:
                raise SourceError("its rules refer to one another too deeply")


def _references(source: str) -> dict[str, list[str]]:
    """Map each rule to the names in its definition, in order."""
    bare = _LITERAL.sub(" ", source)
    starts = list(_DEFINITION.finditer(bare))
    graph: dict[str, list[str]] = {}
    for i, found in enumerate(starts):
        end = starts[i + 1].start() if i + 1 < len(starts) else len(bare)
        names = _NAME.findall(bare, found.end(), end)
        # A name may end in a hyphen, or be followed by an arrow.
        names += [name.rstrip("-") for name in names if name.endswith("-")]
        graph.setdefault(found[1], []).extend(names)
    return graph


def _depth(graph: dict[str, list[str]], start: str, seen: set[str], order: int) -> int:
    """Return the depth of a depth-first walk from `start` that visits each rule once."""
    if start in seen:
        return 0
    seen.add(start)
    stack: list[Iterator[str]] = [iter(graph[start][::order])]
    deepest = 1
    while stack:
        name = next((each for each in stack[-1] if each in graph and each not in seen), None)
        if name is None:
            stack.pop()
            continue
        seen.add(name)
        stack.append(iter(graph[name][::order]))
        deepest = max(deepest, len(stack))
    return deepest


def grammar_of(rules: Rules) -> str:
    """Return a whole Lark grammar that starts with a schema's first rule."""
    source = "\n".join([f"start: {rules.start}", *rules.lines])
    check_references(source)
    return source
