"""Check that replicas can open their models, before a cluster stops others to make room."""

from __future__ import annotations

from collections.abc import Mapping

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from zinc import models
from zinc.cluster.options import ClusterOptions
from zinc.core.errors import DeviceError, ZincError
from zinc.engine.load.files import resolve_model
from zinc.formats.gguf import GGUFFile

_ANSWER_S = 30.0  # for all machines


def check_models(by_name: Mapping[str, ClusterOptions]) -> None:
    """Raise DeviceError for the first model that no machine of Ray can open.

    by_name: options of each model's replicas. Models that replicas may download are not checked,
    and every machine has the embedded model.
    """
    for name, options in by_name.items():
        is_named = options.serve.keys() & {"models", "more_models"}
        if not is_named or options.serve.get("pull") or not refusal(options):
            continue
        why = _refusal_everywhere(options)
        if why:
            raise cannot_start(name if len(by_name) > 1 else "", why)


def refusal(options: ClusterOptions) -> str:
    """Return why a replica cannot open its first model on this machine, "" if it can."""
    try:
        path = options.server_config().models[0].path
        with GGUFFile.open(resolve_model(path)) as file:
            models.load(file)
    except ZincError as error:
        return error.in_options()
    return ""


def _refusal_everywhere(options: ClusterOptions) -> str:
    """Return why no machine of Ray can open the models, "" if one can or that is unknown."""
    ask = ray.remote(num_cpus=0)(refusal)
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
