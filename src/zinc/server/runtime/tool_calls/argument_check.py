"""Check arguments of forced calls against schemas that a grammar enforces only in part.

Schemas come from clients, and checking one can take unbounded time (patterns that backtrack,
references that branch). The jsonschema package therefore runs in a child process with limits on
time and memory. References are resolved within the schema; nothing is downloaded.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zinc.core.extras import STRUCTURED, install_command
from zinc.server.errors import ApiError

SECONDS = 10.0
MEMORY_BYTES = 1 << 30
N_CHILDREN = 2  # child processes at a time, for one model


class ArgumentChecker:
    """Checker of calls' arguments in child processes, at most `N_CHILDREN` at a time."""

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(N_CHILDREN)

    async def first_violation(
        self, calls: Sequence[tuple[str, str]], schemas: Mapping[str, Any]
    ) -> str | None:
        """Return why one of `calls` is not valid, or None if all are valid.

        calls: pairs of a tool's name and its arguments as JSON text. schemas: by name, for the
        tools whose arguments have to be checked.
        """
        pairs = [(schemas[name], text) for name, text in calls if name in schemas]
        if not pairs:
            return None
        async with self._room:
            return await _checked_in_child(json.dumps(pairs).encode())


def check_available(name: str, keyword: str) -> None:
    """Raise ApiError if arguments cannot be checked because jsonschema is not installed.

    name: the tool. keyword: the keyword of its schema that needs the check.
    """
    if importlib.util.find_spec("jsonschema") is None:
        raise ApiError(
            400,
            f"the parameters of the tool {name!r} cannot be followed",
            f"{keyword} needs the package jsonschema, which is not installed",
            f"take it out, or install jsonschema on the server: {install_command(STRUCTURED)}",
            param="tools",
            code="invalid_value",
        )


async def _checked_in_child(data: bytes) -> str | None:
    script = Path(__file__).with_name("argument_check_child.py").resolve()
    # -P: do not import modules from the folder of the script.
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", str(script), str(MEMORY_BYTES),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        output, _ = await asyncio.wait_for(process.communicate(data), SECONDS)
    except TimeoutError:
        return f"its schema could not be checked within {SECONDS:g} s"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        return "its schema could not be checked"
    found: str | None = json.loads(output)
    return found
