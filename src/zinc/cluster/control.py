"""Start, describe and stop a cluster on a Ray that is running."""

from __future__ import annotations

import logging
import re
import socket
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import ray
from ray import serve
from ray.serve.config import ProxyLocation
from ray.serve.schema import ApplicationStatus

from zinc.cli.text import size
from zinc.cluster import front_actors
from zinc.cluster.app import target
from zinc.cluster.applications import (
    FRONT_APPLICATION,
    ApplicationConfig,
    application_name,
    applications,
    is_of_cluster,
    model_of,
)
from zinc.cluster.model_check import cannot_start, check_models
from zinc.cluster.options import ClusterOptions
from zinc.core.dataclass import dataclass
from zinc.core.errors import DeviceError, MemoryLimitError, RequestError, ZincError

_CONNECT_S, _POLL_S = 5.0, 0.2
_STALL_S = 10.0  # without room for replicas, after which an update gives up
_LINE = re.compile(r"ReplicaStartError: (.+)")
_UNPLACED = re.compile(r"has \d+ replicas that have taken more than \S+ to be scheduled")


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """The state of a model. replicas: number of replicas by state, such as RUNNING."""

    state: str
    message: str
    replicas: dict[str, int]


@dataclass(frozen=True, slots=True)
class Status:
    """The state of the cluster, and of its models by name.

    state: RUNNING, or that of the first part that does not run. dashboard: URL of Ray's
    dashboard, "" without one.
    """

    state: str
    message: str
    models: dict[str, ModelStatus]
    dashboard: str


def connect(address: str) -> str:
    """Connect to Ray; return the URL of its dashboard or "". Raises RequestError."""
    try:
        _reach(address)
        context = ray.init(
            address=address,
            namespace=FRONT_APPLICATION,
            ignore_reinit_error=True,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (OSError, ValueError, RuntimeError) as error:
        why = "no Ray is running on this machine"
        hint = "start one with `ray start --head`, or name the address of its head with {address}"
        if address != "auto":
            why = str(error).partition("\n")[0]
            # Ray looks for a token by itself only where it finds its address by itself.
            hint += "; if it has token authentication, set RAY_AUTH_MODE=token"
        raise RequestError(f"cannot connect to Ray at {address}", why, hint) from None
    # Serve logs each deployment step; the commands print what users need.
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    url = context.dashboard_url
    return f"http://{url}" if url else ""


def _reach(address: str) -> None:
    """Raise OSError if nothing listens at HOST:PORT; Ray itself would try for many minutes."""
    host, mark, port = address.rpartition(":")
    if mark and port.isdecimal():
        socket.create_connection(
            (host.rpartition("//")[2].strip("[]"), int(port)), _CONNECT_S
        ).close()


def up(options: ClusterOptions, host: str, port: int) -> None:
    """Start the cluster, or update the one that runs; return when it answers.

    Only replicas whose options changed are replaced, and their running answers end first. Models
    that `options` lacks are stopped. Raises a ZincError; a new cluster is stopped then.
    """
    *needed, front = applications(options)
    _check_room(options.by_model())
    running = serve.status().applications
    if FRONT_APPLICATION in running:
        raise RequestError(
            "the cluster that runs on this Ray has a config file",
            "it was started with `serve deploy`",
            "update it with `serve deploy`, or stop it first with `zinc cluster down`",
        )
    check_models(options.by_model())
    names = list(options.by_model())
    settings = {**front.args, "host": host, "port": port, "drain_s": options.drain_s}
    settings["max_connections"] = options.max_connections
    is_new = not any(map(is_of_cluster, running))
    if is_new:
        front_actors.stop()  # those of a Serve that was shut down
    serve.start(proxy_location=ProxyLocation.Disabled)
    gone = _gone(running, {each.name for each in needed})
    kept = [name for name in names if application_name(name) in running]
    if gone and kept:  # no request should wait for a model that is gone
        front_actors.update({**settings, "models": kept}, options.fronts)
    for name in gone:
        serve.delete(name)
    try:
        if is_new:  # an address that cannot be used is an error before models are loaded
            front_actors.update({**settings, "models": names}, options.fronts)
        # Ray Serve would wait for ever for the room of a machine that is lost.
        serve.run_many([target(each) for each in needed], wait_for_applications_running=False)
        _wait_until_running(needed, options.by_model())
        front_actors.update({**settings, "models": names}, options.fronts)
    except ZincError:
        if is_new:
            _stop()
        raise


def _wait_until_running(
    configs: Sequence[ApplicationConfig], models: Mapping[str, ClusterOptions]
) -> None:
    """Return when all applications run. Raises a ZincError if one fails, or if there is no room."""
    has_room_at = time.monotonic()
    while True:
        found = serve.status().applications
        states = [found[each.name].status for each in configs if each.name in found]
        if ApplicationStatus.DEPLOY_FAILED in states:
            raise _failure(configs)
        if states.count(ApplicationStatus.RUNNING) == len(configs):
            return
        _check_room(models)
        stalled = (
            name
            for name, options in models.items()
            if application_name(name) in found
            and _is_stalled(found[application_name(name)], options)
        )
        name = next(stalled, None)
        if name is None:
            has_room_at = time.monotonic()
        elif time.monotonic() > has_room_at + _STALL_S:
            raise _no_more_room(name if len(models) > 1 else "")
        time.sleep(_POLL_S)


def _is_stalled(application: Any, options: ClusterOptions) -> bool:
    """Return whether an update waits for room that no replica will free.

    Ray Serve completes an update only when as many replicas run as the queue length requires, even
    if the update does not change the model.
    """
    if application.status != ApplicationStatus.DEPLOYING or not options.max_replicas:
        return False
    for deployment in application.deployments.values():
        states = {str(state) for state, n in deployment.replica_states.items() if n}
        if states == {"RUNNING", "STARTING"} and _UNPLACED.search(deployment.message):
            return True
    return False


def _gone(running: Iterable[str], needed: Collection[str]) -> list[str]:
    """Return the applications of models that run and are not `needed`."""
    return [name for name in running if is_of_cluster(name) and name not in needed]


def status(dashboard: str) -> Status:
    """Return the state of the cluster. Raises RequestError if there is none."""
    found = serve.status().applications
    state, message = front_actors.state()
    front = found.get(FRONT_APPLICATION)
    if front is not None:
        state, message = front.status.value, front.message
    models = {
        name: _model_status(application)
        for each, application in found.items()
        if (name := model_of(each)) is not None
    }
    if not state and not models:
        raise RequestError(
            "no cluster is running on this Ray", "", "start one with `zinc cluster up MODEL`"
        )
    states = [state or "NO FRONT", *(each.state for each in models.values())]
    state = next((each for each in states if each != "RUNNING"), "RUNNING")
    return Status(state, message, models, dashboard)


def _model_status(application: Any) -> ModelStatus:
    message = application.message
    replicas: dict[str, int] = {}
    for deployment in application.deployments.values():
        replicas |= {str(state): n for state, n in deployment.replica_states.items()}
        message = message or deployment.message
    if application.status == ApplicationStatus.DEPLOY_FAILED:
        message = _reason(application) or message
    return ModelStatus(application.status.value, message, replicas)


def down() -> None:
    """Stop the cluster. Raises RequestError if there is none."""
    status("")
    _stop()


def _stop() -> None:
    """Stop the fronts, then the models, and Serve if nothing else runs on it."""
    front_actors.stop()
    names = serve.status().applications
    if all(map(is_of_cluster, names)):
        serve.shutdown()
        return
    for name in filter(is_of_cluster, names):
        serve.delete(name)


def _check_room(models: Mapping[str, ClusterOptions]) -> None:
    """Raise MemoryLimitError if the machines of Ray have no room for all replicas of `models`."""
    machines = [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]]
    # The largest shares first, as they fit in the fewest machines.
    for name, options in sorted(models.items(), key=lambda each: _shares(each[1]), reverse=True):
        needed = {"CPU": options.cpus, "GPU": options.gpus, "memory": options.memory}
        needed = {resource: share for resource, share in needed.items() if share}
        room = 0
        while room < options.replicas:
            free = next((m for m in machines if _fits(needed, m)), None)
            if free is None:
                raise _no_room(name if len(models) > 1 else "", options, room, len(machines))
            for resource, share in needed.items():
                free[resource] -= share
            room += 1


def _shares(options: ClusterOptions) -> tuple[float, float, float]:
    return options.gpus, options.memory, options.cpus


def _fits(needed: Mapping[str, float], machine: Mapping[str, float]) -> bool:
    """Return whether a machine has the resources that are `needed`."""
    return all(machine.get(name, 0) + 1e-6 >= share for name, share in needed.items())


def _no_room(name: str, options: ClusterOptions, room: int, n_machines: int) -> MemoryLimitError:
    """Return the error for a model with room for `room` replicas only."""
    count = f"{options.replicas} replicas" if room else "a replica"
    of = f" of {name!r}" if name else ""
    shares = [
        f"{share:g} {kind}"
        for kind, share in (("CPU", options.cpus), ("GPU", options.gpus))
        if share
    ]
    if options.memory:
        shares.append(f"{size(options.memory)} of memory")
    machines = (
        "the only machine of Ray has"
        if n_machines == 1
        else f"the {n_machines} machines of Ray have"
    )
    beside = " beside the other models" if name else ""
    return MemoryLimitError(
        f"there is no room for {count}{of}",
        f"each takes {' and '.join(shares)}, and {machines} room for {room}{beside}",
        "start fewer {replicas}, give each less with {cpus}, {gpus} or {memory}, or join more "
        "machines with `ray start --address`",
    )


def _no_more_room(name: str) -> MemoryLimitError:
    """Return the error for an update that waits for room. name: of the model, if there are more."""
    return MemoryLimitError(
        f"the update{f' of {name!r}' if name else ''} cannot end",
        "the queue asks for more replicas than the machines of Ray have room for",
        "give a smaller {max_replicas}, or join more machines with `ray start --address`",
    )


def _failure(configs: Sequence[ApplicationConfig]) -> ZincError:
    """Return the error of the application that failed."""
    found = serve.status().applications
    ours = {each.name: found[each.name] for each in configs if each.name in found}
    failed = [name for name, each in ours.items() if each.status == ApplicationStatus.DEPLOY_FAILED]
    name = next(iter(failed), configs[0].name)
    model = model_of(name) if sum(model_of(each) is not None for each in ours) > 1 else None
    reason = _reason(ours[name]) if name in ours else ""
    if reason:
        return cannot_start(model or "", reason)
    why = ours[name].message.strip().rpartition("\n")[2] if name in ours else ""
    return DeviceError(
        "the cluster cannot start", why, "the log of the replica in Ray's dashboard has the cause"
    )


def _reason(application: Any) -> str:
    """Return why replicas cannot start, or "" if they did not say."""
    messages = [application.message, *(d.message for d in application.deployments.values())]
    found = next((m for text in messages if (m := _LINE.search(text))), None)
    return found[1].replace("\\n", " ").strip() if found else ""
