"""Check that models can be found, before a cluster stops others to make room for them."""

from __future__ import annotations

from collections.abc import Mapping

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from zinc.cluster.options import ClusterOptions
from zinc.core.errors import DeviceError, ZincError

_ANSWER_S = 30.0  # for all machines


def check_models(models: Mapping[str, ClusterOptions]) -> None:
    """Raise DeviceError for the first of `models` that no machine of Ray can find.

    models: options of each model's replicas, by its name. Those that replicas may download are not
    checked, and every machine has the embedded model.
    """
    for name, options in models.items():
        is_named = options.serve.keys() & {"models", "more_models"}
        if not is_named or options.serve.get("pull") or not missing(options):
            continue
        why = _missing_everywhere(options)
        if why:
            raise cannot_start(name if len(models) > 1 else "", why)


def missing(options: ClusterOptions) -> str:
    """Return why a replica cannot find its models on this machine, "" if it can."""
    try:
        options.server_config()
    except ZincError as error:
        return error.in_options()
    return ""


def _missing_everywhere(options: ClusterOptions) -> str:
    """Return why no machine of Ray can find the models, "" if one can or that is unknown."""
    ask = ray.remote(num_cpus=0)(missing)
    machines = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    answers = [
        ask.options(scheduling_strategy=NodeAffinitySchedulingStrategy(each, soft=False)).remote(
            options
        )
        for each in machines
    ]
    try:
        reasons: list[str] = ray.get(answers, timeout=_ANSWER_S)
    except RayError:
        return ""
    return reasons[0] if all(reasons) else ""


def cannot_start(model: str, why: str) -> DeviceError:
    """Return the error of a replica that cannot start. model: its name, "" if there is one only."""
    return DeviceError(f"a replica{f' of {model!r}' if model else ''} cannot start", why)
