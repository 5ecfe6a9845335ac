"""The host memory of a replica, by which Ray places it on a machine with room for its models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from zinc.cluster.options import ClusterOptions
from zinc.core.errors import ZincError
from zinc.engine.load.fit import fit_report
from zinc.engine.load.options import LoadOptions
from zinc.engine.load.planning import plan_model
from zinc.server.config import ModelSource

_CONTEXT = 4096  # tokens of a model's cache, unless an option or the model says less or more
_PROCESS_BYTES = 256 << 20  # of a server without a model
_ON_HOST = ("auto", "cpu", "ref")


def with_memory(options: ClusterOptions) -> ClusterOptions:
    """Return the options of a cluster, with an estimate of `memory` where they give none."""
    if options.memory:
        return options
    if not options.models:
        return replace(options, memory=replica_memory(options))
    known = options.by_model()
    models = {
        name: given if given.get("memory") else _with(given, replica_memory(known[name]))
        for name, given in options.models.items()
    }
    return replace(options, models=models)


def _with(given: Mapping[str, Any], memory: int) -> dict[str, Any]:
    return {**given, "memory": memory} if memory else dict(given)


def replica_memory(options: ClusterOptions) -> int:
    """Return the bytes of host memory that a replica needs; 0 if that is unknown.

    options: of a model's replicas, without `models`. The memory is that of weights, scratch memory
    and one context of each model, as far as the memory budget admits them at a time. GPU memory is
    not counted, because Ray does not know it. The memory of a model that is not on this machine is
    unknown.
    """
    local = replace(options, serve={**options.serve, "pull": False})
    try:
        config = local.server_config()
        if options.gpus or config.load.backend not in _ON_HOST:
            return 0
        needs = [_model_bytes(config.load, source) for source in config.models]
    except ZincError:
        return 0
    budget = config.memory_budget_bytes
    most = sum(needs) if budget is None else max(*needs, min(sum(needs), budget))
    return most + _PROCESS_BYTES


def _model_bytes(load: LoadOptions, source: ModelSource) -> int:
    """Return the bytes that a model takes with one sequence. Raises a ZincError."""
    backend = "cpu" if load.backend == "auto" else load.backend
    context = source.settings.context or load.context
    own = replace(load, path=source.path, settings=source.settings, context=context)
    with plan_model(replace(own, backend=backend, lora=(), draft=None)) as planned:
        tokens = context or min(_CONTEXT, planned.spec.context)
        report = fit_report(planned, tokens, lambda device: None)
        return sum(need.needed_bytes for need in report.memories)
