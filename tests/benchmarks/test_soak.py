"""A short run of benchmarks/soak.py: malformed requests leave a server healthy."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import pytest
import soak


@pytest.mark.every  # tests/security/test_hostile_connections.py sends such requests, too
def test_server_survives_malformed_and_interrupted_requests(monkeypatch):
    monkeypatch.setattr(soak, "PATIENCE_S", 300.0)
    report = asyncio.run(soak.soak(250, threads=2, seed=2))
    assert report["wrong"] == []
    assert (report["health"], report["exit_status"]) == ("200", 0)
    assert report["left"]["blocks_held"] == report["left"]["running"] == 0
    assert report["left"]["open_files"] <= 1
    assert {"200", "400"} <= set(report["statuses"])
