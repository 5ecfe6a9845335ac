"""Tests of batches over a dataset: with a dataset of this process, and with Ray Data."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from present import of_embedded_model

from zinc.cluster import batch
from zinc.core.errors import RequestError


class Rows:
    """A dataset with the methods of Ray Data that batches use."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def filter(self, keep: Callable[[dict[str, Any]], bool]) -> Rows:
        return Rows([row for row in self.rows if keep(row)])

    def map_batches(
        self, kind: Any, fn_constructor_args: tuple[Any, ...], batch_size: int, **ray: Any
    ) -> Rows:
        found, answer = [], kind(*fn_constructor_args)
        for start in range(0, len(self.rows), batch_size):
            part = self.rows[start : start + batch_size]
            columns = answer({name: [row[name] for row in part] for name in part[0]})
            found += [
                dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
            ]
        return Rows(found)

    def iter_rows(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)


def text(custom_id: str | None, **body: Any) -> str:
    """Return a line of an input."""
    row = {"custom_id": custom_id, "method": "POST", "url": "/v1/completions"}
    return json.dumps(
        {**row, "body": {"prompt": "Once", "max_tokens": 3, "temperature": 0, **body}}
    )


OPTIONS = {"backend": of_embedded_model()}


def output(path: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_row_is_answered_once_and_a_later_run_goes_on(monkeypatch, tmp_path):
    monkeypatch.setattr("zinc.cluster.batches.check_ray", lambda: None)
    path = tmp_path / "out.jsonl"
    lines = [text(f"row {i}") for i in range(5)] + [
        text("bad", temperature=-5),
        text("row 0"),
        "  ",
    ]
    first = batch(Rows([{"text": line} for line in lines[:3]]), path, options=OPTIONS, in_flight=2)
    assert (first.done, first.failed, first.repeated) == (3, 0, 0)
    whole = Rows([{"text": line} for line in lines])
    again = batch(whole, path, options=OPTIONS, in_flight=4)
    assert (again.done, again.failed, again.repeated) == (6, 1, 0)
    found = output(path)
    assert sorted(row["custom_id"] for row in found) == ["bad", *(f"row {i}" for i in range(5))]
    texts = {
        row["response"]["body"]["choices"][0]["text"] for row in found if row["custom_id"] != "bad"
    }
    assert len(texts) == 1
    retried = batch(whole, path, options=OPTIONS, retry_failed=True)
    assert (retried.done, retried.failed) == (6, 1)
    assert len(output(path)) == 6


def test_a_row_without_an_id_and_a_repeated_one(monkeypatch, tmp_path):
    monkeypatch.setattr("zinc.cluster.batches.check_ray", lambda: None)
    lines = [text("a"), text("a"), text(None)]
    rows = Rows([{"text": line} for line in lines])
    with pytest.raises(RequestError, match="has no usable custom_id"):
        batch(rows, tmp_path / "out", options=OPTIONS)
    assert len(output(tmp_path / "out")) == 1
    rows.rows.pop()
    found = batch(Rows([{"text": text("b")}, {"text": text("b")}]), tmp_path / "b", options=OPTIONS)
    assert (found.done, found.repeated) == (1, 1)


@pytest.mark.every
@pytest.mark.filterwarnings("default")
def test_a_batch_over_ray_data(tmp_path):
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    data = pytest.importorskip("ray.data", reason="Ray Data is not installed")
    ray.init("local", num_cpus=2, object_store_memory=100_000_000, include_dashboard=False)
    try:
        source = tmp_path / "in.jsonl"
        source.write_text("".join(text(f"row {i}") + "\n" for i in range(40)))
        rows = data.read_text(str(source))
        path = tmp_path / "out.jsonl"
        found = batch(rows, path, replicas=1, options=OPTIONS)
        assert (found.done, found.failed, found.repeated) == (40, 0, 0)
        assert batch(rows, path, replicas=1, options=OPTIONS).done == 40
        assert len({row["custom_id"] for row in output(path)}) == len(output(path)) == 40
    finally:
        ray.shutdown()


@pytest.mark.every
def test_killed_drivers_answer_each_row_once(ray_address, ray_environment):
    script = Path(__file__).parents[2] / "benchmarks" / "batch_kills.py"
    words = ["--rows", "300", "--kills", "2", "--kinds", "ray", "--replicas", "1"]
    done = subprocess.run(
        [sys.executable, str(script), *words, "--address", ray_address],
        env=ray_environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
