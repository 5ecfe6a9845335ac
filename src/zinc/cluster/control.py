"""Start, describe and stop a cluster on a Ray that is running."""

from __future__ import annotations

import logging
import re
import socket
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

import ray
from ray import serve
from ray.serve.config import HTTPOptions
from ray.serve.schema import ApplicationStatus

from zinc.cli.text import size
from zinc.cluster.app import APPLICATION, ENGINE, build
from zinc.cluster.options import ClusterOptions
from zinc.core.errors import DeviceError, MemoryLimitError, RequestError, ZincError

_ANSWER_S, _CONNECT_S = 30.0, 5.0
_LINE = re.compile(r"ReplicaStartError: (.+)")


@dataclass(frozen=True, slots=True)
class Replicas:
    """The replicas of the cluster. states: number of replicas by state, such as RUNNING."""

    states: dict[str, int]

    @property
    def n_running(self) -> int:
        return self.states.get("RUNNING", 0)


@dataclass(frozen=True, slots=True)
class Status:
    """The state of the cluster. dashboard: URL of Ray's dashboard, "" without one."""

    state: str
    message: str
    replicas: Replicas
    dashboard: str


def connect(address: str) -> str:
    """Connect to Ray; return the URL of its dashboard or "". Raises RequestError."""
    try:
        _reach(address)
        context = ray.init(
            address=address,
            namespace=APPLICATION,
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

    Running answers of replaced replicas end first. Raises a ZincError; a new cluster is stopped
    then.
    """
    _check_room(options)
    is_new = not serve.status().applications
    serve.start(http_options=HTTPOptions(host=host, port=port))
    try:
        serve.run(build(options.changed()), name=APPLICATION, route_prefix="/")
    except RuntimeError:
        error = _failure()
        if is_new:
            serve.shutdown()  # or its address would stay that of the next cluster
        raise error from None
    _check_address(host, port)


def status(dashboard: str) -> Status:
    """Return the state of the cluster. Raises RequestError if there is none."""
    found = serve.status().applications.get(APPLICATION)
    if found is None:
        raise RequestError(
            "no cluster is running on this Ray", "", "start one with `zinc cluster up MODEL`"
        )
    engine = found.deployments.get(ENGINE)
    states = {} if engine is None else {str(k): n for k, n in engine.replica_states.items()}
    message = found.message
    if found.status == ApplicationStatus.DEPLOY_FAILED:
        message = _reason(found) or message
    elif engine is not None and not message:
        message = engine.message
    return Status(found.status.value, message, Replicas(states), dashboard)


def down() -> None:
    """Stop the cluster. Raises RequestError if there is none."""
    status("")
    serve.delete(APPLICATION)
    if not serve.status().applications:
        serve.shutdown()


def _check_room(options: ClusterOptions) -> None:
    """Raise MemoryLimitError if no machine of Ray has room for a replica, or all for too few."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    needed = {"CPU": options.cpus, "GPU": options.gpus, "memory": options.memory}
    needed = {name: share for name, share in needed.items() if share}
    room = sum(
        min(int(node.get(name, 0) / share + 1e-6) for name, share in needed.items())
        for node in nodes
    )
    count = options.replicas or options.min_replicas
    if room >= count:
        return
    shares = [f"{share:g} {name}" for name, share in needed.items() if name != "memory"]
    if options.memory:
        shares.append(f"{size(options.memory)} of memory")
    raise MemoryLimitError(
        f"there is no room for {count} replicas" if room else "there is no room for a replica",
        f"each takes {' and '.join(shares)}, and the {len(nodes)} machines of Ray have room for "
        f"{room}",
        "start fewer {replicas}, give each less with {cpus}, {gpus} or {memory}, or join more "
        "machines with `ray start --address`",
    )


def _failure() -> ZincError:
    """Return the error of a deployment that failed."""
    found = serve.status().applications.get(APPLICATION)
    reason = "" if found is None else _reason(found)
    if reason:
        return DeviceError("a replica cannot start", reason)
    why = "" if found is None else found.message.strip().rpartition("\n")[2]
    return DeviceError(
        "the cluster cannot start", why, "the log of the replica in Ray's dashboard has the cause"
    )


def _reason(application: Any) -> str:
    """Return why replicas cannot start, or "" if they did not say."""
    messages = [application.message, *(d.message for d in application.deployments.values())]
    found = next((m for text in messages if (m := _LINE.search(text))), None)
    return found[1].replace("\\n", " ").strip() if found else ""


def _check_address(host: str, port: int) -> None:
    """Raise RequestError if the cluster does not answer at this address."""
    name = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    try:
        with urllib.request.urlopen(f"http://{name}:{port}/health", timeout=_ANSWER_S):
            pass
    except urllib.error.HTTPError:
        pass  # it answers
    except OSError as error:
        raise RequestError(
            f"the cluster does not answer on {host}, port {port}",
            f"Ray Serve may listen on another address already ({error})",
            "stop everything on it with `serve shutdown`, then start the cluster again",
        ) from None
