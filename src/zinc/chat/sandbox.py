"""The Jinja environment that chat templates run in.

A template comes with a model file, so it is code from a stranger. jinja2's immutable sandbox keeps
it from Python's internals and from changing what it is given. It may not take the machine's time or
memory either: loops and calls are counted against a deadline, and no string may grow past a limit.
Globals, filters and whitespace rules are those that Hugging Face gives chat templates.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from datetime import datetime
from functools import wraps
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.exceptions import TemplateRuntimeError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

Value = Any  # whatever a template computes with

MAX_SECONDS = 20.0
MAX_STRING_CHARS = 64 << 20
MAX_TOTAL_CHARS = 1 << 30
_MAX_WIDTH = 10_000
_MAX_INTEGER_BITS = 4096
_STEPS_PER_LOOK = 64
_WIDE = re.compile(r"\d{5}|\*")


class RefusedError(TemplateRuntimeError):
    """The template called `raise_exception`: it does not accept these messages."""


class TooExpensiveError(TemplateRuntimeError):
    """The template used more time or memory than a prompt is worth."""


class Budget:
    """What one rendering may use."""

    def __init__(self, seconds: float = MAX_SECONDS) -> None:
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._steps = 0
        self._chars = 0

    def step(self) -> None:
        """One turn of a loop or one call."""
        self._steps += 1
        if self._steps % _STEPS_PER_LOOK == 0 and time.monotonic() > self._deadline:
            raise TooExpensiveError(f"it ran for more than {self._seconds:g} s")

    def string(self, n_chars: int) -> None:
        """A new string."""
        self._chars += n_chars
        if n_chars > MAX_STRING_CHARS or self._chars > MAX_TOTAL_CHARS:
            raise TooExpensiveError(
                f"it made more than {MAX_STRING_CHARS >> 20} million characters"
            )


budget: ContextVar[Budget] = ContextVar("budget")


class SandboxedTemplates(ImmutableSandboxedEnvironment):
    """Compiles chat templates. Rendering needs a Budget in `budget`."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            # Constants are not folded, so that nothing runs while a template compiles.
            optimized=False,
            extensions=["jinja2.ext.loopcontrols", GenerationTag],
            finalize=_count_output,
        )
        del self.globals["lipsum"]
        self.globals |= {
            "range": _range,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }
        self.filters |= {
            name: _metered(filter, narrow=name in _WIDTH_FILTERS)
            for name, filter in self.filters.items()
        }
        self.filters |= {
            "join": _join,
            "replace": _replace,
            "format": _format,
            "tojson": _tojson,
            "counted": _counted,
            "concatenated": _concatenated,
        }

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Metering().visit(super()._parse(source, name, filename))
        return tree

    def call_binop(self, context: Context, operator: str, left: Value, right: Value) -> Value:
        _check_operands(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Value, /, *args: Value, **kwargs: Value) -> Value:
        budget.get().step()
        method: Value = getattr(obj, "__wrapped__", obj)
        text = getattr(method, "__self__", None)
        if isinstance(text, str):
            if method.__name__ == "join" and args:
                args = (list(args[0]), *args[1:])
            _check_method(text, method.__name__, args)
        return _charge(super().call(context, obj, *args, **kwargs))

    def getitem(self, obj: Value, argument: Value) -> Value:
        result = super().getitem(obj, argument)
        return _charge(result) if isinstance(argument, slice) else result


class _Metering(NodeTransformer):
    """Puts counting around what a template can repeat: loops, and `~`."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, "counted", [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        parts = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(parts, "concatenated", [], [], None, None, lineno=node.lineno)


class GenerationTag(Extension):
    """`{% generation %}` marks what an assistant wrote, for training; here it does nothing."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


# -- what templates call ------------------------------------------------------------------------


def _raise_exception(message: str) -> None:
    raise RefusedError(message)


def _strftime_now(format: str) -> str:
    _check_format(format)
    return datetime.now().strftime(format)


def _tojson(
    value: Value,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes of jinja2's own filter, as Hugging Face defines it."""
    _check_width(indent)
    text = json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
    budget.get().string(len(text))
    return text


# -- metered ------------------------------------------------------------------------------------


def _charge(value: Value) -> Value:
    if isinstance(value, str):
        budget.get().string(len(value))
    return value


@pass_context  # makes jinja2 leave constants to run time
def _count_output(context: Context, value: Value) -> Value:
    return _charge(value)


def _counted(items: Iterable[Any]) -> Iterator[Any]:
    step = budget.get().step
    for item in items:
        step()
        yield item


def _concatenated(parts: list[Any]) -> str:
    texts = [str(part) for part in parts]
    budget.get().string(sum(map(len, texts)))
    return "".join(texts)


def _range(*arguments: int) -> range:
    numbers = range(*arguments)
    if len(numbers) > 100_000:
        raise TooExpensiveError(f"it counts to {len(numbers)}")
    return numbers


@pass_context
def _join(context: Context, value: Value, d: str = "", attribute: str | int | None = None) -> str:
    if attribute is not None:
        value = context.environment.filters["map"](context, value, attribute=attribute)
    texts = [str(item) for item in value]
    _check_method(str(d), "join", (texts,))
    return str(d).join(texts)


def _replace(s: Value, old: str, new: str, count: int | None = None) -> str:
    text = str(s)
    _check_method(text, "replace", (old, new))
    return text.replace(old, new, -1 if count is None else count)


def _format(value: str, *args: Value, **kwargs: Value) -> str:
    _check_format(str(value))
    return str(value) % (kwargs or args)


_WIDTH_FILTERS = ("batch", "center", "indent", "slice", "truncate", "wordwrap")
_WIDTH_METHODS = ("ljust", "rjust", "center", "zfill", "expandtabs")


def _metered(filter: Callable[..., Value], narrow: bool) -> Callable[..., Value]:
    """`filter`, with its result charged; `narrow` refuses large numbers among its arguments."""

    @wraps(filter)
    def metered(*args: Value, **kwargs: Value) -> Value:
        if narrow:
            for argument in (*args, *kwargs.values()):
                _check_width(argument)
        return _charge(filter(*args, **kwargs))

    return metered


def _check_width(argument: Value) -> None:
    if isinstance(argument, int) and argument > _MAX_WIDTH:
        raise TooExpensiveError(f"it asks for a width of {argument}")


def _check_format(format: str) -> None:
    if _WIDE.search(format):
        raise TooExpensiveError(f"it asks for a width in {format[:40]!r}")


def _check_method(text: str, name: str, args: tuple[Any, ...]) -> None:
    """Charge a call of a str method that can make a string longer than its parts."""
    if name in _WIDTH_METHODS and args:
        _check_width(args[0])
    elif name in ("format", "format_map"):
        _check_format(text)
    elif name == "join" and args and isinstance(args[0], list | tuple):
        n_chars = sum(len(item) for item in args[0] if isinstance(item, str))
        budget.get().string(n_chars + len(text) * len(args[0]))
    elif name == "replace" and len(args) >= 2 and all(isinstance(arg, str) for arg in args[:2]):
        budget.get().string(len(text) + text.count(args[0]) * len(args[1]))
    else:
        budget.get().string(len(text))


def _check_operands(operator: str, left: Value, right: Value) -> None:
    """Charge an operator for the string, list or number that it makes."""
    if operator == "%" and isinstance(left, str):
        _check_format(left)
    elif isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length()
        if operator == "**":
            bits *= max(right, 0)
        elif operator == "*":
            bits += right.bit_length()
        if bits > _MAX_INTEGER_BITS:
            raise TooExpensiveError(f"it computes a number of {bits} bits")
    elif operator in "+*":
        sizes = _size(left), _size(right)
        budget.get().string(sum(sizes) if operator == "+" else sizes[0] * sizes[1])


def _size(value: Value) -> int:
    """What a value weighs, in characters; a number is a factor."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, list | tuple):
        return 8 * len(value)
    return max(value, 0) if isinstance(value, int) else 0
