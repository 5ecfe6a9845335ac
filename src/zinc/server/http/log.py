"""The log on stderr, one line per request, as text or JSON. Prompts and answers are not logged."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

from starlette.requests import ClientDisconnect

from zinc.core.errors import RequestError, TemplateError, UnsupportedError
from zinc.server.errors import ApiError
from zinc.server.http.responses import Record

log = logging.getLogger("zinc.server")
_requests = logging.getLogger("zinc.requests")
# "zinc.cache" and "zinc.loading" are loggers of layers below the server.
LOGGERS = ("zinc.server", "zinc.requests", "zinc.cache", "zinc.loading", "uvicorn.error")


def set_up(json_lines: bool) -> None:
    """Write the server's log, the request log and the warnings of loaded models to stderr.

    json_lines: one JSON object per line instead of text.
    """
    handler = _Stderr()
    handler.setFormatter(_JSONLines() if json_lines else _TextLines())
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.propagate = False
    logging.getLogger("zinc.server").setLevel(logging.INFO)
    _requests.setLevel(logging.INFO)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)


def log_request(
    record: Record, method: str, path: str, status: int, seconds: float, client: str
) -> None:
    """Log one answered request; fields of `record` that are not set are left out."""
    fields: dict[str, Any] = {
        "id": record.id,
        "client": client,
        "method": method,
        "path": path,
        "status": status,
        "ms": round(seconds * 1000, 1),
        "model": record.model,
        "stream": record.stream or None,
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens or None,
        "completion_tokens": record.completion_tokens,
        "first_token_ms": None
        if record.first_token_s is None
        else round(record.first_token_s * 1000, 1),
        "finish": record.finish or None,
        "error": record.error,
    }
    _requests.info("request", extra={"fields": {k: v for k, v in fields.items() if v is not None}})


def report_failure(record: Record, error: BaseException) -> None:
    """Note in `record` why a request failed.

    An error that the client did not cause is also logged with its traceback.
    """
    if isinstance(error, ClientDisconnect):
        record.error = "the client disconnected"
    elif isinstance(error, ApiError):
        record.error = error.code or error.what
    elif isinstance(error, RequestError | TemplateError | UnsupportedError):
        record.error = error.what
    else:
        record.error = type(error).__name__
        log.error("request %s failed", record.id, exc_info=error)


class _Stderr(logging.Handler):
    """Log handler for the current `sys.stderr`, which can change after the log was set up."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


class _TextLines(logging.Formatter):
    """Formatter of log records as lines of text."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%H:%M:%S", time.localtime(record.created))
        fields: dict[str, Any] | None = getattr(record, "fields", None)
        if fields is None:
            return f"{stamp} {super().format(record)}"
        head = ("method", "path", "status", "ms")
        rest = " ".join(
            f"{k}={printable(v)}" for k, v in fields.items() if k not in head and k != "client"
        )
        line = f"{fields['method']} {printable(fields['path'])} {fields['status']}"
        return f"{stamp} {line} {fields['ms']} ms {rest}"


class _JSONLines(logging.Formatter):
    """Formatter of log records as lines of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
        }
        fields: dict[str, Any] | None = getattr(record, "fields", None)
        if fields is None:
            line["message"] = record.getMessage()
            if record.exc_info:
                line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line | (fields or {}), ensure_ascii=False)


def printable(value: object) -> str:
    """Return `value` as text for a log line, with blanks and control characters escaped."""
    return "".join(c if c.isprintable() and c != " " else repr(c)[1:-1] for c in str(value))
