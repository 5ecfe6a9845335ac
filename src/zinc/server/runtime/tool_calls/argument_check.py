"""Arguments of forced calls, checked against schemas that a grammar could not hold in full.

A schema comes from a client, and checking it may take any amount of time: a pattern that
backtracks, references that branch. So the jsonschema package runs in a child process with a limit
of time and memory. Nothing is fetched: references lead within the schema.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zinc.server.errors import ApiError

SECONDS = 10.0
MEMORY_BYTES = 1 << 30
N_CHILDREN = 2  # at a time, for one model


class ArgumentChecker:
    """Checks arguments of calls, a few at a time."""

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(N_CHILDREN)

    async def first_violation(
        self, calls: Sequence[tuple[str, str]], schemas: Mapping[str, Any]
    ) -> str | None:
        """Return why a call is not valid, or None if all are.

        calls: names and arguments as JSON text. schemas: of the tools that have to be checked.
        """
        pairs = [(schemas[name], text) for name, text in calls if name in schemas]
        if not pairs:
            return None
        async with self._room:
            return await _checked_in_child(json.dumps(pairs).encode())


def check_available(name: str, keyword: str) -> None:
    """Raise ApiError if arguments cannot be checked, because jsonschema is not installed."""
    if importlib.util.find_spec("jsonschema") is None:
        raise ApiError(
            400,
            f"the parameters of the tool {name!r} cannot be followed",
            f"{keyword} needs the package jsonschema, which is not installed",
            "take it out, or install jsonschema on the server: pip install 'zinc[structured]'",
            param="tools",
            code="invalid_value",
        )


async def _checked_in_child(data: bytes) -> str | None:
    script = Path(__file__).with_name("argument_check_child.py").resolve()
    # Without -P the folder of the script would be searched for modules.
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
