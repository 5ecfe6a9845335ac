"""The metrics of several replicas as one text in Prometheus' format.

Each sample gets the label `replica`. Families are kept together, as the format demands.
"""

from __future__ import annotations

from collections.abc import Mapping

_SUFFIXES = ("_bucket", "_sum", "_count")


def merge(texts: Mapping[str, str]) -> str:
    """Return the samples of all `texts`, which are given by the name of the replica."""
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for replica, text in texts.items():
        for line in text.splitlines():
            if line.startswith(("# HELP ", "# TYPE ")):
                kind, family = line.split(" ", 3)[1:3]
                head = heads.setdefault(family, [])
                if not any(each.startswith(f"# {kind} ") for each in head):
                    head.append(line)
            elif line and not line.startswith("#"):
                name = line.partition("{")[0].partition(" ")[0]
                samples.setdefault(_family(name, heads), []).append(_labelled(line, name, replica))
    lines: list[str] = []
    for family in heads | samples:
        lines += heads.get(family, [])
        lines += samples.get(family, [])
    return "\n".join(lines) + "\n" if lines else ""


def _family(name: str, heads: Mapping[str, list[str]]) -> str:
    """Return the family of a sample: that of its histogram, or its own name."""
    if name not in heads:
        for suffix in _SUFFIXES:
            if name.removesuffix(suffix) in heads:
                return name.removesuffix(suffix)
    return name


def _labelled(line: str, name: str, replica: str) -> str:
    label, rest = f'replica="{replica}"', line[len(name) :]
    if rest.startswith("{"):
        inner = rest[1:]
        return f"{name}{{{label}{'' if inner.startswith('}') else ','}{inner}"
    return f"{name}{{{label}}}{rest}"
