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
from zinc.engine.speculative.nextn import NextNDrafter
from zinc.engine.speculative.speculation import MOST_ROWS, Speculation
from zinc.engine.speculative.step_times import (
    BYTES_PER_FLOP,
    BYTES_PER_FLOP_OF_DEVICES,
    estimate_of,
)
from zinc.models.parts.nextn import nextn_tensors
from zinc.ops.graph import Graph
from zinc.ops.registry import OPS
from zinc.ops.values import RecurrentState

MODES = ("auto", "off", "suffix", "mtp")

log = logging.getLogger("zinc.loading")


def check_mode(mode: str) -> None:
    """Raise RequestError if there is no speculation `mode`."""
    if mode not in MODES:
        raise RequestError(f"there is no speculation {mode!r}", "", f"choose {', '.join(MODES)}")


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
            models.load_draft(model.file)
            return True
        try:
            models.load_draft(model.file)
        except ZincError as error:
            log.info("%s", error)
        else:
            return True
    elif mode == "mtp":
        raise UnsupportedError(
            f"the backend {backend.name} cannot draft tokens with a NextN block",
            "it runs such blocks on the CPU only",
            "leave {speculate} out, or choose another backend with {backend}",
        )
    return False


def needs_rollback(mode: str, graph: Graph, backend: Backend) -> bool:
    """Return whether the recurrent states of `graph` must be such that they can be set back.

    mode: see `MODES`. Raises UnsupportedError if it asks for drafts that `backend` cannot verify.
    """
    if all(OPS[node.op].rollback is None for node in graph.nodes):
        return False
    if mode == "auto":
        return _keeps_tokens(backend) and backend.capabilities.rollback
    if mode != "off" and not backend.capabilities.rollback:
        raise UnsupportedError(
            f"the backend {backend.name} cannot verify drafts of this model",
            "it cannot set the states of recurrent layers back",
            "leave {speculate} out, or choose another backend with {backend}",
        )
    return mode != "off"


def choose_speculation(
    options: LoadOptions, plan: Plan, backend: Backend, nextn: NextNDrafter | None = None
) -> Speculation | None:
    """Return the speculation for `plan`, or None.

    nextn: the drafter with the model's NextN block, if that is loaded. "auto" speculates where an
    answer keeps its tokens: on backends that are batch-invariant.
    """
    mode = options.speculate
    if mode == "off" or (mode == "auto" and not _keeps_tokens(backend)):
        return None
    if not options.rollback and any(isinstance(s, RecurrentState) for s in plan.states):
        return None
    on_device = backend.capabilities.kind is BackendKind.DEVICE
    rate = BYTES_PER_FLOP_OF_DEVICES if on_device else BYTES_PER_FLOP
    return Speculation(estimate_of(plan, rate), nextn, options.rollback or MOST_ROWS)


def _keeps_tokens(backend: Backend) -> bool:
    return backend.capabilities.batch_invariant and backend.capabilities.is_fast
