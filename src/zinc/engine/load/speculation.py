"""The choice of speculation for a model on a backend."""

from __future__ import annotations

import logging

from zinc import models
from zinc.backends.api import Backend
from zinc.backends.capabilities import BackendKind
from zinc.backends.plans import Plan
from zinc.core.errors import RequestError, UnsupportedError, ZincError
from zinc.engine.load.device_map import OpenModel
from zinc.engine.load.options import LoadOptions
from zinc.engine.speculative.draft_model import ModelDrafter
from zinc.engine.speculative.nextn import NextNDrafter
from zinc.engine.speculative.speculation import MOST_ROWS, Speculation
from zinc.engine.speculative.step_times import (
    BYTES_PER_FLOP,
    BYTES_PER_FLOP_OF_DEVICES,
    cost_of,
    estimate_of,
)
from zinc.formats.gguf import GGUFFile
from zinc.hub.variants import is_draft
from zinc.models.parts.nextn import MARK, join_nextn, nextn_tensors
from zinc.ops.graph import Graph
from zinc.ops.registry import OPS
from zinc.ops.values import RecurrentState

MODES = ("auto", "off", "suffix", "mtp", "draft")

log = logging.getLogger("zinc.loading")


def check_mode(options: LoadOptions) -> None:
    """Raise RequestError if `options.speculate` is unknown or does not fit `options.draft`."""
    mode = options.speculate
    if mode not in MODES:
        raise RequestError(
            f"there is no speculation mode {mode!r}", "", f"choose {', '.join(MODES)}"
        )
    if mode == "draft" and options.draft is None:
        raise RequestError("there is no draft model", "", "name one with {draft=MODEL}")
    if mode not in ("auto", "draft") and options.draft is not None:
        raise RequestError(
            f"the speculation mode {mode!r} uses no draft model",
            "",
            "leave {draft} or {speculate} out",
        )


def check_drafts(options: LoadOptions, backend: Backend) -> None:
    """Raise UnsupportedError if drafts of a draft model may change answers on `backend`.

    The mode "draft" accepts that.
    """
    if options.draft is not None and options.speculate == "auto" and not _keeps_tokens(backend):
        raise UnsupportedError(
            f"drafts may change answers on the backend {backend.name}",
            "near ties between tokens may depend on the rows of a step",
            "accept that with {speculate=draft}, use {batch_invariant}, or leave {draft} out",
        )


def demands_drafts(options: LoadOptions) -> bool:
    """Return whether `options` name a source of drafts, for which there must be memory.

    Without one, a model for which memory is short runs without drafts.
    """
    return options.speculate not in ("auto", "off")


def with_nextn_beside(file: GGUFFile, mode: str) -> GGUFFile:
    """Return `file` with the NextN blocks of a file `mtp-*.gguf` in its folder.

    mode: see `MODES`. Returns `file` itself if the mode does not draft with NextN blocks, if the
    file has its own, or if no `mtp-*.gguf` in the folder belongs to it. In the last case the mode
    "mtp" raises the ZincError that says why the smallest of these files does not belong to it.
    """
    if mode not in ("auto", "mtp") or any(name.endswith(MARK) for name in file.tensors):
        return file
    beside = [path for path in file.path.parent.glob("*.gguf") if is_draft(path.stem)]
    errors: list[ZincError] = []
    for path in sorted(beside, key=lambda path: path.stat().st_size):
        try:
            return join_nextn(file, GGUFFile.open(path))
        except ZincError as error:  # a folder may hold the files of several models
            log.info("%s", error)
            errors.append(error)
    if mode == "mtp" and errors:
        raise errors[0]
    return file


def needs_nextn(mode: str, model: OpenModel, backend: Backend) -> bool:
    """Return whether the NextN block of `model` is to be loaded.

    mode: see `MODES`. "auto" loads a block that drafts tokens on `backend` without changing the
    answer. Raises UnsupportedError if `mode` asks for a block, and the file has none or `backend`
    cannot run it; ModelError if the block is damaged.
    """
    if mode not in ("auto", "mtp"):
        return False
    if mode == "auto" and not (_keeps_tokens(backend) and nextn_tensors(model.file, model.spec)):
        return False
    if backend.capabilities.host_rows:
        if mode == "mtp":
            models.load_drafts(model.file)
            return True
        try:
            models.load_drafts(model.file)
        except ZincError as error:
            log.warning("%s", error)
        else:
            return True
    elif mode == "mtp":
        raise UnsupportedError(
            f"the backend {backend.name} cannot draft tokens with a NextN block",
            "its programs do not exchange hidden rows with the host",
            "leave {speculate} out, or choose another backend with {backend}",
        )
    return False


def needs_rollback(options: LoadOptions, graph: Graph, backend: Backend) -> bool:
    """Return whether the recurrent states of `graph` must support rollback.

    Raises UnsupportedError if `options` ask for drafts that `backend` cannot verify.
    """
    mode = options.speculate if options.draft is None else "draft"
    if all(OPS[node.op].rollback is None for node in graph.nodes):
        return False
    if mode == "auto":
        return _keeps_tokens(backend) and backend.capabilities.rollback
    if mode != "off" and not backend.capabilities.rollback:
        raise UnsupportedError(
            f"the backend {backend.name} cannot verify drafts of this model",
            "it cannot roll back the states of recurrent layers",
            "leave {speculate} and {draft} out, or choose another backend with {backend}",
        )
    return mode != "off"


def choose_speculation(
    options: LoadOptions,
    plan: Plan,
    backend: Backend,
    nextn: NextNDrafter | None = None,
    model: ModelDrafter | None = None,
) -> Speculation | None:
    """Return the speculation for `plan`, or None.

    nextn, model: the drafters with the model's NextN block and with a draft model, if these are
    loaded. "auto" speculates where an answer keeps its tokens: on batch-invariant backends.
    """
    mode = options.speculate
    if mode == "off" or (mode == "auto" and not _keeps_tokens(backend)):
        return None
    if not options.rollback and any(isinstance(s, RecurrentState) for s in plan.states):
        return None
    on_device = backend.capabilities.kind is BackendKind.DEVICE
    rate = BYTES_PER_FLOP_OF_DEVICES if on_device else BYTES_PER_FLOP
    found = Speculation(estimate_of(plan, rate), nextn, options.rollback or MOST_ROWS)
    if model is not None:
        step, most = cost_of(plan, rate)(1), model.plan.max_tokens
        cost = cost_of(model.plan, rate)
        found.add_model(model, cost(1) / step, cost(most) / most / step)
    return found


def _keeps_tokens(backend: Backend) -> bool:
    return backend.capabilities.batch_invariant and backend.capabilities.is_fast
