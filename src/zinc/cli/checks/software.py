"""Optional parts of zinc."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec

from zinc.cli.checks.finding import Finding, Section, ok, skip
from zinc.core.extras import HUB, SERVER, STRUCTURED, install_command

# By extra: the modules that it installs, and what they are for.
PARTS: Mapping[str, tuple[tuple[str, ...], str]] = {
    SERVER: (("starlette", "uvicorn", "pydantic"), "zinc serve"),
    STRUCTURED: (("llguidance", "jsonschema"), "JSON schemas, grammars and patterns"),
    HUB: (("huggingface_hub",), "zinc pull from Hugging Face"),
}


def section(has_module: Callable[[str], bool] = lambda m: find_spec(m) is not None) -> Section:
    """Check the optional parts. has_module: returns whether a module is installed."""
    return Section("Software", tuple(_parts(has_module)), {})


def _parts(has_module: Callable[[str], bool]) -> Iterator[Finding]:
    for extra, (modules, purpose) in PARTS.items():
        if missing := [module for module in modules if not has_module(module)]:
            names = ", ".join(missing)
            yield skip(f"{purpose}: {names} not installed", install_command(extra))
        else:
            yield ok(f"{purpose}: installed")
