"""`zinc show`: a short description of a model, the memory that it needs, and its speed.

A model that is not on this machine is described by its repository: the quantisations, with the
memory that each would take.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from zinc.cli import usage
from zinc.cli.text import size, table

if TYPE_CHECKING:
    from pathlib import Path

    from zinc.hub.names import HubName


def add_arguments(parser: argparse.ArgumentParser) -> None:
    usage.add_model(parser)
    usage.add_json(parser)


def run(args: argparse.Namespace) -> int:
    from zinc.engine.load.files import resolve_model
    from zinc.hub.errors import MissingModelError
    from zinc.hub.names import HubName, parse

    try:
        path = resolve_model(args.model)
    except MissingModelError:
        name = parse(args.model)
        if not isinstance(name, HubName):
            raise
        found, text = _remote(name)
    else:
        found, text = _local(path)
    if args.json:
        json.dump(found, sys.stdout, indent=2)
        print()
    else:
        print(text)
    return 0


def _local(path: Path) -> tuple[dict[str, Any], str]:
    """Return the description of a model file, as JSON values and as text."""
    from zinc.cli import fit_text, inspect, summary
    from zinc.engine.load.options import LoadOptions
    from zinc.engine.load.planning import plan_model

    with plan_model(LoadOptions(path=path)) as planned:
        file, spec = planned.file, planned.spec
        report = fit_text.report_of(planned, spec.context)
        lines = [f"{path}", *summary.lines(file, spec, inspect.types(file))]
        for memory in report.memories:
            needs = fit_text.purposes(memory, report.context_tokens)
            lines.append(f"  memory     {needs} on {memory.backend}")
        lines += [f"  {line}" for line in fit_text.verdict(report).splitlines()]
        found = {
            "path": str(path),
            "architecture": spec.arch,
            "parameters": sum(tensor.n_elements for tensor in file.tensors.values()),
            "context_tokens": report.context_tokens,
            **fit_text.as_json(report),
        }
    return found, "\n".join(lines)


def _remote(name: HubName) -> tuple[dict[str, Any], str]:
    """Return the quantisations of a repository, as JSON values and as text. Raises a ZincError."""
    from zinc.cli import downloads
    from zinc.hub.choice import choose
    from zinc.hub.events import ignore
    from zinc.hub.huggingface import Hub
    from zinc.hub.variants import variants_of

    hub = Hub(name.endpoint)
    repository = hub.repository(name, ignore)
    variants = variants_of(repository.files)
    if not variants:
        raise hub.no_gguf_files(name)
    check = downloads.fit_check(hub, repository, variants)
    fits = [check(variant) for variant in variants]
    best = None
    if any(fit.fits for fit in fits):
        best = choose(variants, check, name.repo)
    rows: list[dict[str, Any]] = [
        {
            "quantisation": variant.label,
            "bytes": variant.n_bytes,
            "needed_bytes": fit.needed_bytes,
            "fits": fit.fits,
            "decode_tokens_per_s": fit.tokens_per_s,
            "recommended": best is not None and variant is best.variant,
        }
        for variant, fit in zip(variants, fits, strict=True)
    ]
    found = {
        "repository": name.repo,
        "commit": repository.commit,
        "context_tokens": fits[0].context_tokens,
        "available_bytes": fits[0].available_bytes,
        "quantisations": rows,
    }
    return found, _remote_text(found)


def _remote_text(found: dict[str, Any]) -> str:
    """Return the description of a repository, made by `_remote`, as text."""
    from zinc.cli import fit_text

    rows = [
        (
            row["quantisation"],
            size(row["bytes"]),
            size(row["needed_bytes"]),
            "yes" if row["fits"] else "no",
            fit_text.speed(row["decode_tokens_per_s"]),
            "`zinc pull` takes this one" if row["recommended"] else "",
        )
        for row in found["quantisations"]
    ]
    return "\n".join(
        (
            f"{found['repository']} is not on this machine; its quantisations are",
            table(("quantisation", "size |", "memory |", "fits", "decode", ""), rows),
            f"memory: with a context of {found['context_tokens']:,} tokens; "
            f"{size(found['available_bytes'])} are available",
        )
    )
