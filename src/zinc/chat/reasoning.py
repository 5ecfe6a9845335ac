"""Template variables that control reasoning."""

from __future__ import annotations

from typing import Any


def template_arguments(enabled: bool | None = None, effort: str | None = None) -> dict[str, Any]:
    """Return the template variables that turn reasoning on or off and set its effort.

    Model families use different names; templates ignore unknown variables. Harmony (gpt-oss) cannot
    turn reasoning off, and only reads `effort` ("low", "medium" or "high").
    """
    arguments: dict[str, Any] = {}
    if enabled is not None:
        arguments |= {"enable_thinking": enabled, "thinking": enabled}
    if effort is not None:
        arguments["reasoning_effort"] = effort
    return arguments
