"""The lines of a batch: requests in the input, answers and errors in the output.

https://platform.openai.com/docs/api-reference/batch. If a row has no usable `custom_id`, its output
line has the member `line`, the number of the input line.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from zinc.core.dataclass import dataclass
from zinc.server.errors import ApiError, invalid, unsupported
from zinc.server.http.body import count_values, parse_json
from zinc.server.http.in_process import Reply
from zinc.server.http.responses import encode_json

URLS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")


@dataclass(frozen=True, slots=True)
class Row:
    """A request of a batch. body: as JSON text."""

    custom_id: str
    url: str
    body: bytes


class RowError(Exception):
    """A line that is not a valid request. custom_id: of the line, "" if it has none."""

    def __init__(self, error: ApiError, custom_id: str = "") -> None:
        super().__init__(error.message)
        self.error, self.custom_id = error, custom_id


def read_lines(path: Path, max_bytes: int) -> Iterator[tuple[int, bytes | None]]:
    """Yield the lines of a file that are not blank, each with its number from 1.

    A line of more than `max_bytes` is None; it is never in memory as a whole.
    """
    with path.open("rb") as file:
        number = 0
        while line := file.readline(max_bytes + 1):
            number += 1
            if len(line) <= max_bytes or line.endswith(b"\n"):
                if line.strip():
                    yield number, line
                continue
            while line and not line.endswith(b"\n"):
                line = file.readline(1 << 20)
            yield number, None


def parse_row(line: bytes | None, endpoint: str | None = None) -> Row:
    """Return the request in a line of the input. Raises RowError.

    endpoint: the only `url` that the batch may have (None: any of `URLS`).
    """
    if line is None:
        raise RowError(
            ApiError(
                413,
                "the line is too long",
                "it exceeds the limit for a request",
                "raise --max-body, or send less in one request",
                code="request_too_large",
            )
        )
    try:
        count_values(line)
        value = parse_json(line, "the line")
    except ApiError as error:
        raise RowError(error) from None
    if not isinstance(value, dict):
        raise RowError(invalid(None, "the line is not a JSON object"))
    custom_id = value.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        what = "custom_id is missing" if custom_id is None else "custom_id is not a text"
        raise RowError(invalid("custom_id", what, "each row of a batch needs a custom_id"))
    try:
        return Row(custom_id, *_request(value, endpoint))
    except ApiError as error:
        raise RowError(error, custom_id) from None


def _request(value: dict[str, Any], endpoint: str | None) -> tuple[str, bytes]:
    """Return the url and the body of a row. Raises ApiError."""
    method, url, body = (value.get(name) for name in ("method", "url", "body"))
    if method != "POST":
        raise invalid("method", f"method is {_shown(method)}", "it must be POST")
    if not isinstance(url, str) or url not in URLS:
        raise invalid("url", f"url is {_shown(url)}", f"batches call {', '.join(URLS)}")
    if endpoint is not None and url != endpoint:
        raise invalid("url", f"url is {_shown(url)}", f"the endpoint of this batch is {endpoint}")
    if not isinstance(body, dict):
        raise invalid("body", "body is missing or not a JSON object")
    if body.get("stream"):
        raise unsupported("stream", "the answers of a batch are not streamed")
    return url, json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def _shown(value: object) -> str:
    return "missing" if value is None else repr(value)[:80]


def duplicate(custom_id: str) -> ApiError:
    """Return the error for a row whose `custom_id` an earlier row has."""
    what = f"custom_id {custom_id[:80]!r} is used twice"
    return invalid("custom_id", what, "an earlier row has it", "give each row its own")


def answer_line(custom_id: str, reply: Reply) -> bytes:
    """Return the output line of a row that an endpoint answered, possibly with an error status."""
    response = {"status_code": reply.status, "request_id": reply.request_id, "body": reply.body}
    return _line({"custom_id": custom_id, "response": response, "error": None})


def error_line(custom_id: str, number: int, error: ApiError) -> bytes:
    """Return the output line of an input line that is not a valid request.

    custom_id: "" if the line has no unique one; the output line then has the `number` of the input
    line.
    """
    shared = {"response": None, "error": error.openai()["error"]}
    if custom_id:
        return _line({"custom_id": custom_id, **shared})
    return _line({"custom_id": None, "line": number, **shared})


def is_failure(value: dict[str, Any]) -> bool:
    """Return whether a parsed output line reports an error."""
    response = value.get("response")
    return not isinstance(response, dict) or response.get("status_code") != 200


def _line(value: dict[str, Any]) -> bytes:
    return encode_json({"id": f"batch_req_{uuid.uuid4().hex}", **value}) + b"\n"
