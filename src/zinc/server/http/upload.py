"""Uploads: a form with one file (multipart/form-data), written to the disk as it arrives.

The parser is python-multipart, which Starlette uses for forms. Here the size is limited before
anything is written, and the file goes to its final place.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.requests import ClientDisconnect, Request

from zinc.core.extras import SERVER, install_command
from zinc.server.errors import ApiError, invalid

_PART_TIMEOUT_S = 60.0
_MAX_FIELD_BYTES = 4096
_MAX_FIELDS = 16


class Form:
    """A form that is being read. fields: its texts by name. filename: of its file, None if none."""

    def __init__(self, path: Path) -> None:
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self._path = path
        self._file: int | None = None
        self._name, self._data = "", bytearray()
        self._is_file = False
        self._header = (bytearray(), bytearray())
        self._disposition = b""

    def callbacks(self) -> Any:
        """Return the callbacks for the parser."""
        return {
            "on_part_begin": self._begin,
            "on_part_data": self._part_data,
            "on_part_end": self._end,
            "on_header_field": lambda data, a, b: self._header[0].extend(data[a:b]),
            "on_header_value": lambda data, a, b: self._header[1].extend(data[a:b]),
            "on_header_end": self._header_end,
            "on_headers_finished": self._headers_finished,
        }

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.fsync(self._file)
            os.close(self._file)
            self._file = None

    def _begin(self) -> None:
        self._data, self._disposition, self._is_file = bytearray(), b"", False

    def _header_end(self) -> None:
        name, value = self._header
        if bytes(name).lower() == b"content-disposition":
            self._disposition = bytes(value)
        self._header = (bytearray(), bytearray())

    def _headers_finished(self) -> None:
        from python_multipart.multipart import parse_options_header

        _, options = parse_options_header(self._disposition)
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        self._is_file = self._name == "file"
        if not self._is_file:
            if len(self.fields) == _MAX_FIELDS:
                raise invalid(None, "the form has too many fields")
            return
        if self.filename is not None:
            raise invalid("file", "the form has several files", "", "upload them one at a time")
        self.filename = options.get(b"filename", b"").decode("utf-8", "replace")[:255]
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            assert self._file is not None
            left = memoryview(data)[start:end]
            while left:
                left = left[os.write(self._file, left) :]
            return
        self._data += data[start:end]
        if len(self._data) > _MAX_FIELD_BYTES:
            raise invalid(self._name[:80], "the form field is too long")

    def _end(self) -> None:
        if not self._is_file:
            self.fields[self._name] = self._data.decode("utf-8", "replace")


async def read_form(request: Request, path: Path, room: Callable[[], int]) -> Form:
    """Read the form of a request; write its file to `path`, which does not exist yet.

    room: returns the number of bytes that may still be written. Raises ApiError: 400 for another
    body, 408 after a silence, 413 for more than fits, 501 without python-multipart. The file may
    exist after an error.
    """
    try:
        from python_multipart.exceptions import FormParserError
        from python_multipart.multipart import MultipartParser, parse_options_header
    except ImportError:
        raise ApiError(
            501,
            "this server cannot read uploads",
            "the package python-multipart is not installed",
            f"install it with: {install_command(SERVER)}",
        ) from None
    kind, options = parse_options_header(request.headers.get("content-type"))
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise invalid(None, "the body is not a form", "an upload is multipart/form-data")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > room():
        raise _too_large(room())
    form = Form(path)
    try:
        parser = MultipartParser(options[b"boundary"], form.callbacks())
        stream = aiter(request.stream())
        while True:
            async with asyncio.timeout(_PART_TIMEOUT_S):
                part = await anext(stream, None)
            if part is None:
                break
            if len(part) > room():
                raise _too_large(room())
            parser.write(part)
        parser.finalize()
    except FormParserError as error:
        raise invalid(None, "the form cannot be read", str(error)[:100]) from None
    except TimeoutError:
        raise ApiError(
            408, "the body is incomplete", f"no data arrived for {_PART_TIMEOUT_S:g} s"
        ) from None
    except ClientDisconnect:
        raise ApiError(400, "the body is incomplete", "the connection was closed") from None
    finally:
        form.close()
    return form


def _too_large(room: int) -> ApiError:
    return ApiError(
        413,
        "the upload is too large",
        f"{room} bytes are left for files",
        "delete files, or start the server with a larger --batch-size",
        code="storage_full",
        headers={"Connection": "close"},
    )
