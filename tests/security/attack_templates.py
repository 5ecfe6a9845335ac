"""Render the named hostile templates, and a good one after each; print the outcomes as JSON.

This is a separate program, so that the workers are its only children. It reports the peak memory of
the largest worker (`peak_bytes`) and the total CPU time of the workers that have ended (`cpu_s`).
"""

from __future__ import annotations

import json
import resource
import sys

from hostile_templates import TEMPLATES

from zinc.chat.renderer import Renderer, RenderError

GOOD = "{{ messages[0].content }}!"
VARIABLES = {"messages": [{"role": "user", "content": "Hi"}]}


def attempt(renderer: Renderer, source: str) -> str:
    try:
        return renderer.render(source, VARIABLES)
    except RenderError as error:
        return f"{error.what}: {error.why}"


def cpu_s() -> float:
    """Return the CPU time of all workers that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main(seconds: float, names: list[str]) -> None:
    cases = {}
    with Renderer(seconds) as renderer:
        renderer.render(GOOD, VARIABLES)
        for name in names:
            before = cpu_s()
            outcome = attempt(renderer, TEMPLATES[name])
            took = cpu_s() - before
            recovered = attempt(renderer, GOOD) == "Hi!"
            cases[name] = {"outcome": outcome[:200], "cpu_s": took, "recovered": recovered}
    peak_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    print(json.dumps({"peak_bytes": peak_bytes, "cases": cases}))


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
