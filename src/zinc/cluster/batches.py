"""Batches over Ray Data: the rows of `zinc batch`, answered by engines on many machines.

The driver appends answers to a journal, the output file, as `zinc batch` does. A run that was
interrupted or killed continues with the rows that the file lacks.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zinc.cluster.options import ClusterOptions
from zinc.cluster.ray_version import check_ray
from zinc.cluster.replica import Replica
from zinc.core.dataclass import dataclass
from zinc.core.errors import RequestError
from zinc.server.batch import rows
from zinc.server.batch.journal import Journal, digest
from zinc.server.batch.rows import Row, RowError
from zinc.server.batch.run import answered
from zinc.server.http import in_process

_MAX_QUEUE = 1 << 16  # requests that wait in an engine; rows of a batch are never refused


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The result of a batch: rows in the output, how many of them failed, and repeated ids."""

    done: int
    failed: int
    repeated: int


def batch(
    dataset: Any,
    output: str | Path,
    models: Sequence[str] = (),
    *,
    replicas: int = 1,
    cpus: float = 1.0,
    gpus: float = 0.0,
    in_flight: int = 16,
    retry_failed: bool = False,
    options: Mapping[str, Any] | None = None,
) -> BatchResult:
    """Answer the rows of a Ray dataset, and append the answers to the file `output`.

    dataset: has a column `text` with the lines of an input of `zinc batch`, as `ray.data.read_text`
        gives them. Each row needs a `custom_id` of its own.
    output: lines as of `zinc batch`; rows that it already has are skipped.
    models: as of `zinc serve`; the embedded model if there is none.
    replicas, cpus, gpus: number of engines, and the share of a machine that each takes.
    in_flight: rows that an engine runs at a time.
    retry_failed: remove the errors from the output, and run their rows again.
    options: options of `zinc serve` by the names of their variables, such as {"context": 8192}.

    Raises UnsupportedError without Ray, RequestError for a row without a custom_id, and the error
    of Ray if an engine cannot start.
    """
    check_ray()
    for name, value in (("replicas", replicas), ("in_flight", in_flight)):
        if value < 1:
            raise RequestError(f"{name} is {value}", "it must be at least 1", f"write {name}=1")
    serve = {**(options or {}), "models": list(models), "max_waiting": _MAX_QUEUE}
    cluster = ClusterOptions(serve=serve, replicas=replicas, cpus=cpus, gpus=gpus)
    n_repeated = 0
    with Journal(Path(output), retry_failed) as journal:
        is_missing = _Missing(journal.ids)
        answers = dataset.filter(is_missing).map_batches(
            Answers,
            fn_constructor_args=(cluster.changed(),),
            batch_size=in_flight,
            concurrency=replicas,
            num_cpus=cpus,
            num_gpus=gpus or None,
        )
        seen: set[bytes] = set()
        n_failed = journal.n_failed
        for answer in answers.iter_rows():
            if not answer["custom_id"]:
                raise RequestError(
                    "a row of the batch has no usable custom_id",
                    answer["line"][:200],
                    "give each row a custom_id of its own",
                )
            key = digest(answer["custom_id"])
            if key in seen:
                n_repeated += 1
                continue
            seen.add(key)
            journal.append(answer["line"].encode())
            n_failed += answer["failed"]
        return BatchResult(journal.n_done + len(seen), n_failed, n_repeated)


class _Missing:
    """Filter for rows that the output lacks. done: digests of custom ids."""

    def __init__(self, done: frozenset[bytes]) -> None:
        self._done = done

    def __call__(self, row: Mapping[str, Any]) -> bool:
        if not row["text"].strip():
            return False
        try:
            custom_id = rows.parse_row(row["text"].encode()).custom_id
        except RowError as error:
            custom_id = error.custom_id
        return not custom_id or digest(custom_id) not in self._done


class Answers:
    """An engine that answers rows, in an event loop of its own.

    options: see `ClusterOptions`. Raises a ZincError if the model cannot be loaded.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="zinc-batch", daemon=True).start()
        self._replica = Replica("batch", ClusterOptions.of(options).server_config())
        asyncio.run_coroutine_threadsafe(self._replica.start(), self._loop).result()

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[Any]]:
        """Return the output lines of the rows in the column `text`."""
        texts = [str(text) for text in batch["text"]]
        future = asyncio.run_coroutine_threadsafe(self._answer_all(texts), self._loop)
        found = future.result()
        return {
            "custom_id": [custom_id for custom_id, _, _ in found],
            "line": [line for _, line, _ in found],
            "failed": [failed for _, _, failed in found],
        }

    async def _answer_all(self, texts: list[str]) -> list[tuple[str, str, bool]]:
        return await asyncio.gather(*(self._answer(text) for text in texts))

    async def _answer(self, text: str) -> tuple[str, str, bool]:
        """Return the custom id, the output line, and whether the row failed."""
        try:
            row = rows.parse_row(text.encode())
        except RowError as error:
            if not error.custom_id:
                return "", error.error.message, True
            return error.custom_id, rows.error_line(error.custom_id, 0, error.error).decode(), True
        reply = await answered(row, self._send)
        return row.custom_id, rows.answer_line(row.custom_id, reply).decode(), reply.status != 200

    async def _send(self, row: Row) -> in_process.Reply:
        return await in_process.post(self._replica.in_process, row.url, row.body)
