"""Render the named hostile templates, and a good one after each; print the outcomes as JSON.

This is a separate program, so that its only children are the workers: `peak_bytes` is the largest
memory of one of them.
"""

from __future__ import annotations

import json
import resource
import sys
import time

from hostile_templates import TEMPLATES

from zinc.chat.renderer import Renderer, RenderError

GOOD = "{{ messages[0].content }}!"
VARIABLES = {"messages": [{"role": "user", "content": "Hi"}]}


def attempt(renderer: Renderer, source: str) -> str:
    try:
        return renderer.render(source, VARIABLES)
    except RenderError as error:
        return f"{error.what}: {error.why}"


def recovered(renderer: Renderer) -> bool:
    """Return whether a good template is rendered; on a busy machine it may exceed the deadline."""
    return any(attempt(renderer, GOOD) == "Hi!" for _ in range(9))


def main(seconds: float, names: list[str]) -> None:
    cases = {}
    with Renderer(seconds) as renderer:
        renderer.render(GOOD, VARIABLES)
        for name in names:
            began = time.monotonic()
            outcome = attempt(renderer, TEMPLATES[name])
            took = time.monotonic() - began
            cases[name] = {"outcome": outcome[:200], "s": took, "recovered": recovered(renderer)}
    peak_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    print(json.dumps({"peak_bytes": peak_bytes, "cases": cases}))


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
