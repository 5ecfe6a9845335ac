"""Detection of the API that a request belongs to, and the form of its errors."""

from __future__ import annotations

from typing import Any

from starlette.datastructures import Headers
from starlette.types import Scope

from zinc.server.errors import ApiError


def speaks_anthropic(scope: Scope) -> bool:
    """Return whether a request belongs to Anthropic's API.

    OpenAI and Anthropic share /v1/models; Anthropic's clients send a version header.
    """
    path: str = scope["path"]
    if path.startswith("/v1/messages"):
        return True
    return path.startswith("/v1/models") and "anthropic-version" in Headers(scope=scope)


def speaks_ollama(scope: Scope) -> bool:
    """Return whether a request belongs to Ollama's API. Numbered paths are LM Studio's."""
    path: str = scope["path"]
    return path.startswith("/api/") and not path.startswith(("/api/v0/", "/api/v1/"))


def error_body(error: ApiError, scope: Scope) -> dict[str, Any]:
    """Return `error` as the JSON body of the API that the request belongs to."""
    if speaks_ollama(scope):
        return error.ollama()
    return error.anthropic() if speaks_anthropic(scope) else error.openai()
