"""The state and the steps that all endpoints share: read a request, run it, answer it.

`answer` borrows the model, starts the work, streams the result or waits for it, and releases the
model at the end or when the client disconnects.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import field
from typing import Any, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from zinc.core.dataclass import dataclass
from zinc.engine.sequence import Timings
from zinc.server.apis.shared.fields import QueueFields, SamplingFields
from zinc.server.apis.shared.foreign_fields import rules as foreign_fields
from zinc.server.apis.shared.foreign_fields import table as foreign_table
from zinc.server.apis.shared.foreign_fields.values import LIMIT, STOP
from zinc.server.apis.shared.store import ResponseStore
from zinc.server.batch.queue import BatchQueue
from zinc.server.config import ServerConfig
from zinc.server.errors import ApiError
from zinc.server.http.access import key_in
from zinc.server.http.body import read_json
from zinc.server.http.fields import Fields, parse
from zinc.server.http.in_process import HIGHEST_PRIORITY
from zinc.server.http.log import report_failure
from zinc.server.http.responses import (
    PING_INTERVAL_S,
    EventStream,
    JSONResponse,
    record,
    unless_disconnected,
)
from zinc.server.runtime.job import Client
from zinc.server.runtime.metrics import ServerMetrics
from zinc.server.runtime.pool import ModelPool
from zinc.server.runtime.served_model import ServedModel

Model = TypeVar("Model", bound=Fields)


class Cancellable(Protocol):
    """Work that can be cancelled, such as a generation."""

    def cancel(self) -> None: ...


Work = TypeVar("Work", bound=Cancellable)

# Names that fields of the sampling defaults have in the APIs.
_NAMES = {"stop": STOP, "max_tokens": LIMIT}


@dataclass(frozen=True, slots=True)
class Service:
    """The state of the server that endpoints use.

    batches: the batches of clients, None if the server keeps none. ignored_fields: names of foreign
    fields that were ignored and already logged.
    """

    config: ServerConfig
    pool: ModelPool
    metrics: ServerMetrics
    store: ResponseStore
    batches: BatchQueue | None = None
    ignored_fields: set[str] = field(default_factory=set)

    async def sampling_of(self, name: str | None) -> dict[str, Any]:
        """Return the default arguments of SamplingParams for requests to the model `name`.

        Options of the server override those recommended by the model's file.
        """
        try:
            entry = self.pool.entry(name)
        except ApiError:  # raised again when the model is borrowed
            return {}
        is_loaded = entry.model is not None
        of_file = entry.sampling() if is_loaded else await asyncio.to_thread(entry.sampling)
        return {**of_file, **self.config.sampling, **entry.source.settings.sampling}


@dataclass(frozen=True, slots=True)
class StreamEvents:
    """The form of events in the streams of an API.

    error_event: returns the event that reports an error. ping: the event that is sent during
    silence. media_type: the stream's Content-Type.
    """

    error_event: Callable[[ApiError], bytes]
    ping: bytes = b": ping\n\n"
    media_type: str = "text/event-stream"


async def read_fields(service: Service, request: Request, kind: type[Model]) -> Model:
    """Read the body of `request` and return it as an instance of `kind`. Raises ApiError.

    Foreign fields are translated first; the scope keeps their names for error messages. Missing
    sampling fields get the defaults of the server and the model. `cache_salt` and `lora` are kept
    in the request's state, for `client_of`.
    """
    body = await read_json(request, service.config.max_body_bytes)
    body, sources = foreign_table.translate(kind, body, service.ignored_fields)
    request.scope[foreign_fields.SOURCES] = sources
    fields = parse(
        kind,
        body,
        ignore_unknown=service.config.ignore_unknown_fields,
        known=foreign_table.TABLE,
    )
    if isinstance(fields, QueueFields):
        request.state.cache_salt = fields.cache_salt
        request.state.lora = {x.id: x.scale for x in fields.lora} if fields.lora else None
        highest = request.scope.get(HIGHEST_PRIORITY)
        if highest is not None:
            fields.priority = min(fields.priority or 0, highest)
    if isinstance(fields, SamplingFields):
        defaults = await service.sampling_of(getattr(fields, "model", None))
        for name, value in defaults.items():
            names = _NAMES.get(name, (name,))
            target = next((each for each in names if each in kind.model_fields), None)
            if target is not None and getattr(fields, target) is None:
                setattr(fields, target, value)
    return fields


def owner_of(service: Service, request: Request) -> str:
    """Return the API key that owns what a request stores; "" on a server without keys."""
    return key_in(request.headers) if service.config.api_keys else ""


def client_of(service: Service, request: Request) -> Client:
    """Return the client of a request whose fields have been read.

    Its name is the API key, or else the IP address. Its cache namespace depends on the API key,
    unless the server shares its cache between keys, and on `cache_salt`. Its adapters are those of
    the field `lora`.
    """
    key = request.headers.get("authorization") or request.headers.get("x-api-key")
    name = key or (request.client.host if request.client else "")
    owner = "" if service.config.share_cache else owner_of(service, request)
    salt: str = getattr(request.state, "cache_salt", None) or ""
    lora: Mapping[int, float] | None = getattr(request.state, "lora", None)
    if not owner and not salt:
        return Client(name, lora=lora)
    parts = [part.encode("utf-8", "surrogatepass") for part in (owner, salt)]
    whole = b"%d:" % len(parts[0]) + b"".join(parts)  # the length keeps pairs distinct
    return Client(name, hashlib.blake2b(whole, digest_size=32).digest(), lora)


async def answer(
    service: Service,
    request: Request,
    name: str | None,
    begin: Callable[[ServedModel], Awaitable[Sequence[Work]]],
    whole: Callable[[ServedModel, Sequence[Work]], Awaitable[Any]],
    events: Callable[[ServedModel, Sequence[Work]], AsyncGenerator[bytes]] | None,
    stream_events: StreamEvents,
    ping_interval_s: float | None = None,
) -> Response:
    """Return the response to a request; an event stream if `events` is given.

    name: the model, as the client calls it. begin: starts the work. whole: waits for the work and
    returns the body of the response. events: yields the encoded events of a stream.
    ping_interval_s: seconds of silence before a ping (None: the default). Raises ApiError for
    failures before the response begins.
    """
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(service.pool.use(name))
        noted = record(request)
        noted.model, noted.stream = model.name, events is not None
        work = await begin(model)
        for each in work:
            stack.callback(each.cancel)
        if events is None:
            return JSONResponse(await unless_disconnected(request, _awaited(whole(model, work))))
        return EventStream(
            events(model, work),
            close=stack.pop_all().aclose,
            on_error=stream_events.error_event,
            ping=stream_events.ping,
            ping_interval_s=PING_INTERVAL_S if ping_interval_s is None else ping_interval_s,
            report=lambda error: report_failure(noted, error),
            media_type=stream_events.media_type,
        )


async def _awaited(work: Awaitable[Any]) -> Any:
    return await work


def record_answers(request: Request, ends: Sequence[tuple[str, Timings]]) -> None:
    """Record the timings and finish reasons of a request's answers for the request log.

    ends: the reason and the timings of each answer.
    """
    noted = record(request)
    noted.prompt_tokens = max((t.prompt_tokens for _, t in ends), default=0)
    noted.cached_tokens = max((t.cached_tokens for _, t in ends), default=0)
    noted.completion_tokens = sum(t.generated_tokens for _, t in ends)
    noted.first_token_s = min((t.first_token_seconds for _, t in ends), default=None)
    noted.finish = ",".join(sorted({reason for reason, _ in ends}))
