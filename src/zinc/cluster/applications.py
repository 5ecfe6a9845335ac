"""The Serve applications of a cluster as data: names, builders, arguments, deployment options.

    zinc             front, the only one with an address
    zinc-MODEL       the replicas of a model
    zinc.prefixes    the directory of prefixes that replicas share in memory

Serve replaces the replicas of a deployment when its arguments or its share of a machine change. It
applies all other settings to the replicas that run.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, unquote

from zinc.cluster.options import ClusterOptions
from zinc.core.dataclass import dataclass

FRONT, ENGINE, DIRECTORY = "front", "engine", "prefixes"  # deployments
FRONT_APPLICATION, DIRECTORY_APPLICATION = "zinc", "zinc.prefixes"
_PREFIX = "zinc-"
_TOGETHER = "models"  # application of replicas that serve all models
_SHARED_PART = 0.5  # of Ray's object store, for shared prefixes
_MORE_AFTER_S, _FEWER_AFTER_S = 5.0, 300.0  # with requests that queue, or none

# By default, Ray Serve runs a deployment in a second thread and passes each part of an answer
# between the two. One thread is faster, and is safe because front and server never block it.
_RUNTIME = {"env_vars": {"RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0"}}

# Options that replicas read.
_READ = ("serve", "cpus", "gpus", "router", "share_prefixes")


@dataclass(frozen=True, slots=True)
class ApplicationConfig:
    """A Serve application of one deployment.

    builder: function of `zinc.cluster.app` that returns it. args: argument of that function.
    settings: further options of the deployment, by their names in Serve's config files.
    """

    name: str
    builder: str
    args: dict[str, Any]
    deployment: str
    settings: dict[str, Any]

    @property
    def route_prefix(self) -> str | None:
        """Where the application is on the address of the cluster, None for nowhere."""
        return "/" if self.builder == "front" else None


def applications(options: ClusterOptions) -> list[ApplicationConfig]:
    """Return the applications of a cluster: the front follows the applications it calls."""
    by_model = options.by_model()
    found = [_model(application_name(name), own) for name, own in by_model.items()]
    if options.share_prefixes == "memory":
        args = {"part": _SHARED_PART}
        found.insert(0, ApplicationConfig(DIRECTORY_APPLICATION, "directory", args, DIRECTORY, {}))
    settings = {
        "num_replicas": options.fronts,
        "graceful_shutdown_timeout_s": options.drain_s,
        "ray_actor_options": {"num_cpus": 0, "runtime_env": _RUNTIME},
        "user_config": {"models": list(by_model)},
    }
    args = {"max_body": options.max_body_bytes, "separates_keys": options.separates_keys}
    return [*found, ApplicationConfig(FRONT_APPLICATION, "front", args, FRONT, settings)]


def _model(name: str, options: ClusterOptions) -> ApplicationConfig:
    given = options.changed()
    actor: dict[str, Any] = {"num_cpus": options.cpus, "num_gpus": options.gpus}
    if options.memory:
        actor["memory"] = options.memory
    settings: dict[str, Any] = {
        "graceful_shutdown_timeout_s": options.drain_s,
        "ray_actor_options": {**actor, "runtime_env": _RUNTIME},
    }
    if options.max_replicas:
        settings["autoscaling_config"] = {
            "min_replicas": options.replicas,
            "max_replicas": options.max_replicas,
            "initial_replicas": options.replicas,
            "target_ongoing_requests": options.queue,
            "upscale_delay_s": _MORE_AFTER_S,
            "downscale_delay_s": _FEWER_AFTER_S,
        }
    else:
        settings["num_replicas"] = options.replicas
    args = {key: given[key] for key in _READ if key in given}
    return ApplicationConfig(name, "model", args, ENGINE, settings)


def application_name(model: str) -> str:
    """Return the application of a model's replicas; "" is that of all models together."""
    return _PREFIX + quote(model or _TOGETHER, safe=":")  # Ray writes names of files with it


def model_of(application: str) -> str | None:
    """Return the model of an application, None if it is not one of a model."""
    if not application.startswith(_PREFIX):
        return None
    return unquote(application.removeprefix(_PREFIX))


def is_of_cluster(application: str) -> bool:
    """Return whether an application belongs to a cluster of zinc."""
    others = (FRONT_APPLICATION, DIRECTORY_APPLICATION)
    return application in others or application.startswith(_PREFIX)
