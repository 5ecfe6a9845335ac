"""For all tests: their options; property tests take their time on a machine that is busy."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("zinc", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("zinc")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--every",
        action="store_true",
        help="also kernels that differ from others only in the format of their weights",
    )
