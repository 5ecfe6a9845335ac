"""Config files of a cluster for `serve deploy` and KubeRay.

Values are written as JSON, which is YAML, so no YAML library is needed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping
from itertools import chain, count
from typing import Any

from zinc.cluster.applications import ApplicationConfig, applications
from zinc.cluster.options import ClusterOptions
from zinc.cluster.ray_version import KNOWN
from zinc.core.errors import RequestError
from zinc.core.rounding import ceil_div
from zinc.server.config import is_loopback

_METRICS_PORT = 8080  # of Ray in KubeRay's pods
_KUBERAY_PORT = 8000
# KubeRay's service of the head has the ports of its container, or the defaults if it names none.
_HEAD_PORTS = {"gcs": 6379, "dashboard": 8265, "client": 10001}
_GROUP_CHARS = 20  # of a name for pods, which KubeRay makes longer
_RAY_BYTES = 1 << 30  # of Ray's own processes in a pod


def text(options: ClusterOptions, host: str, port: int, image: str | None = None) -> str:
    """Return the YAML of a cluster.

    image: return a RayService for KubeRay, whose pods run this container image. Raises RequestError
    if other pods could not reach `host`.
    """
    if image is not None:
        _check_reachable(options, host)
        port = _KUBERAY_PORT if port == _METRICS_PORT else port
    config: dict[str, Any] = {
        "proxy_location": "EveryNode",
        "http_options": {"host": host, "port": port},
        "applications": [_application(each) for each in applications(options)],
    }
    return _yaml(config if image is None else _ray_service(options, config, image))


def _check_reachable(options: ClusterOptions, host: str) -> None:
    """Raise RequestError if pods would listen on loopback, or without a key by accident."""
    if is_loopback(host):
        raise RequestError(
            f"pods cannot be reached on {host}",
            "Kubernetes connects to them from other machines",
            "add --host 0.0.0.0, and --api-key or --allow-public",
        )
    if not (options.serve.get("allow_public") or options.has_keys):
        raise RequestError(
            f"refusing to serve on {host} without an API key",
            "everyone who can reach the pods could use it",
            "set --api-key, or --allow-public if something else protects the address",
        )


def _ray_service(options: ClusterOptions, config: dict[str, Any], image: str) -> dict[str, Any]:
    """Return a RayService with a group of pods for each model, one pod for a replica."""
    port = config["http_options"]["port"]
    cluster: dict[str, Any] = {
        "rayVersion": f"{KNOWN}.0",
        "headGroupSpec": {
            "rayStartParams": {"num-cpus": "0"},
            "template": _pod(image, {**_HEAD_PORTS, "serve": port}),
        },
        "workerGroupSpecs": [],
    }
    names: set[str] = set()
    for name, own in options.by_model().items():
        group = _group_name(name, names)
        names.add(group)
        cluster["workerGroupSpecs"].append(
            {
                "groupName": group,
                "replicas": own.replicas,
                "minReplicas": own.replicas,
                "maxReplicas": own.max_replicas or own.replicas,
                "rayStartParams": {},
                "template": _pod(image, {"serve": port}, _resources(own)),
            }
        )
        if own.max_replicas:
            cluster["enableInTreeAutoscaling"] = True  # or there would be no pods for new replicas
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": {"name": "zinc"},
        "spec": {"serveConfigV2": _yaml(config), "rayClusterConfig": cluster},
    }


def _pod(
    image: str, ports: Mapping[str, int], resources: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the template of a pod. resources: what it takes, and may take at most.

    KubeRay asks the port named "serve" whether the pod is ready.
    """
    container: dict[str, Any] = {
        "name": "ray",
        "image": image,
        "ports": [{"name": name, "containerPort": port} for name, port in ports.items()],
    }
    if resources:
        container["resources"] = {"requests": resources, "limits": resources}
    return {"spec": {"containers": [container]}}


def _group_name(model: str, taken: Collection[str]) -> str:
    """Return the name of a model's pods, a DNS label that is not `taken`."""
    text = re.sub("[^a-z0-9]+", "-", model.lower())[:_GROUP_CHARS].strip("-") or "models"
    numbers = (f"{text}-{number}" for number in count(2))
    return next(name for name in chain((text,), numbers) if name not in taken)


def _resources(options: ClusterOptions) -> dict[str, str]:
    """Return the resources of a pod with one replica. KubeRay starts Ray with its limits."""
    found = {"cpu": f"{max(1.0, options.cpus):g}"}
    if options.memory:
        found["memory"] = f"{ceil_div(options.memory + _RAY_BYTES, 1 << 20)}Mi"
    if options.gpus:
        found["nvidia.com/gpu"] = f"{math.ceil(options.gpus)}"
    return found


def _application(config: ApplicationConfig) -> dict[str, Any]:
    """Return an application as Serve's config files have it."""
    found: dict[str, Any] = {
        "name": config.name,
        "route_prefix": config.route_prefix,
        "import_path": f"zinc.cluster.app:{config.builder}",
        "args": config.args,
    }
    if config.settings:
        found["deployments"] = [{"name": config.deployment, **config.settings}]
    return found


def _yaml(value: dict[str, Any]) -> str:
    """Return a mapping as YAML in block form, with values that are not mappings as JSON."""
    return "".join(f"{line}\n" for line in _lines(value, 0))


def _lines(value: dict[str, Any], depth: int) -> list[str]:
    lines: list[str] = []
    indent = "  " * depth
    for name, each in value.items():
        if isinstance(each, dict) and each:
            lines += [f"{indent}{name}:", *_lines(each, depth + 1)]
        elif isinstance(each, str) and "\n" in each:
            lines.append(f"{indent}{name}: |")
            lines += [f"{indent}  {line}" for line in each.splitlines()]
        elif isinstance(each, list) and each and all(isinstance(i, dict) for i in each):
            lines.append(f"{indent}{name}:")
            for item in each:
                first, *rest = _lines(item, depth + 2)
                lines += [f"{indent}  - {first.lstrip()}", *rest]
        else:
            lines.append(f"{indent}{name}: {json.dumps(each, ensure_ascii=False)}")
    return lines
