"""`zinc list`: the models on this machine, in the folders of zinc and of other programs."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from zinc.cli import usage
from zinc.cli.text import plain, size, table
from zinc.core.errors import ZincError

if TYPE_CHECKING:
    from zinc.hub.local import LocalModel

_NAME_CHARACTERS = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--catalogue", action="store_true", help="list the short names that `zinc pull` knows"
    )
    usage.add_json(parser)


def run(args: argparse.Namespace) -> int:
    return _catalogue(args.json) if args.catalogue else _models(args.json)


def _models(as_json: bool) -> int:
    from zinc.hub.folders import folders
    from zinc.hub.local import list_models

    rows = [_describe(model) for model in list_models(folders())]
    if as_json:
        json.dump(rows, sys.stdout, indent=2)
        print()
    elif rows:
        print(_table(rows))
    else:
        print("There is no model yet. `zinc pull qwen3:0.6b` downloads a small one.")
    return 0


def _describe(model: LocalModel) -> dict[str, Any]:
    """Return a model as JSON values, with the memory that a run takes or why it cannot run."""
    from zinc.cli import fit_text
    from zinc.engine.load.options import LoadOptions
    from zinc.engine.load.planning import plan_model

    row: dict[str, Any] = {
        "name": model.name,
        "program": model.program,
        "path": str(model.path),
        "bytes": model.n_bytes,
        "modified": round(model.modified_s),
    }
    try:
        with plan_model(LoadOptions(path=model.path)) as planned:
            return row | fit_text.as_json(fit_text.report_of(planned, planned.spec.context))
    except ZincError as error:
        return row | {"error": error.in_options()}


def _table(rows: list[dict[str, Any]]) -> str:
    from zinc.cli import fit_text

    return table(
        ("name", "size |", "context that fits |", "decode", "from"),
        [
            (
                plain(row["name"], _NAME_CHARACTERS),
                size(row["bytes"]),
                _fits(row),
                fit_text.speed(row.get("decode_tokens_per_s")),
                row["program"],
            )
            for row in rows
        ],
    )


def _fits(row: dict[str, Any]) -> str:
    if "error" in row:
        return "cannot run"
    tokens = row["fitting_context_tokens"]
    return f"{tokens:,}" if tokens else "none"


def _catalogue(as_json: bool) -> int:
    from zinc.hub.catalogue import CATALOGUE

    if as_json:
        json.dump([{"name": e.name, "repo": e.repo} for e in CATALOGUE], sys.stdout, indent=2)
        print()
    else:
        print(table(("name", "repository"), [(entry.name, entry.repo) for entry in CATALOGUE]))
    return 0
