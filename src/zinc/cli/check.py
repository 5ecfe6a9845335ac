"""`zinc check`: what this machine can run, what slows it down, and how to fix that.

It tests the kernels of each device for ten seconds, and measures its bandwidth.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from zinc.cli import parsed, usage
from zinc.core.errors import ZincError

if TYPE_CHECKING:
    from zinc.cli.checks.finding import Section


def add_arguments(parser: argparse.ArgumentParser) -> None:
    usage.add_model(parser, "model to check, too (default: none)")
    usage.add_backend(parser)
    usage.add_cache(parser)
    usage.add_json(parser)


def run(args: argparse.Namespace) -> int:
    sections = _sections(args)
    ready = is_ready(sections)
    if args.json:
        rows = [section.as_json() for section in sections]
        json.dump({"ready": ready, "sections": rows}, sys.stdout, indent=2)
        print()
    else:
        print(text(sections))
    return 0 if ready else 1


def is_ready(sections: Sequence[Section]) -> bool:
    """Return whether nothing failed but a GPU, which zinc can do without."""
    from zinc.cli.checks.finding import Status

    return not any(
        finding.status is Status.FAIL
        for section in sections
        if section.title != "GPUs"
        for finding in section.findings
    )


def text(sections: Sequence[Section]) -> str:
    """Return the findings as text, by section, with the verdict as the last line."""
    lines = []
    for i, section in enumerate(sections, 1):
        lines += [f"{i}. {section.title}"]
        for finding in section.findings:
            lines.append(f"   {finding.status.value:4}  {finding.text}")
            if finding.fix:
                lines.append(f"         -> {finding.fix}")
        lines.append("")
    lines.append("READY" if is_ready(sections) else "NOT READY: fix the findings marked FAIL")
    return "\n".join(lines)


def _sections(args: argparse.Namespace) -> list[Section]:
    from zinc.backends import api
    from zinc.cli.checks import files, gpus, memory, model, processor, software, system

    threads = parsed.threads(args)
    try:
        cpu = api.create("cpu", threads, {})
    except ZincError as error:
        found = processor.section(error)
    else:
        found = processor.section(cpu)
    sections = [
        system.section(),
        found,
        memory.section(),
        gpus.section(gpus.this_machine(threads)),
        software.section(),
        files.section(),
    ]
    if args.model is not None:
        options = partial(parsed.load_options, args, path=args.model)
        sections.append(model.section(args.model, options))
    return sections
