"""The fronts of `zinc cluster up`: Ray actors that serve HTTP on the machine of Ray's head.

A front never changes. New settings, models or versions of zinc start new fronts, which take over
the listening socket of the old ones. Ray restarts a front that crashes.

    FOLDER/NAME.stopping    there while the front NAME waits for its running answers
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import ray
from ray.exceptions import ActorDiedError, GetTimeoutError, RayError

import zinc
from zinc.cluster.applications import ENGINE, application_name
from zinc.cluster.front import Front
from zinc.cluster.handles import ServeReplicas
from zinc.cluster.ingress import Ingress
from zinc.cluster.listener import user_folder
from zinc.core.errors import RequestError, ZincError

Failure: TypeAlias = tuple[str, str, str]
"""The parts of a ZincError: `what`, `why` and `hint`. Ray does not carry them in exceptions."""

_PREFIX = "front-"
_HEAD = {"node:__internal_head__": 0.001}
_START_S, _ANSWER_S = 60.0, 5.0
_RUNNING, _STOPPING, _FAILED = "RUNNING", "STOPPING", "UNHEALTHY"


class FrontActor:
    """A front on an address of its own.

    settings: `host`, `port`, `models` (names, the default model first), `max_body` in bytes,
    `separates_keys` (see `Front`), `drain_s` and `max_connections`.
    """

    async def __init__(self, settings: Mapping[str, Any]) -> None:  # type: ignore[misc]
        self._settings = settings
        self._ingress: Ingress | None = None
        name = ray.get_runtime_context().get_actor_name()
        self._stopping_file = _folder() / f"{name}.stopping"
        if self._stopping_file.exists():  # it crashed while it stopped, and others serve
            self._state, self._failure = _STOPPING, None
            self._end()
            return
        self._failure = await self._start()
        self._state = _RUNNING if self._failure is None else _FAILED

    async def _start(self) -> Failure | None:
        given = self._settings
        models = {n: ServeReplicas(application_name(n), ENGINE) for n in given["models"]}
        front = Front(models, given["max_body"], given["separates_keys"])
        try:
            ingress = Ingress(
                front,
                given["host"],
                given["port"],
                user_folder(_folder()),
                given["drain_s"],
                given["max_connections"],
            )
            await ingress.start()
        except ZincError as error:
            return error.what, error.why, error.hint
        self._ingress = ingress
        return None

    async def state(self) -> tuple[str, Failure | None]:
        """Return whether this front serves, and why it does not."""
        return self._state, self._failure

    async def stop(self) -> None:
        """Accept no more connections, wait for running answers, and end the process."""
        self._state = _STOPPING
        if self._ingress is not None:
            self._stopping_file.touch()
            await self._ingress.stop()
        self._end()

    def _end(self) -> None:
        """End the process; Ray does not start it again."""
        self._stopping_file.unlink(missing_ok=True)
        # `exit_actor` would wait for a call of Serve that takes half a minute.
        ray.kill(ray.get_runtime_context().current_actor)


def _folder() -> Path:
    """Return the folder in which the fronts of this Ray share their socket."""
    ray_id = hashlib.sha256(ray.get_runtime_context().gcs_address.encode()).hexdigest()[:8]
    return Path(tempfile.gettempdir()) / f"zinc-{os.getuid()}-{ray_id}"


def update(settings: Mapping[str, Any], count: int) -> None:
    """Run exactly `count` fronts with these settings (see `FrontActor`).

    Other fronts stop when their running answers have ended; this function does not wait for that.
    Raises a ZincError if a new front cannot serve; the old fronts then continue.
    """
    text = json.dumps([zinc.__version__, dict(settings)], sort_keys=True)
    prefix = f"{_PREFIX}{hashlib.sha256(text.encode()).hexdigest()[:12]}-"
    running = _names()
    same = [name for name in running if name.startswith(prefix) and _state(name)[0] == _RUNNING]
    kept = same[:count]
    started: list[str] = []
    try:
        while len(kept) + len(started) < count:
            started.append(f"{prefix}{secrets.token_hex(4)}")
            _start(started[-1], settings)
    except ZincError:
        _kill(started)
        raise
    _begin_to_stop(name for name in running if name not in kept)


def _start(name: str, settings: Mapping[str, Any]) -> None:
    """Start a front and wait until it serves. Raises a ZincError."""
    maker = ray.remote(FrontActor).options(
        name=name, lifetime="detached", num_cpus=0, resources=_HEAD, max_restarts=-1
    )
    try:
        _, failure = ray.get(maker.remote(settings).state.remote(), timeout=_START_S)
    except GetTimeoutError:
        failure = "a front does not start", f"Ray has not started it within {_START_S:g} s", ""
    except RayError as error:
        why = str(error).strip().rpartition("\n")[2]
        failure = "a front cannot start", why, "its log in Ray's dashboard has the cause"
    if failure is not None:
        raise RequestError(*failure)


def state() -> tuple[str, str]:
    """Return the state of the fronts, and a message; ("", "") if there is none."""
    states = [found for name in _names() if (found := _state(name))[0] != _STOPPING]
    if not states:
        return "", ""
    state, failure = next((each for each in states if each[0] != _RUNNING), states[0])
    return state, "" if failure is None else RequestError(*failure).in_options()


def stop() -> None:
    """Stop all fronts after their running answers."""
    names = _names()
    ends = _begin_to_stop(names)
    if ends:
        ray.wait(ends, num_returns=len(ends))
    _kill(names)


def _begin_to_stop(names: Iterable[str]) -> list[ray.ObjectRef]:
    """Ask the fronts `names` to stop. Return references that are ready when they have ended.

    Fronts that do not serve are killed instead: a front that restarts after a crash could miss the
    request.
    """
    ends = []
    for name in names:
        if _state(name)[0] == _FAILED:
            _kill([name])
            continue
        with suppress(ValueError):  # it has ended
            ends.append(ray.get_actor(name).stop.remote())
    return ends


def _names() -> list[str]:
    """Return the actor names of all fronts. Fronts that are stopping are included."""
    return [name for name in ray.util.list_named_actors() if name.startswith(_PREFIX)]


def _state(name: str) -> tuple[str, Failure | None]:
    """Return the state of a front, and why it does not serve."""
    try:
        found: tuple[str, Failure | None] = ray.get(
            ray.get_actor(name).state.remote(), timeout=_ANSWER_S
        )
    except (ActorDiedError, ValueError):
        return _STOPPING, None  # it has ended
    except RayError:
        return _FAILED, ("a front does not answer", "Ray starts it again if it has crashed", "")
    return found


def _kill(names: Iterable[str]) -> None:
    for name in names:
        with suppress(ValueError):  # it has ended
            ray.kill(ray.get_actor(name))
