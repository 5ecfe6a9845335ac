"""Errors that are sent to clients, with HTTP status and the form of each API.

Messages contain no paths or tracebacks of this machine. An unexpected exception becomes one fixed
sentence, and its cause is logged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from zinc.core.errors import (
    MemoryLimitError,
    RequestError,
    TemplateError,
    UnsupportedError,
    ZincError,
)

OPENAI_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    421: "permission_error",
    429: "rate_limit_error",
    501: "not_supported_error",
    503: "unavailable_error",
}
# https://platform.claude.com/docs/en/api/errors
ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    415: "invalid_request_error",
    421: "permission_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}


CONTEXT_EXCEEDED = "exceed_context_size_error"  # `type` of the error, as in llama.cpp


class ApiError(ZincError):
    """An error response to a request.

    status: HTTP status. what, why, hint: the message (see ZincError). code: short name of the
    error. kind: `type` in OpenAI's error object (None: derived from the status). param: the request
    field that is wrong. headers: response headers. details: further members of the error object.
    """

    def __init__(
        self,
        status: int,
        what: str,
        why: str = "",
        hint: str = "",
        *,
        code: str | None = None,
        kind: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(what, why, hint)
        self.status = status
        self.code = code
        self.kind = kind or OPENAI_TYPES.get(status, "server_error")
        self.param = param
        self.headers = dict(headers or {})
        self.details = dict(details or {})

    @property
    def message(self) -> str:
        """The message. Settings are named as options of `zinc serve`."""
        return self.in_options()

    def openai(self) -> dict[str, Any]:
        """Return the error as a response body of OpenAI's API."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
                **self.details,
            }
        }

    def anthropic(self) -> dict[str, Any]:
        """Return the error as a response body of Anthropic's API."""
        kind = ANTHROPIC_TYPES.get(self.status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": self.message, **self.details}}

    def ollama(self) -> dict[str, Any]:
        """Return the error as a response body of Ollama's API."""
        return {"error": self.message}


def invalid(param: str | None, what: str, why: str = "", hint: str = "") -> ApiError:
    """Return the error for a field, `param`, with an invalid value."""
    return ApiError(400, what, why, hint, param=param, code="invalid_value")


def unsupported(param: str, why: str, hint: str = "") -> ApiError:
    """Return the error for a field, `param`, that the API defines and this server does not support.

    Such fields are refused and never ignored.
    """
    return ApiError(
        400,
        f"{param} is not supported",
        why,
        hint or "leave it out",
        param=param,
        code="unsupported_parameter",
    )


def unknown_model(name: str, known: Iterable[str]) -> ApiError:
    """Return the error for a request to the model `name`, which is none of `known`."""
    return ApiError(
        404,
        f"there is no model {name[:80]!r}",
        f"this server has {', '.join(islice(known, 20))}",
        code="model_not_found",
        param="model",
    )


def context_exceeded(
    n_prompt: int, context: int, param: str | None, *, at_least: bool = False
) -> ApiError:
    """Return the error for a prompt of `n_prompt` tokens that does not fit in `context` tokens.

    Some clients shorten the conversation and retry when they recognise this error: by OpenAI's
    code, by llama.cpp's type, by the words "exceeds the available context size" or, in Claude Code,
    by "prompt is too long". at_least: tokenizing stopped early, so `n_prompt` is a lower bound.
    """
    n_tokens = f"at least {n_prompt}" if at_least else str(n_prompt)
    return ApiError(
        400,
        "the prompt is too long",
        f"with {n_tokens} tokens it exceeds the available context size of {context} tokens",
        "shorten the prompt, or serve the model with a larger --context",
        code="context_length_exceeded",
        kind=CONTEXT_EXCEEDED,
        param=param,
        details={"n_prompt_tokens": n_prompt, "n_ctx": context},
    )


def from_exception(error: BaseException) -> ApiError:
    """Return the ApiError for an exception; an unexpected one becomes a fixed sentence."""
    match error:
        case ApiError():
            return error
        case TemplateError():
            return ApiError(400, error.what, error.why, "change the messages", code="invalid_value")
        case RequestError():  # fields of the sampler have the names of its arguments
            return invalid(error.argument or None, error.what, error.why, error.hint)
        case UnsupportedError():
            return invalid(None, error.what, error.why, error.hint)
        case MemoryLimitError():
            return ApiError(503, error.what, error.why, error.hint, headers={"Retry-After": "5"})
        case _:
            return ApiError(
                500,
                "the server failed on this request",
                "",
                "its log has the cause under this request's id",
                code="internal_error",
            )
