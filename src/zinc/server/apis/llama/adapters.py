"""GET and POST /lora-adapters of llama.cpp's server."""

from __future__ import annotations

from typing import Annotated

from starlette.requests import Request
from starlette.responses import Response

from zinc.core.errors import RequestError
from zinc.server.apis.shared.fields import LoraScale
from zinc.server.apis.shared.service import Service
from zinc.server.errors import invalid
from zinc.server.http.body import read_json
from zinc.server.http.fields import Fields, FirstError, parse
from zinc.server.http.responses import JSONResponse


class ScalesFields(Fields):
    """The scales of adapters. The request is the array alone."""

    adapters: Annotated[list[LoraScale], FirstError()]


async def list_adapters(service: Service, request: Request) -> Response:
    """Answer with the adapters of a model."""
    async with service.pool.use(request.query_params.get("model")) as model:
        return JSONResponse(
            [
                {
                    "id": each.id,
                    "path": str(each.path),
                    "scale": each.scale,
                    "task_name": each.task_name,
                    "prompt_prefix": each.prompt_prefix,
                }
                for each in model.llm.adapters
            ]
        )


async def set_scales(service: Service, request: Request) -> Response:
    """Set the scales for later requests that name none; 0 for adapters that are not listed."""
    body = await read_json(request, service.config.max_body_bytes)
    fields = parse(ScalesFields, {"adapters": body})
    async with service.pool.use(request.query_params.get("model")) as model:
        try:
            model.llm.set_lora_scales({each.id: each.scale for each in fields.adapters})
        except RequestError as error:
            raise invalid("adapters", error.what, error.why) from None
    return JSONResponse({"success": True})
