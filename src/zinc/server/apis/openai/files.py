"""/v1/files: the input and output files of batches.

https://platform.openai.com/docs/api-reference/files.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import FileResponse, Response

from zinc.server.apis.shared.service import Service, owner_of
from zinc.server.batch.queue import BatchQueue
from zinc.server.batch.store import Record, owner_id, shown
from zinc.server.errors import ApiError, invalid, unsupported
from zinc.server.http.responses import JSONResponse
from zinc.server.http.upload import read_form

_PURPOSES = ("batch",)
_MAX_LISTED = 10_000


def queue_of(service: Service) -> BatchQueue:
    """Return the batches of the server. Raises ApiError 501 if it keeps none."""
    if service.batches is None:
        raise ApiError(
            501,
            "this server accepts no files and batches",
            "it was started without a folder for them",
            "start it with --batch-dir",
        )
    return service.batches


def client_owner(service: Service, request: Request) -> str:
    """Return the owner of the files and batches that a request creates or sees."""
    return owner_id(owner_of(service, request))


async def create_file(service: Service, request: Request) -> Response:
    """Store an uploaded file."""
    store = queue_of(service).store
    with store.upload() as path:
        form = await read_form(request, path, lambda: store.room_bytes)
        unknown = form.fields.keys() - {"purpose"}
        if unknown:
            raise unsupported(min(unknown)[:80], "files are kept until they are deleted")
        purpose = form.fields.get("purpose")
        if purpose not in _PURPOSES:
            raise invalid("purpose", f"purpose is {purpose!r:.80}", "files are for batches only")
        if form.filename is None:
            raise invalid("file", "file is missing")
        record = store.add_file(path, form.filename, purpose, client_owner(service, request))
    return JSONResponse(shown(record))


async def list_files(service: Service, request: Request) -> Response:
    """List the files of the client."""
    purpose = request.query_params.get("purpose")
    found = queue_of(service).store.files(client_owner(service, request))
    chosen = [shown(each) for each in found if purpose in (None, each["purpose"])]
    if request.query_params.get("order") == "asc":
        chosen.reverse()
    return page_of(chosen, request, _MAX_LISTED)


async def get_file(service: Service, request: Request) -> Response:
    """Describe a file. Raises ApiError 404."""
    return JSONResponse(shown(_file(service, request)))


async def delete_file(service: Service, request: Request) -> Response:
    """Delete a file. Raises ApiError: 404, or 409 if a batch reads it."""
    id = request.path_params["id"]
    queue_of(service).store.delete_file(id, client_owner(service, request))
    return JSONResponse({"id": id, "object": "file", "deleted": True})


async def get_content(service: Service, request: Request) -> Response:
    """Answer with the contents of a file. Raises ApiError 404."""
    id = _file(service, request)["id"]
    path = queue_of(service).store.content_path(id)
    return FileResponse(path, media_type="application/jsonl")


def page_of(records: Sequence[Record], request: Request, most: int) -> Response:
    """Return the response to a list request: at most `limit` records after the id `after`.

    most: the limit of requests that give none. Raises ApiError for wrong parameters.
    """
    limit, after = request.query_params.get("limit", str(most)), request.query_params.get("after")
    if not limit.isdecimal() or not 1 <= int(limit[:9]) <= _MAX_LISTED:
        raise invalid("limit", f"limit is {limit[:20]}", f"it must lie between 1 and {_MAX_LISTED}")
    ids = [each["id"] for each in records]
    if after is not None and after not in ids:
        raise invalid("after", f"after is {after[:80]!r}", "the list has no such id")
    start = 0 if after is None else ids.index(after) + 1
    rows = records[start : start + int(limit)]
    return JSONResponse(
        {
            "object": "list",
            "data": rows,
            "first_id": rows[0]["id"] if rows else None,
            "last_id": rows[-1]["id"] if rows else None,
            "has_more": start + len(rows) < len(records),
        }
    )


def _file(service: Service, request: Request) -> Record:
    owner = client_owner(service, request)
    return queue_of(service).store.file(request.path_params["id"], owner)
