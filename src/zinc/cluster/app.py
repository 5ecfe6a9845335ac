"""The Serve application: `build` is its entry for `zinc cluster up` and for config files."""

from __future__ import annotations

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
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import LoggingConfig
from starlette.types import ASGIApp

from zinc.cluster.front import Front, ReplicaLostError
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

APPLICATION, ENGINE, FRONT, DIRECTORY = "zinc", "engine", "front", "prefixes"
_MAX_ONGOING = 1000  # of a replica; its server refuses what exceeds --max-waiting
_FRONT_ONGOING = 10_000
_HEALTH_S = 5.0
_SHARED_PART = 0.5  # of Ray's object store, for shared prefixes
_STORE_S = 10.0  # to call the directory, or to get objects
_LOGGING = LoggingConfig(log_level="WARNING", enable_access_log=False)  # replicas log requests


class ReplicaStartError(Exception):
    """A replica cannot start; the text is one line for users."""


class EngineDeployment:
    """A replica of the server as a Serve deployment."""

    async def __init__(  # type: ignore[misc]
        self, options: Mapping[str, Any], directory: DeploymentHandle | None = None
    ) -> None:
        cluster = ClusterOptions.of(options)
        name = serve.get_replica_context().replica_id.unique_id
        try:
            config = cluster.server_config()
            if cluster.share_prefixes:
                store = _prefix_store(cluster.share_prefixes, directory)
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
        """Return what routers need to know."""
        return self._replica.routing_stats()

    async def __del__(self) -> None:
        """Unload the models when Serve stops the replica."""
        if hasattr(self, "_replica"):
            await self._replica.close()


class DirectoryDeployment:
    """A Serve deployment that keeps the directory of shared prefixes running.

    The directory is an actor of its own, since calls of deployments take milliseconds.
    """

    def __init__(self) -> None:
        limit_bytes = int(_SHARED_PART * ray.cluster_resources().get("object_store_memory", 0))
        self._actor = ray.remote(num_cpus=0)(Directory).remote(limit_bytes)

    def actor(self) -> ActorHandle:
        """Return the directory."""
        return self._actor


class _DirectoryCalls:
    """Calls of the directory that a deployment keeps; any thread may call."""

    def __init__(self, deployment: DeploymentHandle) -> None:
        self._deployment = deployment
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


def _prefix_store(shared: str, directory: DeploymentHandle | None) -> Callable[[str], Store]:
    """Return what makes the store of a key, in Ray's object store or in the folder `shared`.

    Raises RequestError if the folder cannot be used.
    """
    if directory is None:
        folder = Path(shared)
        check_folder(folder)
        return partial(FolderStore, folder)

    calls = _DirectoryCalls(directory)
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
    """Raise errors of Ray as OSError, which is that of any store."""
    try:
        yield
    except (RayError, RayServeException, TimeoutError) as error:
        raise OSError(str(error).partition("\n")[0] or type(error).__name__) from error


class FrontDeployment:
    """The front as a Serve deployment."""

    def __init__(self, engine: DeploymentHandle, options: Mapping[str, Any]) -> None:
        handle = engine.options(stream=True, method_name="answer")
        cluster = ClusterOptions.of(options)
        self._front = Front(_ServeReplicas(handle), cluster.max_body_bytes, cluster.separates_keys)

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """Return the application that Serve runs."""
        return self._front


class _ServeReplicas:
    """The replicas behind a handle."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle

    async def answer(self, request: Forwarded) -> AsyncGenerator[Part]:
        """Yield the parts of the answer of a replica. Raises ReplicaLostError."""
        response = self._handle.remote(request)
        is_done = False
        try:
            async for part in response:
                yield part
            is_done = True
        except (RayError, RayServeException) as error:
            is_done = True
            raise ReplicaLostError from error
        finally:
            if not is_done:
                response.cancel()


def build(args: Mapping[str, Any]) -> Any:
    """Return the Serve application for options as in `ClusterOptions`. Raises RequestError."""
    options = ClusterOptions.of(args)
    given = options.changed()
    # Ray replaces replicas whose arguments changed, so a replica gets only the options it reads.
    resources = {"num_cpus": options.cpus, "num_gpus": options.gpus}
    if options.memory:
        resources["memory"] = options.memory
    read = ("serve", "cpus", "gpus", "share_prefixes")
    replica = {name: given[name] for name in read if name in given}
    engine = serve.deployment(EngineDeployment).options(
        name=ENGINE,
        num_replicas=options.replicas or None,
        autoscaling_config=None if options.replicas else _autoscaling(options),
        max_ongoing_requests=_MAX_ONGOING,
        health_check_period_s=_HEALTH_S,
        logging_config=_LOGGING,
        graceful_shutdown_wait_loop_s=0.5,
        graceful_shutdown_timeout_s=options.drain_s,
        ray_actor_options=resources,
        request_router_config=RequestRouterConfig(
            request_router_class=PrefixRouter,
            request_router_kwargs={"mode": options.router},
            request_routing_stats_period_s=REPORT_S,
        ),
    )
    front = serve.deployment(serve.ingress()(FrontDeployment)).options(
        name=FRONT,
        num_replicas=options.fronts,
        max_ongoing_requests=_FRONT_ONGOING,
        logging_config=_LOGGING,
        graceful_shutdown_wait_loop_s=0.5,
        graceful_shutdown_timeout_s=options.drain_s,
        ray_actor_options={"num_cpus": 0},
    )
    directory = None
    if options.share_prefixes == "memory":
        directory = serve.deployment(DirectoryDeployment).options(
            name=DIRECTORY,
            num_replicas=1,
            max_ongoing_requests=_MAX_ONGOING,
            logging_config=_LOGGING,
            ray_actor_options={"num_cpus": 0},
        )
    shared = () if directory is None else (directory.bind(),)
    return front.bind(engine.bind(replica, *shared), replica)


def _autoscaling(options: ClusterOptions) -> AutoscalingConfig:
    return AutoscalingConfig(
        min_replicas=options.min_replicas,
        max_replicas=options.max_replicas,
        initial_replicas=options.min_replicas,
        target_ongoing_requests=options.queue,
        upscale_delay_s=5.0,
        downscale_delay_s=300.0,
    )
