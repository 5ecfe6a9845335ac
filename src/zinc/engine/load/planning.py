"""The plans of a model: open its file, choose a backend, and plan each of its graphs.

`plan_model` is the way from `LoadOptions` to a `PlannedModel`. Optional parts (a draft model,
speculative decoding) are left out if the model does not fit in memory with them.
"""

from __future__ import annotations

import itertools
import logging
from dataclasses import replace
from pathlib import Path

from zinc import models
from zinc.backends import api
from zinc.backends.api import Backend
from zinc.backends.capabilities import BackendKind
from zinc.backends.plans import states_of
from zinc.backends.split import SplitBackend
from zinc.core.errors import MemoryLimitError, RequestError, UnsupportedError
from zinc.engine.cache_layout import resolve_kv_dtype
from zinc.engine.load import auto
from zinc.engine.load.adapters import NO_ADAPTERS, open_adapters
from zinc.engine.load.device_map import (
    BackendChoice,
    DraftBytes,
    OpenModel,
    divide,
    fits_on,
    keep_parts,
    no_draft,
)
from zinc.engine.load.devices import named_devices
from zinc.engine.load.division import divide_over, with_larger_steps
from zinc.engine.load.draft_model import draft_options
from zinc.engine.load.files import resolve_model
from zinc.engine.load.memory import check_context
from zinc.engine.load.options import AdapterOption, LoadOptions
from zinc.engine.load.planned import PlannedModel, plan_graph
from zinc.engine.load.speculation import (
    check_drafts,
    check_mode,
    demands_drafts,
    needs_nextn,
    needs_rollback,
    with_nextn_beside,
)
from zinc.engine.load.vocabulary import check_vocabulary
from zinc.engine.speculative.speculation import MOST_RECURRENT_ROWS
from zinc.formats.gguf import GGUFFile
from zinc.models.parts.spec import ModelSpec
from zinc.ops.graph import Graph
from zinc.plan.device_map import DeviceMap
from zinc.plan.rollback import rollback_graph

log = logging.getLogger("zinc.loading")


def plan_model(
    options: LoadOptions, backend: Backend | None = None, file: GGUFFile | None = None
) -> PlannedModel:
    """Open the model file, choose a backend and make the plans.

    backend, file: replace the backend and the file of `options`. `file` is closed if planning
    fails.

    Raises a `ZincError` if the file is damaged or unsupported, or the options do not suit the model
    or the machine.
    """
    settings = options.settings
    lora = options.lora or tuple(AdapterOption(path) for path in settings.lora)
    options = replace(options, context=options.context or settings.context, lora=lora)
    if file is None:
        file = GGUFFile.open(resolve_model(options.path))
    adapters = NO_ADAPTERS
    try:
        if options.cache_folder is not None:
            from zinc.kv.disk import check_folder

            check_folder(options.cache_folder)
        file = with_nextn_beside(file, options.speculate)
        model = _open(file, options)
        adapters = open_adapters(options.lora, file, model.graphs[0].nodes)
        model = replace(model, adapters=adapters)
        return _with_drafts_that_fit(_plan_within(model, options, backend), model, options)
    except BaseException:
        file.close()
        adapters.close()
        raise


def _with_drafts_that_fit(
    planned: PlannedModel, model: OpenModel, options: LoadOptions
) -> PlannedModel:
    """Return `planned` with its draft model, or without speculative decoding if memory is short.

    planned: the plans of `model` with `options`, which may name a draft model.
    """
    if options.draft is not None:
        draft = _plan_draft(planned, options.draft)
        both = replace(planned, draft=draft)
        if options.speculate == "draft" or _has_room(both, "the draft model"):
            return both
        draft.close()
    if planned.options == options or _has_room(planned, "speculative decoding"):
        return planned
    plain = replace(options, speculate="off", draft=None)
    if planned.backend.split is not None:  # it keeps its division
        return _on_choice(_reopen(model, plain), plain, planned.choice)
    again = _plan_within(_reopen(model, plain), plain, planned.backend)
    return replace(again, choice=replace(again.choice, reason=planned.choice.reason))


def _has_room(planned: PlannedModel, part: str) -> bool:
    """Return whether a model fits in memory with the optional `part`."""
    try:
        planned.cache_size()
    except MemoryLimitError as error:
        log.warning("without %s: %s", part, error.what)
        return False
    return True


def _plan_draft(planned: PlannedModel, path: Path) -> PlannedModel:
    """Return the draft model in the file `path` for a planned model. Raises a `ZincError`."""
    options = draft_options(planned.options, path, planned.backend)
    file = GGUFFile.open(path)
    try:
        check_vocabulary(file, planned.file)
        return _plan(_open(file, options), options, None)
    except BaseException:
        file.close()
        raise


def _plan_within(model: OpenModel, options: LoadOptions, backend: Backend | None) -> PlannedModel:
    """Return the plans of a model, with a shorter context if the device lacks sparse attention.

    Up to `ModelSpec.dense_context` tokens, attention of such a model is dense. Raises
    UnsupportedError if the caller asked for more tokens than that.
    """
    try:
        return _plan(model, options, backend)
    except UnsupportedError as error:
        dense = model.spec.dense_context
        if not dense:
            raise
        why = f"attention over more than {dense:,} tokens is sparse, and {error.what}: {error.why}"
        if options.context is not None:
            raise UnsupportedError(
                f"a context of {options.context:,} tokens is not possible",
                why,
                f"choose {{context={dense}}} or less, or {{backend=cpu}}",
            ) from error
        options = replace(options, context=dense)
        planned = _plan(_reopen(model, options), options, backend)
    notes = [planned.choice.note] if planned.choice.note else []
    note = "; ".join([*notes, f"the context is {dense:,} tokens ({why})"])
    return replace(planned, choice=replace(planned.choice, note=note))


def _plan(model: OpenModel, options: LoadOptions, backend: Backend | None) -> PlannedModel:
    """Return the plans of a model on `backend`, or on the devices that the options choose.

    Raises a `ZincError`.
    """
    check_mode(options)
    reason = ""
    if model.spec.is_encoder:
        options = _encoder_options(model.spec, options)
    large, draft_bytes = _with_drafts(model, options), _draft_bytes(options)
    names = named_devices(options.backend_options)
    if backend is None and names:
        choice = divide_over(names, large, options, draft_bytes)
        options = with_larger_steps(options, choice.backend, large, draft_bytes)
        return _on_choice(model, options, choice)
    if backend is None and options.backend == "auto":
        selection = _select(large, options, draft_bytes)
        backend, reason = selection.backend, selection.reason
        is_gpu = backend.capabilities.kind is not BackendKind.CPU
        if not is_gpu and options.device_map is not None:
            options = replace(options, device_map=None)
            reason += "; layers cannot be put on a device"
        log.info("%s", reason)
        if is_gpu and options.device_map is None:  # `_select` found that the whole model fits
            whole = None if backend.available_bytes() is None else DeviceMap()
            return _on_choice(model, options, BackendChoice(backend, whole, reason=reason))
    if backend is None:
        backend = _create(options.backend, options)
    divided = divide(backend, lambda: _create("cpu", options), large, options, draft_bytes)
    return _on_choice(model, options, replace(divided, reason=reason))


def _select(model: OpenModel, options: LoadOptions, draft_bytes: DraftBytes) -> auto.Selection:
    """Return the device for backend="auto"."""

    def fits(device: Backend) -> bool:
        return fits_on(device, lambda: device, model, options, DeviceMap(), draft_bytes)

    machine = auto.this_machine(options.threads, options.backend_options)
    wanted = options.backend_options.get("device", "")
    # With a device map, the caller decides how much of the model goes to the device.
    return auto.select(machine, fits if options.device_map is None else None, wanted)


def _create(name: str, options: LoadOptions) -> Backend:
    return api.create(name, options.threads, options.backend_options)


def _on_choice(model: OpenModel, options: LoadOptions, choice: BackendChoice) -> PlannedModel:
    """Return the plans of a model on the chosen backend, with what its speculation needs."""
    check_drafts(options, choice.backend)
    if needs_nextn(options.speculate, model, choice.backend):
        options = replace(options, nextn=True)
        model = _reopen(model, options)
        if isinstance(choice.backend, SplitBackend):
            keep_parts(choice.backend, model)
    if needs_rollback(options, model.graphs[0], choice.backend):
        options = replace(options, rollback=MOST_RECURRENT_ROWS)
    return _planned(model, options, choice)


def _planned(model: OpenModel, options: LoadOptions, choice: BackendChoice) -> PlannedModel:
    """Return the plans of a model on the chosen backend."""
    if options.rollback:
        graphs = tuple(rollback_graph(graph, options.rollback) for graph in model.graphs)
        model = replace(model, graphs=graphs)
    rows = options.step_tokens if model.spec.is_encoder else None
    plans = tuple(
        plan_graph(graph, choice.backend, options, output_rows=rows) for graph in model.graphs
    )
    factors = model.adapters.factors
    adapted = tuple(
        plan_graph(graph, choice.backend, options, output_rows=rows, adapters=factors)
        for graph in model.graphs
        if factors
    )
    drafts = tuple(
        tuple(
            plan_graph(graph, choice.backend, options, output_rows=options.output_rows)
            for graph in blocks
        )
        for blocks in model.draft_graphs
    )
    default = "f16" if model.spec.is_encoder else choice.backend.capabilities.kv_dtype
    kv_dtype = resolve_kv_dtype(
        options.kv_dtype, default, states_of((*plans, *itertools.chain(*drafts)))
    )
    return PlannedModel(options, model, choice, plans, kv_dtype, adapted, drafts)


def _open(file: GGUFFile, options: LoadOptions) -> OpenModel:
    """Return the spec and the graphs of a model file."""
    rope, context = options.rope, options.context
    spec, graph = models.load(file, rope=rope, context=context, hidden=options.nextn)
    if context is not None:
        check_context(spec, context)
    graphs, lengths = [graph], [False]
    if 0 < spec.plain_context < (context or spec.context):
        lengths.append(True)
        graphs.append(
            models.load(file, rope=rope, context=context, extended=True, hidden=options.nextn)[1]
        )
    drafts: list[tuple[Graph, ...]] = []
    tokens: tuple[int, ...] = ()
    for extended in lengths if options.nextn else ():
        blocks, tokens = models.load_drafts(
            file, rope=rope, context=context, extended=extended, n_tokens=options.nextn_tokens
        )
        drafts.append(blocks)
    return OpenModel(file, spec, tuple(graphs), tuple(drafts), tokens)


def _reopen(model: OpenModel, options: LoadOptions) -> OpenModel:
    """Return the graphs of an open model with other options, and with its adapters."""
    return replace(_open(model.file, options), adapters=model.adapters)


def _encoder_options(spec: ModelSpec, options: LoadOptions) -> LoadOptions:
    """Return `options` for an encoder, whose steps must hold the longest text and return all rows.

    Raises RequestError for speculative decoding.
    """
    if demands_drafts(options) or options.draft is not None:
        raise RequestError(
            "an encoder cannot use speculative decoding",
            "it generates no text",
            "leave {speculate} and {draft} out",
        )
    longest = options.context or spec.context
    tokens = max(options.step_tokens, longest)
    return replace(
        options, batch_tokens=tokens, max_outputs=tokens, speculate="off", prefix_cache=False
    )


def _with_drafts(model: OpenModel, options: LoadOptions) -> OpenModel:
    """Return the model as it takes the most memory with the drafts that `options` demand.

    Drafts may need the NextN block, and recurrent states that can be rolled back.
    """
    if not demands_drafts(options):
        return model
    if options.speculate == "mtp":
        model = _reopen(model, replace(options, nextn=True))
    graphs = tuple(rollback_graph(graph, MOST_RECURRENT_ROWS) for graph in model.graphs)
    return replace(model, graphs=graphs)


def _draft_bytes(options: LoadOptions) -> DraftBytes:
    """Return the function that computes the bytes of a draft model, if `options` demand one."""
    if options.draft is None or not demands_drafts(options):
        return no_draft
    return _DraftMemory(options, options.draft)


class _DraftMemory:
    """The memory that the draft model in the file `path` takes; it is planned once per device."""

    def __init__(self, options: LoadOptions, path: Path) -> None:
        self._options, self._path = options, path
        # By device, with the bytes that it takes in addition to its cache.
        self._planned: dict[int, tuple[PlannedModel, int]] = {}

    def __call__(self, device: Backend, context: int) -> int:
        """Return the bytes that the draft model takes of `device`, for a model with `context`."""
        if id(device) not in self._planned:
            options = draft_options(self._options, self._path, device)
            model = _open(GGUFFile.open(self._path), options)
            with _planned(model, options, BackendChoice(device)) as draft:
                self._planned[id(device)] = draft, draft.budgets()[0].taken
        draft, taken = self._planned[id(device)]
        return taken + draft.draft_cache_bytes(context)
