"""The jinja2 environment of chat templates.

A template comes with a model file, so it is untrusted code. jinja2's immutable sandbox keeps it
from Python's internals and from changing its arguments. The process around it limits time and
memory (`zinc.chat.worker`). This file imports nothing from zinc, so that the process starts
quickly.
"""

from __future__ import annotations

# Filters import html, pprint and textwrap on first use, when the process can open no more files.
import html  # noqa: F401
import json
import pprint  # noqa: F401
import textwrap  # noqa: F401
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2.debug  # noqa: F401 - likewise, needed when a template fails
from jinja2 import Template, meta, nodes
from jinja2.exceptions import (
    SecurityError,
    TemplateRuntimeError,
    TemplateSyntaxError,
    UndefinedError,
)
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

_CACHED_TEMPLATES = 8


class TemplateFailure(Exception):  # noqa: N818 - zinc's error is TemplateError, made from this
    """A template failed. what, why: clauses for the message."""

    def __init__(self, what: str, why: object) -> None:
        super().__init__(what, why)
        self.what, self.why = what, str(why)


class RefusedError(TemplateRuntimeError):
    """The template called `raise_exception`, because it does not accept the messages."""


class GenerationTag(Extension):
    """The tag `{% generation %}`, which marks text for training and has no effect here."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Sandbox(ImmutableSandboxedEnvironment):
    """A Jinja environment with the globals and whitespace rules of Hugging Face's templates."""

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", GenerationTag],
        )
        del self.globals["lipsum"]
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        self.filters["tojson"] = _tojson

    @lru_cache(_CACHED_TEMPLATES)  # noqa: B019 - a process has one sandbox
    def _compiled(self, source: str) -> tuple[Template, frozenset[str]]:
        """Return the template, and the names of the variables that `_defaults` may set."""
        tree = self.parse(source)
        names = meta.find_undeclared_variables(tree)
        if _is_optional(tree, "enable_thinking"):
            names.discard("enable_thinking")
        return self.from_string(tree), frozenset(names)

    def check(self, source: str) -> None:
        """Compile `source`. Raises TemplateFailure if it is not a valid template."""
        try:
            self._compiled(source)
        except TemplateSyntaxError as error:
            raise TemplateFailure(
                "is not valid Jinja", f"line {error.lineno}: {error.message}"
            ) from None
        except MemoryError:
            raise
        except Exception as error:  # nested too deep for jinja2 or for Python's compiler
            raise TemplateFailure("cannot be compiled", _cause(error)) from None

    def prompt(self, source: str, variables: Mapping[str, Any]) -> str:
        """Return the output of the template `source` for `variables`. Raises TemplateFailure."""
        self.check(source)
        template, names = self._compiled(source)
        try:
            return template.render(_defaults(names, variables.get("tools")) | {**variables})
        except RefusedError as error:
            raise TemplateFailure("does not accept these messages", error) from None
        except SecurityError as error:
            raise TemplateFailure("does something that templates may not do", error) from None
        except UndefinedError as error:
            raise TemplateFailure("failed on these messages", error) from None
        except MemoryError:
            raise
        except Exception as error:  # any error in the template's own code
            raise TemplateFailure("failed on these messages", _cause(error)) from None


def _cause(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def _is_optional(tree: nodes.Template, name: str) -> bool:
    """Return whether a template handles the absence of the variable `name` itself."""
    return any(
        isinstance(use.node, nodes.Name)
        and use.node.name == name
        and use.name in ("defined", "undefined", "default", "d")
        for use in tree.find_all((nodes.Test, nodes.Filter))
    )


def _defaults(names: frozenset[str], tools: object) -> dict[str, Any]:
    """Return default values for the variables in `names` that some templates expect.

    `enable_thinking` is for templates that read it without a test: these models think by default.
    `date_string` is for Llama 3; `datetime` and `functions` (JSON text) are for FireFunction.
    """
    defaults: dict[str, Any] = {}
    if "enable_thinking" in names:
        defaults["enable_thinking"] = True
    if "date_string" in names:
        defaults["date_string"] = _strftime_now("%d %b %Y")
    if "datetime" in names:
        defaults["datetime"] = _strftime_now("%b %d %Y %H:%M:%S")
    if "functions" in names:
        defaults["functions"] = _tojson(tools, indent=2) if tools else ""
    return defaults


def _raise_exception(message: object) -> None:
    raise RefusedError(str(message))


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return `value` as JSON, without the HTML escapes of jinja2's filter, as Hugging Face does."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
