"""The Serve applications of a cluster: `front`, and `model` for each model.

Each model is an application of its own, so that Serve replaces its replicas without touching those
of others. The front is the only one with an address. `config_file` names these functions in config
files. `control` calls them for `zinc cluster up`, except for the front (see `fronts`).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray import serve
from ray.actor import ActorHandle
from ray.exceptions import RayError
from ray.serve.config import RequestRouterConfig
from ray.serve.exceptions import RayServeException
from ray.serve.schema import LoggingConfig
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import zinc
from zinc.cluster.applications import (
    DIRECTORY,
    DIRECTORY_APPLICATION,
    ENGINE,
    FRONT,
    ApplicationConfig,
    application_name,
)
from zinc.cluster.front import Front
from zinc.cluster.handles import ServeReplicas, deployment_handle
from zinc.cluster.messages import Forwarded, Part
from zinc.cluster.options import ClusterOptions
from zinc.cluster.replica import Replica
from zinc.cluster.router import PrefixRouter
from zinc.cluster.routing import REPORT_S
from zinc.cluster.shared_prefixes import Directory, SharedStore
from zinc.core.errors import ZincError
from zinc.kv.disk import check_folder
from zinc.kv.store import FolderStore, Store
from zinc.server.http import log

_MAX_ONGOING = 1000  # of a replica; its server refuses what exceeds --max-waiting
_FRONT_ONGOING = 10_000
_HEALTH_S = 5.0
_STORE_S = 10.0  # to call the directory, or to get objects
_LOGGING = LoggingConfig(log_level="WARNING", enable_access_log=False)  # replicas log requests


class ReplicaStartError(Exception):
    """A replica cannot start; the text is one line for users."""


class EngineDeployment:
    """A replica of the server as a Serve deployment."""

    async def __init__(self, options: Mapping[str, Any]) -> None:  # type: ignore[misc]
        name = serve.get_replica_context().replica_id.unique_id
        try:
            cluster = ClusterOptions.of(options)
            # Missing models are downloaded here, which must not stop Serve's event loop.
            config = await asyncio.to_thread(cluster.server_config)
            if cluster.share_prefixes:
                store = _prefix_store(cluster.share_prefixes)
                config = replace(config, load=replace(config.load, prefix_store=store))
            log.set_up(config.json_log)
            self._replica = Replica(name, config)
            await self._replica.start()
        except ZincError as error:
            raise ReplicaStartError(error.in_options()) from None

    async def answer(self, request: Forwarded) -> AsyncGenerator[Part]:
        """Yield the parts of the answer to a request."""
        async for part in self._replica.answer(request):
            yield part

    async def check_health(self) -> None:
        """Raise ZincError if the replica cannot answer; Serve then replaces it."""
        self._replica.check_health()

    async def record_routing_stats(self) -> dict[str, Any]:
        """Return the routing statistics of the replica."""
        return self._replica.routing_stats()

    async def __del__(self) -> None:
        """Unload the models when Serve stops the replica."""
        if hasattr(self, "_replica"):
            await self._replica.close()


class DirectoryDeployment:
    """A Serve deployment that keeps the directory of shared prefixes running.

    The directory is an actor of its own, since calls of deployments take milliseconds.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        store_bytes = ray.cluster_resources().get("object_store_memory", 0)
        limit_bytes = int(settings["part"] * store_bytes)
        self._actor = ray.remote(num_cpus=0)(Directory).remote(limit_bytes)

    def actor(self) -> ActorHandle:
        """Return the directory."""
        return self._actor


class _DirectoryCalls:
    """Calls of the directory that a deployment keeps; any thread may call."""

    def __init__(self) -> None:
        self._deployment = deployment_handle(DIRECTORY_APPLICATION, DIRECTORY)
        self._actor: ActorHandle | None = None

    def __call__(self, method: str, *args: object) -> Any:
        """Call a method. Raises OSError."""
        with _ray_errors():
            if self._actor is None:
                self._actor = self._deployment.actor.remote().result(timeout_s=_STORE_S)
            try:
                return ray.get(getattr(self._actor, method).remote(*args), timeout=_STORE_S)
            except RayError:
                self._actor = None  # there is another one when the deployment has started again
                raise


def _prefix_store(shared: str) -> Callable[[str], Store]:
    """Return a function that opens the store of a key, in Ray's object store or in `shared`.

    Raises RequestError if the folder cannot be used.
    """
    if shared != "memory":
        folder = Path(shared)
        check_folder(folder)
        return partial(FolderStore, folder)

    calls = _DirectoryCalls()
    return lambda key: SharedStore(key, _ObjectStore(), calls)


class _ObjectStore:
    """Ray's object store."""

    def put(self, data: bytes) -> ray.ObjectRef:
        """Store an object; return its reference. Raises OSError."""
        with _ray_errors():
            return ray.put(np.frombuffer(data, np.uint8))  # arrays are mapped, not copied

    def get(self, references: Sequence[ray.ObjectRef]) -> list[bytes]:
        """Return objects. Raises OSError."""
        with _ray_errors():
            return [each.tobytes() for each in ray.get(list(references), timeout=_STORE_S)]


@contextmanager
def _ray_errors() -> Iterator[None]:
    """Raise errors of Ray as OSError, as every store does."""
    try:
        yield
    except (RayError, RayServeException, TimeoutError) as error:
        raise OSError(str(error).partition("\n")[0] or type(error).__name__) from error


class FrontDeployment:
    """The front as a Serve deployment, behind Serve's HTTP proxies: that of config files."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._front = Front({}, settings["max_body"], settings["separates_keys"])
        self._replicas: dict[str, ServeReplicas] = {}

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """Return the application that Serve runs."""
        return _without_request_id(self._front)

    async def reconfigure(self, config: Mapping[str, Any]) -> None:
        """Forward requests to the models `config["models"]` from now on."""
        for name in config["models"]:
            if name not in self._replicas:
                self._replicas[name] = ServeReplicas(application_name(name), ENGINE)
        self._front.models = {name: self._replicas[name] for name in config["models"]}


def _without_request_id(application: ASGIApp) -> ASGIApp:
    """Return the application without the header X-Request-Id, since Serve sets one of its own."""

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_rest(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [each for each in message["headers"] if each[0] != b"x-request-id"]
                message = {**message, "headers": headers}
            await send(message)

        await application(scope, receive, send_rest)

    return run


def front(settings: Mapping[str, Any]) -> Any:
    """Return the Serve application of the front.

    settings: `max_body` in bytes, and `separates_keys` (see `Front`).
    """
    return _front(settings).bind(settings)


def model(options: Mapping[str, Any]) -> Any:
    """Return the Serve application of a model's replicas.

    options: as in `ClusterOptions`, without `models`. Raises RequestError.
    """
    return _engine(options).bind(options)


def directory(settings: Mapping[str, Any]) -> Any:
    """Return the Serve application of the directory of shared prefixes.

    settings: `part` of Ray's object store that they may take.
    """
    return _directory(settings).bind(settings)


def target(config: ApplicationConfig) -> serve.RunTarget:
    """Return the application of `config` as an argument of `serve.run_many`.

    Its version changes with its arguments and that of zinc, and Serve then replaces its replicas.
    """
    text = json.dumps([zinc.__version__, config.args], sort_keys=True)
    version = hashlib.sha256(text.encode()).hexdigest()
    makers = {"model": _engine, "directory": _directory}
    deployment = makers[config.builder](config.args).options(**config.settings)
    # Without a version of its own, Serve replaces all replicas whenever it is called.
    bound = deployment.options(version=version, _internal=True).bind(config.args)
    return serve.RunTarget(bound, config.name, config.route_prefix)


def _front(settings: Mapping[str, Any]) -> serve.Deployment:
    return serve.deployment(serve.ingress()(FrontDeployment)).options(
        name=FRONT,
        max_ongoing_requests=_FRONT_ONGOING,
        logging_config=_LOGGING,
        graceful_shutdown_wait_loop_s=0.5,
    )


def _engine(options: Mapping[str, Any]) -> serve.Deployment:
    return serve.deployment(EngineDeployment).options(
        name=ENGINE,
        max_ongoing_requests=_MAX_ONGOING,
        health_check_period_s=_HEALTH_S,
        logging_config=_LOGGING,
        graceful_shutdown_wait_loop_s=0.5,
        request_router_config=RequestRouterConfig(
            request_router_class=PrefixRouter,
            request_router_kwargs={"mode": ClusterOptions.of(options).router},
            request_routing_stats_period_s=REPORT_S,
        ),
    )


def _directory(settings: Mapping[str, Any]) -> serve.Deployment:
    return serve.deployment(DirectoryDeployment).options(
        name=DIRECTORY,
        num_replicas=1,
        max_ongoing_requests=_MAX_ONGOING,
        logging_config=_LOGGING,
        ray_actor_options={"num_cpus": 0},
    )
