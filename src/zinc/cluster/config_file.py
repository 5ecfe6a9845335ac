"""Config files of a cluster for `serve deploy` and KubeRay.

Values are written as JSON, which is YAML, so no YAML library is needed.
"""

from __future__ import annotations

import json
from typing import Any

from zinc.cluster.options import ClusterOptions

_IMPORT_PATH = "zinc.cluster.app:build"


def text(options: ClusterOptions, host: str, port: int, image: str | None = None) -> str:
    """Return the YAML of a cluster.

    image: return a RayService for KubeRay, whose pods run this container image.
    """
    config: dict[str, Any] = {
        "proxy_location": "EveryNode",
        "http_options": {"host": host, "port": port},
        "applications": [
            {
                "name": "zinc",
                "route_prefix": "/",
                "import_path": _IMPORT_PATH,
                "args": options.changed(),
            }
        ],
    }
    if image is None:
        return _yaml(config)
    container = {
        "name": "ray",
        "image": image,
        "resources": {"limits": _limits(options)},
    }
    pod = {"spec": {"containers": [container]}}
    most = options.replicas or options.max_replicas
    service = {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": {"name": "zinc"},
        "spec": {
            "serveConfigV2": _yaml(config),
            "rayClusterConfig": {
                "headGroupSpec": {
                    "rayStartParams": {"num-cpus": "0"},
                    "template": {"spec": {"containers": [{"name": "ray", "image": image}]}},
                },
                "workerGroupSpecs": [
                    {
                        "groupName": "replicas",
                        "replicas": options.replicas or options.min_replicas,
                        "minReplicas": options.replicas or options.min_replicas,
                        "maxReplicas": most,
                        "rayStartParams": {},
                        "template": pod,
                    }
                ],
            },
        },
    }
    return _yaml(service)


def _limits(options: ClusterOptions) -> dict[str, str]:
    limits = {"cpu": f"{max(1.0, options.cpus):g}"}
    if options.gpus:
        limits["nvidia.com/gpu"] = f"{max(1.0, options.gpus):g}"
    return limits


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
