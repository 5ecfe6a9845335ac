"""POST /api/pull, /api/copy and /api/create, DELETE /api/delete: the set of models.

They change what is on the disk, so the server answers them only with `zinc serve --pull`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from zinc.core.errors import RequestError, ZincError
from zinc.engine.load.files import resolve_model
from zinc.engine.load.settings import with_modelfile
from zinc.hub.errors import ModelNameError
from zinc.hub.events import Chosen, Event, Transferred, Verified, Waiting
from zinc.hub.folders import folders
from zinc.hub.modelfile import Modelfile, Parameter
from zinc.hub.modelfile import parse as parse_modelfile
from zinc.hub.names import FileName, parse, registry_name
from zinc.hub.pull import pull
from zinc.hub.remove import remove
from zinc.server.apis.ollama.common import OLLAMA, line, own_name
from zinc.server.apis.ollama.messages import Messages, plain_messages
from zinc.server.apis.shared.service import Service, read_fields
from zinc.server.config import ModelSource
from zinc.server.errors import ApiError, invalid
from zinc.server.http.fields import Fields
from zinc.server.http.log import report_failure
from zinc.server.http.responses import EventStream, JSONResponse, record

_SUCCESS = {"status": "success"}


class _NamedFields(Fields):
    model: str | None = None
    name: str | None = Field(None, description="older name of `model`")
    stream: bool | None = Field(None, description="report progress in lines (default: true)")

    @property
    def wanted(self) -> str:
        """The name that the request gives. Raises ApiError."""
        if found := self.model or self.name:
            return found
        raise invalid("model", "model is missing", "it names a model")


class PullFields(_NamedFields):
    """A model to download."""

    insecure: bool | None = None


class DeleteFields(_NamedFields):
    """A model to delete."""


class CopyFields(Fields):
    """A model to offer under another name, too."""

    source: str
    destination: str


class CreateFields(_NamedFields):
    """A model to offer under a new name, with settings of its own."""

    from_: str | None = Field(None, alias="from")
    modelfile: str | None = Field(None, description="a Modelfile, instead of the other fields")
    system: str | None = None
    parameters: dict[str, Any] | None = None
    messages: Messages | None = None
    template: str | None = None
    license: Any = Field(None, description="no effect")


class _StoppedError(Exception):
    """The client of a download disconnected."""


def _check_allowed(service: Service) -> None:
    if not service.config.allow_pull:
        raise ApiError(
            403,
            "models cannot be changed over the API",
            "the server was started without --pull",
            "start it with --pull, or use zinc pull",
            code="not_allowed",
        )


async def pull_model(service: Service, request: Request) -> Response:
    """Download a model and offer it."""
    fields = await read_fields(service, request, PullFields)
    _check_allowed(service)
    download = _Download(service, fields.wanted, registry_name(fields.wanted))
    if fields.stream is False:
        try:
            await download.end()
        finally:
            await download.stop()
        return JSONResponse(_SUCCESS)
    noted = record(request)
    return EventStream(
        download.lines(),
        close=download.stop,
        on_error=OLLAMA.error_event,
        ping_interval_s=0,
        media_type=OLLAMA.media_type,
        report=lambda error: report_failure(noted, error),
    )


class _Download:
    """A download in another thread, after which the server offers the model.

    name: for clients. model: as `zinc.hub.pull.pull` takes it.
    """

    def __init__(self, service: Service, name: str, model: str) -> None:
        self._service, self._name, self._model = service, name, model
        self._loop = asyncio.get_running_loop()
        self._events = asyncio.Queue[Event | None]()  # None is the end
        self._stopped = threading.Event()
        self._task = self._loop.run_in_executor(None, self._run)

    async def lines(self) -> AsyncGenerator[bytes]:
        """Yield the progress as lines of a stream. Raises ApiError, as `end` does."""
        yield line({"status": "pulling manifest"})
        while (event := await self._events.get()) is not None:
            yield line(progress_line(event))
        await self.end()
        yield line(_SUCCESS)

    async def end(self) -> None:
        """Wait for the end. Raises ApiError 404 or 502 with the reason of a failure."""
        try:
            await asyncio.shield(self._task)
        except ModelNameError as error:
            raise ApiError(404, error.what, error.why, error.hint, code="model_not_found") from None
        except ZincError as error:
            raise ApiError(502, error.what, error.why, error.hint, code="pull_failed") from None

    async def stop(self) -> None:
        """End the download at its next event, if it has not ended."""
        self._stopped.set()

    def _run(self) -> None:
        """Download the model and offer it, in another thread."""
        try:
            path = pull(self._model, self._note)
        finally:
            self._loop.call_soon_threadsafe(self._events.put_nowait, None)
        offered = _offer_download(self._service, ModelSource(self._name, path))
        asyncio.run_coroutine_threadsafe(offered, self._loop).result()

    def _note(self, event: Event) -> None:
        if self._stopped.is_set():
            raise _StoppedError
        self._loop.call_soon_threadsafe(self._events.put_nowait, event)


def progress_line(event: Event) -> dict[str, Any]:
    """Return an event of a download as Ollama reports it."""
    match event:
        case Chosen(total_bytes=total):
            return {"status": "pulling manifest", "total": total}
        case Transferred(file=file, done_bytes=done, total_bytes=total):
            return {"status": f"pulling {file}", "digest": file, "total": total, "completed": done}
        case Verified():
            return {"status": "verifying sha256 digest"}
        case Waiting(why=why):
            return {"status": f"waiting: {why}"}
        case _:
            return {"status": "writing manifest"}


async def delete_model(service: Service, request: Request) -> Response:
    """Delete a model that was downloaded, or forget one that was created here."""
    fields = await read_fields(service, request, DeleteFields)
    _check_allowed(service)
    entry = service.pool.named(own_name(service.pool, fields.wanted) or fields.wanted)
    if entry.model is not None and not await service.pool.unload(entry):
        raise ApiError(409, f"the model {fields.wanted!r} is in use", "", "try again later")
    if entry.source.is_file:
        try:
            model = registry_name(fields.wanted)
            await asyncio.to_thread(remove, model, folders())
        except ZincError as error:
            raise ApiError(400, error.what, error.why, error.hint) from None
    service.pool.forget(entry)
    return Response()


async def copy_model(service: Service, request: Request) -> Response:
    """Offer a model under a second name, until the server ends."""
    fields = await read_fields(service, request, CopyFields)
    _check_allowed(service)
    entry = service.pool.named(own_name(service.pool, fields.source) or fields.source)
    await _offer(service, replace(entry.source, name=fields.destination, is_file=False))
    return Response()


async def create_model(service: Service, request: Request) -> Response:
    """Offer a model under a new name, until the server ends."""
    fields = await read_fields(service, request, CreateFields)
    _check_allowed(service)
    created = await asyncio.to_thread(_created, service, fields)
    await _offer(service, created)
    rows = [*({"status": note} for note in created.settings.notes), _SUCCESS]
    if fields.stream is False:
        return JSONResponse(_SUCCESS)
    return Response(b"".join(map(line, rows)), media_type=OLLAMA.media_type)


def _created(service: Service, fields: CreateFields) -> ModelSource:
    """Return the model that a request creates. Raises ApiError."""
    modelfile = _modelfile(fields)
    base = _base(service, modelfile.base)
    path = resolve_model(base.path)
    try:
        settings = with_modelfile(base.settings, modelfile, path)
    except RequestError as error:
        param = "parameters" if fields.modelfile is None else "modelfile"
        raise invalid(param, error.what, error.why, error.hint) from None
    return ModelSource(fields.wanted, base.path, settings, is_file=False)


def _modelfile(fields: CreateFields) -> Modelfile:
    """Return the Modelfile of a request, which may be spread over its fields. Raises ApiError."""
    if fields.modelfile is not None:
        try:
            return parse_modelfile(fields.modelfile, "modelfile")
        except ZincError as error:
            raise invalid("modelfile", error.what, error.why, error.hint) from None
    if not fields.from_:
        raise invalid("from", "from is missing", "it names the model to start from")
    return Modelfile(
        fields.from_,
        [Parameter(name, value, "parameters") for name, value in (fields.parameters or {}).items()],
        fields.system,
        [_message(i, row) for i, row in enumerate(plain_messages(fields.messages or ()))],
        fields.template or "",
        "template",
    )


def _message(i: int, row: Mapping[str, Any]) -> tuple[str, str]:
    """Return the role and the text of a message. Raises ApiError for one with tools."""
    if row["role"] == "tool" or row.get("tool_calls"):
        raise invalid(f"messages[{i}]", f"messages[{i}] has a tool", "models keep texts only")
    return row["role"], row["content"]


def _base(service: Service, name: str) -> ModelSource:
    """Return the model of the server, or else of this machine, called `name`.

    Paths are refused, since clients must not open files. Raises ApiError 404.
    """
    own = own_name(service.pool, name)
    if own is not None and own in service.pool.entries:
        return service.pool.entries[own].source
    model = registry_name(name)
    if isinstance(parse(model), FileName):
        return service.pool.named(name).source  # raises the error that lists the models
    try:
        return ModelSource(name, resolve_model(model))
    except ZincError as error:
        code = "model_not_found"
        raise ApiError(404, error.what, error.why, error.hint, code=code) from None


async def _offer_download(service: Service, source: ModelSource) -> None:
    """Offer a downloaded model. One that has not changed since the last download stays loaded.

    Raises ApiError 409 if an older one of the same name is in use.
    """
    old = service.pool.entries.get(source.name)
    if old is None or not old.source.is_file or old.path != resolve_model(source.path):
        await _offer(service, source)


async def _offer(service: Service, source: ModelSource) -> None:
    """Offer a model, in place of one of the same name. Raises ApiError 409 if that is in use."""
    old = service.pool.entries.get(source.name)
    if old is not None and old.model is not None and not await service.pool.unload(old):
        raise ApiError(409, f"the model {source.name!r} is in use", "", "try again later")
    service.pool.add(source)
