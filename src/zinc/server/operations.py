"""Endpoints that belong to no single API: health, metrics, and the list of models."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from zinc.server.apis.anthropic import models as anthropic
from zinc.server.apis.shared.service import Service, read_fields
from zinc.server.errors import ApiError
from zinc.server.http.dialect import speaks_anthropic
from zinc.server.http.fields import Fields
from zinc.server.http.responses import JSONResponse
from zinc.server.runtime.entry import State
from zinc.server.runtime.metrics import CONTENT_TYPE


class ModelFields(Fields):
    """A request to load or unload a model."""

    model: str


async def health(service: Service, request: Request) -> Response:
    """Answer 200 if the server can take requests.

    Raises ApiError 503 while the first model is loading, if no model can be loaded, and during
    shutdown.
    """
    entry = service.pool.default
    if service.pool.closing is not None:
        raise service.pool.closing
    if entry.state is State.LOADING:
        raise ApiError(503, "the model is being loaded", headers={"Retry-After": "1"})
    if all(each.state is State.FAILED for each in service.pool.entries.values()):
        raise ApiError(503, "the model cannot be loaded", "the server's log has the cause")
    return JSONResponse({"status": "ok"})


async def metrics(service: Service, request: Request) -> Response:
    """Answer with all metrics in Prometheus' text format."""
    m = service.metrics
    for gauge in m.of_models:
        gauge.clear()
    for name, entry in service.pool.entries.items():
        m.loaded.set(entry.model is not None, name)
        if entry.model is not None:
            m.describe(name, entry.model.runner.stats, entry.model.llm.memory)
    headers = {"Process-Start-Time-Unix": str(m.started_unix_s)}  # as llama.cpp's server sends
    return Response(m.render(), headers=headers, media_type=CONTENT_TYPE)


async def models(service: Service, request: Request) -> Response:
    """List the models in the form of the API that the request belongs to."""
    if speaks_anthropic(request.scope):
        return await anthropic.list_models(service, request)
    rows = [entry.describe() for entry in service.pool.entries.values()]
    return JSONResponse({"object": "list", "data": rows})


async def model(service: Service, request: Request) -> Response:
    """Describe one model. Raises ApiError 404."""
    if speaks_anthropic(request.scope):
        return await anthropic.get_model(service, request)
    return JSONResponse(service.pool.named(request.path_params["name"]).describe())


async def load_model(service: Service, request: Request) -> Response:
    """Load a model now, so that the first request does not wait for it."""
    fields = await read_fields(service, request, ModelFields)
    async with service.pool.use(service.pool.named(fields.model).source.name):
        pass
    return JSONResponse({"success": True})


async def unload_model(service: Service, request: Request) -> Response:
    """Unload a model. Raises ApiError 409 if requests are using it."""
    fields = await read_fields(service, request, ModelFields)
    entry = service.pool.named(fields.model)
    if entry.model is not None and not await service.pool.unload(entry):
        raise ApiError(
            409, f"the model {fields.model!r} is in use", "", "try again later", param="model"
        )
    return JSONResponse({"success": True})
