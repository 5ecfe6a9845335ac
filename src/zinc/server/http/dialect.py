"""The API that a client speaks, on paths that several APIs share, and its error envelope."""

from __future__ import annotations

from typing import Any

from starlette.datastructures import Headers
from starlette.types import Scope

from zinc.server.errors import ApiError


def speaks_anthropic(scope: Scope) -> bool:
    """Return whether a request is meant for Anthropic's API.

    OpenAI and Anthropic share /v1/models; Anthropic's clients name a version in a header.
    """
    path: str = scope["path"]
    if path.startswith("/v1/messages"):
        return True
    return path.startswith("/v1/models") and "anthropic-version" in Headers(scope=scope)


def error_body(error: ApiError, scope: Scope) -> dict[str, Any]:
    """Return the error as the API of this request spells it."""
    return error.anthropic() if speaks_anthropic(scope) else error.openai()
