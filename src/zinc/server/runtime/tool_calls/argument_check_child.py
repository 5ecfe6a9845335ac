"""The child process of argument_check.py: check values against JSON schemas.

It reads a list of pairs [schema, JSON text] from stdin and writes the first violation, or null, as
JSON to stdout. It imports nothing from zinc, to start quickly.
"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any


def violation(schema: Any, text: str) -> str | None:
    """Return why the JSON value `text` does not follow `schema`, or None if it does."""
    import jsonschema
    import referencing

    checker = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    # With an empty registry, jsonschema does not download the target of a reference.
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
