"""A model file with its plans for a backend, before any weight is read.

`zinc plan` prints it; `LoadedModel` loads it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from zinc import models
from zinc.backends import api
from zinc.backends.api import Backend, Kernels
from zinc.backends.capabilities import BackendKind
from zinc.backends.plans import Plan
from zinc.engine.cache_layout import resolve_kv_dtype
from zinc.engine.load import auto
from zinc.engine.load.device_map import BackendChoice, OpenModel, divide, fits_on
from zinc.engine.load.files import resolve_model
from zinc.engine.load.memory import MemoryBudget, budgets, check_context
from zinc.engine.load.options import LoadOptions
from zinc.formats.gguf import GGUFFile
from zinc.models.parts.spec import ModelSpec
from zinc.ops.graph import Graph
from zinc.plan.device_map import DeviceMap
from zinc.plan.planner import make_plan

log = logging.getLogger("zinc.loading")


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model file, the backend it will run on, and one plan for each of its graphs."""

    options: LoadOptions
    model: OpenModel
    choice: BackendChoice
    plans: tuple[Plan, ...]
    kv_dtype: str

    @property
    def file(self) -> GGUFFile:
        """The open model file."""
        return self.model.file

    @property
    def spec(self) -> ModelSpec:
        """The model's shapes and constants."""
        return self.model.spec

    @property
    def backend(self) -> Backend:
        """The backend that the plans are for."""
        return self.choice.backend

    def budgets(self) -> list[MemoryBudget]:
        """Return the memories of the backend, with the bytes that the plans take of each."""
        return budgets(self.file, self.plans, self.backend)

    def plan_for(self, n_tokens: int) -> Plan:
        """Return the plan that runs a sequence of `n_tokens`."""
        return self.plans[-1 if 0 < self.spec.plain_context < n_tokens else 0]

    def on(self, backend: Backend) -> PlannedModel:
        """Return the same plans, to be run by another `backend`, such as the reference."""
        return replace(self, choice=BackendChoice(backend))

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def __enter__(self) -> PlannedModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def plan_model(
    options: LoadOptions, backend: Backend | None = None, file: GGUFFile | None = None
) -> PlannedModel:
    """Open the model file, choose a backend and make the plans.

    backend, file: used instead of those that `options` name; `file` is closed if planning fails.
    Raises a `ZincError` if the file is damaged or unsupported, or the options do not suit the model
    or the machine.
    """
    if options.cache_folder is not None:
        from zinc.kv.disk import check_folder

        check_folder(options.cache_folder)
    options = replace(options, context=options.context or options.settings.context)
    if file is None:
        file = GGUFFile.open(resolve_model(options.path))
    try:
        return _plan(_open(file, options), options, backend)
    except BaseException:
        file.close()
        raise


def plan_graph(
    graph: Graph, kernels: Kernels, options: LoadOptions, *, output_rows: int | None = None
) -> Plan:
    """Return a plan of `graph` for steps of `options`.

    output_rows: for a plan that returns this many rows of logits or hidden states to the host;
    None for the plan of answers, which samples on the device if the backend can.
    """
    return make_plan(
        graph,
        kernels,
        max_tokens=options.batch_tokens,
        max_outputs=options.output_rows if output_rows is None else output_rows,
        samples=output_rows is None,
    )


def _open(file: GGUFFile, options: LoadOptions) -> OpenModel:
    """Return the spec and the graphs of a model file."""
    rope, context = options.rope, options.context
    spec, graph = models.load(file, rope=rope, context=context)
    if context is not None:
        check_context(spec, context)
    graphs = [graph]
    if 0 < spec.plain_context < (context or spec.context):
        graphs.append(models.load(file, rope=rope, context=context, extended=True)[1])
    return OpenModel(file, spec, tuple(graphs))


def _select(model: OpenModel, options: LoadOptions) -> auto.Selection:
    """Return the device for backend="auto"."""

    def fits(device: Backend) -> bool:
        return fits_on(device, lambda: device, model, options, DeviceMap())

    machine = auto.this_machine(options.threads, options.backend_options)
    wanted = options.backend_options.get("device", "")
    # With a device map, the caller decides how much of the model goes to the device.
    return auto.select(machine, fits if options.device_map is None else None, wanted)


def _plan(model: OpenModel, options: LoadOptions, backend: Backend | None) -> PlannedModel:
    def create(name: str) -> Backend:
        return api.create(name, options.threads, options.backend_options)

    reason = ""
    if backend is None and options.backend == "auto":
        selection = _select(model, options)
        backend, reason = selection.backend, selection.reason
        if backend.capabilities.kind is BackendKind.CPU and options.device_map is not None:
            options = replace(options, device_map=None)
            reason += "; layers cannot be put on a device"
        log.info("%s", reason)
    if backend is None:
        backend = create(options.backend)
    choice = replace(divide(backend, lambda: create("cpu"), model, options), reason=reason)
    plans = tuple(plan_graph(graph, choice.backend, options) for graph in model.graphs)
    default = choice.backend.capabilities.kv_dtype
    kv_dtype = resolve_kv_dtype(options.kv_dtype, default, plans[0].states)
    return PlannedModel(options, model, choice, plans, kv_dtype)
