"""Checks values against JSON schemas: the child process of argument_check.py.

Reads a list of pairs [schema, JSON text] from stdin and writes the first violation, or null, as
JSON. It imports nothing of zinc, so that it starts quickly.
"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any


def violation(schema: Any, text: str) -> str | None:
    """Return why a JSON text does not follow a schema, or None."""
    import jsonschema
    import referencing

    checker = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    # An empty registry: without one, jsonschema would fetch what a reference names.
    validator = checker(
        schema, registry=referencing.Registry(), format_checker=checker.FORMAT_CHECKER
    )
    try:
        found = next(validator.iter_errors(json.loads(text)), None)
    except Exception as error:
        return f"its schema could not be checked: {type(error).__name__}"
    if found is None:
        return None
    where = "".join(f"[{part!r}]" for part in found.absolute_path)
    return f"{where or 'the object'} does not follow {found.validator}"


def main() -> None:
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        n_bytes = int(sys.argv[1])
        resource.setrlimit(resource.RLIMIT_AS, (n_bytes, n_bytes))
    found = (violation(schema, text) for schema, text in json.load(sys.stdin))
    json.dump(next((each for each in found if each is not None), None), sys.stdout)


if __name__ == "__main__":
    main()
