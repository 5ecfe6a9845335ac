"""Execution of a test case of an op on a backend."""

from __future__ import annotations

import numpy as np

from zinc.backends.api import Backend
from zinc.engine.load.self_test import BLOCK_TOKENS, bind_case
from zinc.ops.cases import Case
from zinc.plan.planner import make_plan


def run(backend: Backend, case: Case) -> np.ndarray:
    """Return the output of the case on `backend`."""
    assert case.graph.output is not None
    n = case.max_tokens
    plan = make_plan(case.graph, backend, max_tokens=n, max_outputs=n)
    step = case.step(BLOCK_TOKENS)
    return np.array(bind_case(backend, case, plan, step).step(step))
