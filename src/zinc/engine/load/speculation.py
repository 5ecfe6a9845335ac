"""The choice of speculation for a model on a backend."""

from __future__ import annotations

from typing import TypeAlias

from zinc.backends.api import Backend
from zinc.backends.capabilities import BackendKind
from zinc.backends.plans import Plan
from zinc.core.errors import RequestError
from zinc.engine.speculative.speculation import Speculation
from zinc.engine.speculative.step_times import (
    BYTES_PER_FLOP,
    BYTES_PER_FLOP_OF_DEVICES,
    estimate_of,
)
from zinc.ops.values import RecurrentState

Mode: TypeAlias = str
MODES: tuple[Mode, ...] = ("auto", "off", "suffix")


def check_mode(mode: Mode) -> None:
    """Raise RequestError if there is no such mode."""
    if mode not in MODES:
        raise RequestError(f"there is no speculation {mode!r}", "", f"choose {', '.join(MODES)}")


def choose_speculation(mode: Mode, plan: Plan, backend: Backend) -> Speculation | None:
    """Return the speculation for `plan`, or None.

    "auto" speculates where the answer keeps its tokens, on backends that are batch-invariant.
    """
    check_mode(mode)
    kind = backend.capabilities.kind
    if mode == "off" or (mode == "auto" and not _keeps_tokens(backend)):
        return None
    if any(isinstance(state, RecurrentState) for state in plan.states):
        return None
    on_host = kind is not BackendKind.DEVICE
    return Speculation(estimate_of(plan, BYTES_PER_FLOP if on_host else BYTES_PER_FLOP_OF_DEVICES))


def _keeps_tokens(backend: Backend) -> bool:
    return backend.capabilities.batch_invariant and backend.capabilities.is_fast
