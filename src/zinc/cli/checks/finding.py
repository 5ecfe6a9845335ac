"""Findings of `zinc check`: each has a status, a sentence and, for a problem, a remedy."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Any

from zinc.core.dataclass import dataclass
from zinc.core.errors import ZincError


class Status(StrEnum):
    """How a check ended. FAIL keeps zinc from working, WARN makes it slower or incomplete."""

    OK = "OK"
    SKIP = "SKIP"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. fix: the command or step that solves a problem, empty without one."""

    status: Status
    text: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """The findings about one part of the machine. facts: what --json adds to them."""

    title: str
    findings: tuple[Finding, ...]
    facts: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        """Return the section for --json."""
        rows = [asdict(finding) for finding in self.findings]
        return {"title": self.title, "findings": rows, **self.facts}


def ok(text: str) -> Finding:
    return Finding(Status.OK, text)


def skip(text: str, fix: str = "") -> Finding:
    return Finding(Status.SKIP, text, fix)


def warn(text: str, fix: str) -> Finding:
    return Finding(Status.WARN, text, fix)


def fail(text: str, fix: str) -> Finding:
    return Finding(Status.FAIL, text, fix)


def reason(error: ZincError) -> str:
    """Return what happened and why, without the hint."""
    return f"{error.what}: {error.why}" if error.why else error.what


def remedy(error: ZincError, default: str) -> str:
    """Return the hint of an error, or `default` if it has none."""
    return error.hint_in_options() or default


def read(path: Path) -> str:
    """Return the text of a file of the system, without blanks around it; "" if there is none."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
