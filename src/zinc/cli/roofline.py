"""A backend's measured limits: read bandwidth and int8 arithmetic, with progress on a terminal.

Decode cannot be faster than its weights can be read; prefill cannot be faster than its products
can be computed. `zinc bench` shows speeds as a share of these limits.
"""

from __future__ import annotations

from zinc.backends.api import Backend
from zinc.backends.capabilities import Roofline
from zinc.core.progress import ProgressBar


def measure_visibly(backend: Backend) -> Roofline | None:
    """Measure the limits of the backend's device; None for a backend without any."""
    with ProgressBar("measuring memory and arithmetic", delay_s=0) as progress:
        progress(0, 0)
        return backend.measure()
