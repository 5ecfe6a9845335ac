"""Optional parts of zinc, and its folders for cached files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from zinc.cli.checks.finding import Finding, Section, ok, skip, warn
from zinc.cli.text import size
from zinc.core import env
from zinc.core.extras import SERVER, STRUCTURED, install_command

# By extra: the modules that it installs, and what they are for.
PARTS: Mapping[str, tuple[tuple[str, ...], str]] = {
    SERVER: (("starlette", "uvicorn", "pydantic"), "zinc serve"),
    STRUCTURED: (("llguidance", "jsonschema"), "JSON schemas, grammars and patterns"),
}


def section(
    folder: Path | None = None,
    has_module: Callable[[str], bool] = lambda m: find_spec(m) is not None,
) -> Section:
    """Check optional parts and the cache folder. has_module: whether a module is installed."""
    findings = (*_parts(has_module), *_cache(folder or env.cache_folder()))
    return Section("Software", findings, {"cache_folder": str(folder or env.cache_folder())})


def _parts(has_module: Callable[[str], bool]) -> Iterator[Finding]:
    for extra, (modules, purpose) in PARTS.items():
        if missing := [module for module in modules if not has_module(module)]:
            names = ", ".join(missing)
            yield skip(f"{purpose} needs {names}, which is not installed", install_command(extra))
        else:
            yield ok(f"{purpose}: installed")


def _cache(folder: Path) -> Iterator[Finding]:
    existing = next(each for each in (folder, *folder.parents) if each.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        yield warn(
            f"cached files cannot be written to {folder}: kernels are compiled at every start",
            f"sudo chown -R $USER {existing}, or set XDG_CACHE_HOME to another folder",
        )
        return
    n_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    yield ok(f"{folder} holds {size(n_bytes)} of cached files")
