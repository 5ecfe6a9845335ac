"""Names of the distribution on the package index and of its optional parts.

The import and the command are `zinc`. The distribution is `zinc-llm`: the name `zinc` on PyPI
belongs to another project.
"""

from __future__ import annotations

DISTRIBUTION = "zinc-llm"
SERVER = "server"
STRUCTURED = "structured"
HUB = "hub"
CUDA = "cuda"
RAY = "ray"


def install_command(extra: str = "") -> str:
    """Return the shell command that installs zinc with `extra`, an optional part of pyproject.toml.

    The name is quoted because shells expand brackets.
    """
    return f"pip install '{DISTRIBUTION}[{extra}]'" if extra else f"pip install {DISTRIBUTION}"
