"""/v1/batches: run the requests of an uploaded file in the background.

https://platform.openai.com/docs/api-reference/batch. Unlike with OpenAI's API, an invalid line does
not fail the batch: it becomes a line of the error file. A batch never expires.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from zinc.server.apis.openai.files import client_owner, page_of, queue_of
from zinc.server.apis.shared.service import Service, read_fields
from zinc.server.errors import unsupported
from zinc.server.http.fields import Fields
from zinc.server.http.responses import JSONResponse

_LISTED = 20


class BatchFields(Fields):
    """A request to run a batch."""

    input_file_id: str = Field(description="a file of /v1/files")
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]
    completion_window: Literal["24h"] = Field(description="no effect: a batch never expires")
    metadata: dict[str, str] | None = Field(None, description="returned with the batch")
    output_expires_after: dict[str, Any] | None = None


async def create_batch(service: Service, request: Request) -> Response:
    """Create a batch, which runs after the batches created before it."""
    queue = queue_of(service)
    fields = await read_fields(service, request, BatchFields)
    if fields.output_expires_after is not None:
        raise unsupported("output_expires_after", "files are kept until they are deleted")
    owner = client_owner(service, request)
    queue.store.file(fields.input_file_id, owner, "input_file_id")
    batch = queue.store.add_batch(
        fields.model_dump(include={"input_file_id", "endpoint", "completion_window", "metadata"}),
        owner,
    )
    queue.add()
    return JSONResponse(queue.describe(batch))


async def list_batches(service: Service, request: Request) -> Response:
    """List the batches of the client, the newest first."""
    queue = queue_of(service)
    found = [queue.describe(each) for each in queue.store.batches(client_owner(service, request))]
    return page_of(found, request, _LISTED)


async def get_batch(service: Service, request: Request) -> Response:
    """Describe a batch and its progress. Raises ApiError 404."""
    queue = queue_of(service)
    owner = client_owner(service, request)
    return JSONResponse(queue.describe(queue.store.batch(request.path_params["id"], owner)))


async def cancel_batch(service: Service, request: Request) -> Response:
    """Cancel a batch; its answers so far are kept. Raises ApiError: 404, or 409 if it has ended."""
    queue = queue_of(service)
    batch = queue.store.batch(request.path_params["id"], client_owner(service, request))
    queue.cancel(batch)
    return JSONResponse(queue.describe(batch))
