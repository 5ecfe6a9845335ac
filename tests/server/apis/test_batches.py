"""/v1/files and /v1/batches with the official client, and over restarts of the server."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types import Batch
from serving import LOAD, PATIENCE_S, Brake, Running, running, wait_for

import zinc
from zinc.core.errors import RequestError
from zinc.server.batch.store import BatchStore

pytest.importorskip("python_multipart")

SOURCE = Path(zinc.__file__).parent.parent
CHAT = "/v1/chat/completions"
BOUNDARY = "xyz"


def client_of(server: Running | str, key: str = "none") -> OpenAI:
    url = server if isinstance(server, str) else server.url
    return OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


def row(number: int, **body: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"Tell me a story of {number} foxes."}]
    body = {"messages": messages, "temperature": 0, "max_tokens": 8, **body}
    return {"custom_id": f"row-{number}", "method": "POST", "url": CHAT, "body": body}


def jsonl(rows: list[Any]) -> bytes:
    texts = (each if isinstance(each, str) else json.dumps(each) for each in rows)
    return "".join(f"{text}\n" for text in texts).encode()


def create(client: OpenAI, rows: list[Any], **more: Any) -> Batch:
    file = client.files.create(file=("in.jsonl", jsonl(rows)), purpose="batch")
    return client.batches.create(
        input_file_id=file.id, endpoint=CHAT, completion_window="24h", **more
    )


def until(client: OpenAI, batch: Batch, done: Callable[[Batch], bool]) -> Batch:
    found = batch
    deadline = time.monotonic() + PATIENCE_S
    while not done(found) and time.monotonic() < deadline:
        time.sleep(0.02)
        found = client.batches.retrieve(batch.id)
    assert done(found), found
    return found


def n_completed(batch: Batch) -> int:
    return batch.request_counts.completed if batch.request_counts else 0


def error_code(batch: Batch) -> str | None:
    assert batch.errors is not None
    (error,) = batch.errors.data or []
    return error.code


def has_ended(batch: Batch) -> bool:
    return batch.status in ("completed", "failed", "cancelled")


def lines(client: OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    assert file_id is not None
    return [json.loads(line) for line in client.files.content(file_id).text.splitlines()]


@pytest.fixture(scope="module")
def keeping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server that keeps files and batches."""
    with running(batch_dir=tmp_path_factory.mktemp("batches")) as found:
        yield found


def test_files(keeping: Running):
    client = client_of(keeping)
    data = jsonl([row(0)]) * 5000  # many chunks
    first = client.files.create(file=("a é.jsonl", data), purpose="batch")
    second = client.files.create(file=("b.jsonl", b""), purpose="batch")
    assert (first.bytes, first.filename, first.purpose) == (len(data), "a é.jsonl", "batch")
    assert (first.object, first.status) == ("file", "processed")
    assert client.files.retrieve(first.id) == first
    assert client.files.content(first.id).content == data
    assert [each.id for each in client.files.list()][:2] == [second.id, first.id]
    assert next(iter(client.files.list(limit=1, after=second.id))).id == first.id
    assert list(client.files.list(purpose="vision")) == []
    for each in (first, second):
        assert client.files.delete(each.id).deleted
        with pytest.raises(openai.NotFoundError):
            client.files.retrieve(each.id)
    with pytest.raises(openai.BadRequestError, match="purpose"):
        client.files.create(file=("a", b""), purpose="vision")
    expiry: Any = {"anchor": "created_at", "seconds": 3600}
    with pytest.raises(openai.BadRequestError, match="expires_after"):
        client.files.create(file=("a", b""), purpose="batch", expires_after=expiry)
    assert keeping.application._batches is not None
    assert keeping.application._batches.used_bytes == sum(f.bytes for f in client.files.list())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nonsense",
        f"--{BOUNDARY}\r\n".encode(),
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        f"--{BOUNDARY}--\r\n".encode(),
        b'--xyz\r\nContent-Disposition: form-data; name="file"; filename="../../a"\r\n\r\n1\r\n'
        b'--xyz\r\nContent-Disposition: form-data; name="file"; filename="b"\r\n\r\n1\r\n--xyz--',
        b'--xyz\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n' + b"x" * 9000,
        b'--xyz\r\nContent-Disposition: form-data; name="a"\r\n\r\nb\r\n' * 40 + b"--xyz--",
    ],
)
def test_wrong_forms_are_refused_and_leave_nothing(keeping: Running, body: bytes):
    store = keeping.application._batches
    assert store is not None
    folder = store.content_path("file").parent
    before = sorted(folder.iterdir())
    headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    answer = keeping.post("/v1/files", body, headers=headers)
    assert answer.status == 400
    assert "error" in answer.json
    assert sorted(folder.iterdir()) == before


def test_a_batch(keeping: Running):
    client = client_of(keeping)
    good = [row(i) for i in range(20)]
    bad = ["nonsense", row(0), row(20, temperature="hot"), {**row(21), "url": "/v1/completions"}]
    batch = create(client, [*good, *bad], metadata={"a": "b"})
    assert batch.status in ("validating", "in_progress")
    assert (batch.endpoint, batch.completion_window, batch.metadata) == (CHAT, "24h", {"a": "b"})
    ended = until(client, batch, has_ended)
    assert ended.status == "completed"
    assert ended.request_counts is not None
    assert ended.request_counts.to_dict() == {"total": 24, "completed": 20, "failed": 4}
    assert None not in (ended.in_progress_at, ended.finalizing_at, ended.completed_at)
    assert ended.errors is None
    answers = {each["custom_id"]: each["response"] for each in lines(client, ended.output_file_id)}
    assert len(answers) == 20
    for each in good[:3]:
        expected = keeping.post(CHAT, each["body"]).json["choices"]
        assert answers[each["custom_id"]]["body"]["choices"] == expected
    errors = lines(client, ended.error_file_id)
    assert sorted(str(each["custom_id"]) for each in errors) == ["None", "None", "row-20", "row-21"]
    assert client.files.retrieve(ended.output_file_id or "").purpose == "batch_output"
    assert next(iter(client.batches.list(limit=1))).id == batch.id
    with pytest.raises(openai.ConflictError):
        client.batches.cancel(batch.id)
    keeping.wait_idle()


def test_wrong_batches(keeping: Running):
    client = client_of(keeping)
    with pytest.raises(openai.BadRequestError, match="no file"):
        client.batches.create(input_file_id="file-1", endpoint=CHAT, completion_window="24h")
    with pytest.raises(openai.NotFoundError):
        client.batches.retrieve("batch_1")
    ended = until(client, create(client, ["", "  "]), has_ended)
    assert (ended.status, ended.output_file_id, ended.error_file_id) == ("failed", None, None)
    assert error_code(ended) == "empty_file"


def test_a_cancelled_batch_keeps_its_answers(keeping: Running, brake: Brake):
    brake.hold(60)  # enough for the first rows
    client = client_of(keeping)
    batch = create(client, [row(i, max_tokens=30) for i in range(400)])
    behind = create(client, [row(0)])
    found = until(client, batch, lambda b: n_completed(b) > 0)
    assert found.status == "in_progress"
    with pytest.raises(openai.ConflictError, match="in use"):
        client.files.delete(batch.input_file_id)
    assert client.batches.cancel(behind.id).status == "cancelling"
    assert client.batches.cancel(batch.id).status == "cancelling"
    brake.release()
    ended = until(client, batch, has_ended)
    assert (ended.status, ended.error_file_id) == ("cancelled", None)
    assert ended.request_counts is not None
    n_done = ended.request_counts.completed
    assert 0 < n_done < 400
    assert len(lines(client, ended.output_file_id)) == n_done
    ended = until(client, behind, has_ended)
    assert (ended.status, ended.output_file_id) == ("cancelled", None)
    client.files.delete(batch.input_file_id)
    keeping.wait_idle()


def test_rows_wait_for_other_requests(keeping: Running, brake: Brake):
    """Rows have the lowest priority, whatever their body asks for."""
    brake.hold()
    client = client_of(keeping)
    batch = create(client, [row(0, priority=50), row(1)])
    pool = keeping.application.pool
    assert pool is not None
    wait_for(lambda: keeping.live() == 2)
    jobs = keeping.call(
        lambda: [g.job.priority for m in pool.loaded for g in m.runner._generations]
    )
    assert jobs == [-100, -100]
    brake.release()
    assert until(client, batch, has_ended).status == "completed"


def test_a_batch_goes_on_after_restarts(tmp_path: Path):
    """Servers are killed while the batch runs; the last one answers the rest."""
    batch, n_rows = None, 120
    for attempt in range(2):
        with killed_server(tmp_path) as url:
            client = client_of(url)
            if batch is None:
                batch = create(client, [row(i, max_tokens=16) for i in range(n_rows)])
            wanted = 10 * (attempt + 1)
            found = until(client, batch, lambda b, wanted=wanted: n_completed(b) >= wanted)
            assert not has_ended(found)
    assert batch is not None
    with running(batch_dir=tmp_path) as server:
        client = client_of(server)
        ended = until(client, batch, has_ended)
        assert ended.status == "completed"
        found_ids = [each["custom_id"] for each in lines(client, ended.output_file_id)]
        assert sorted(found_ids) == sorted(f"row-{i}" for i in range(n_rows))
        assert ended.error_file_id is None
        with pytest.raises(RequestError, match="in use"):
            BatchStore(tmp_path, 1)
        assert list((tmp_path / "batches").glob("*.jsonl")) == []


def test_a_batch_goes_on_after_a_graceful_restart(tmp_path: Path, brake: Brake):
    with running(batch_dir=tmp_path, grace_s=0.1) as server:
        batch = create(client_of(server), [row(i) for i in range(30)])
        brake.hold(12)
        wait_for(lambda: server.live() > 0)
        brake.release()
    with running(batch_dir=tmp_path) as server:
        client = client_of(server)
        ended = until(client, batch, has_ended)
        assert ended.request_counts is not None
        assert (ended.status, ended.request_counts.completed) == ("completed", 30)
        assert len(lines(client, ended.output_file_id)) == 30


def test_files_and_batches_belong_to_keys(tmp_path: Path):
    with running(batch_dir=tmp_path, api_keys=("one", "two")) as server:
        client, other = client_of(server, "one"), client_of(server, "two")
        batch = until(client, create(client, [row(0)]), has_ended)
        assert batch.status == "completed"
        assert list(other.batches.list()) == list(other.files.list()) == []
        for call in (other.batches.retrieve, other.batches.cancel):
            with pytest.raises(openai.NotFoundError):
                call(batch.id)
        for read in (other.files.retrieve, other.files.content, other.files.delete):
            with pytest.raises(openai.NotFoundError):
                read(batch.output_file_id or "")
        with pytest.raises(openai.BadRequestError):
            other.batches.create(
                input_file_id=batch.input_file_id, endpoint=CHAT, completion_window="24h"
            )
    texts = b"".join(path.read_bytes() for path in tmp_path.rglob("*.json"))
    assert b'"one"' not in texts


def test_the_folder_has_a_limit(tmp_path: Path):
    data = jsonl([row(i) for i in range(20)])
    with running(batch_dir=tmp_path, batch_bytes=len(data) + 2000) as server:
        client = client_of(server)
        batch = until(client, create(client, [row(i) for i in range(20)]), has_ended)
        assert batch.status == "failed"
        assert error_code(batch) == "storage_full"
        n_done = len(lines(client, batch.output_file_id))
        assert 0 < n_done < 20
        with pytest.raises(openai.APIStatusError) as caught:
            client.files.create(file=("a", data), purpose="batch")
        assert caught.value.status_code == 413
        assert caught.value.code == "storage_full"


def test_uploads_share_the_limit(tmp_path: Path):
    """The bytes of an unfinished upload count for the others."""
    head = b'--xyz\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    with running(batch_dir=tmp_path, batch_bytes=100_000) as server:
        store = server.application._batches
        assert store is not None
        with server.connect() as connection:
            connection.sendall(
                b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90000\r\n"
                b"Content-Type: multipart/form-data; boundary=xyz\r\n\r\n" + head + b"x" * 80_000
            )
            wait_for(lambda: store.used_bytes > 70_000)
            with pytest.raises(openai.APIStatusError, match="too large"):
                client_of(server).files.create(file=("b", b"y" * 40_000), purpose="batch")
        wait_for(lambda: store.used_bytes == 0)
        client_of(server).files.create(file=("b", b"y" * 40_000), purpose="batch")


def test_a_server_without_a_folder_says_so(server: Running):
    for answer in (
        server.get("/v1/files"),
        server.post("/v1/batches", {}),
        server.post("/v1/files", b""),
        server.get("/v1/batches/batch_1"),
    ):
        assert answer.status == 501
        assert "--batch-dir" in answer.json["error"]["message"]


def test_a_folder_that_cannot_be_used():
    with pytest.raises(RequestError, match="cannot be kept in"):
        BatchStore(Path("/dev/null/batches"), 1)


# At most 25 of the rows, which are answered by four, end within these steps, however late the
# server is killed.
PAUSING = """
import sys, time
from zinc.cli.main import main
from zinc.engine.engine import Engine

step, n_left = Engine.step, 180  # enough for 10 rows one after another, too few for half the batch

def paused(engine):
    global n_left
    if not n_left:
        time.sleep(600)
    n_left -= 1
    return step(engine)

Engine.step = paused
sys.exit(main(sys.argv[1:]))
"""


@contextlib.contextmanager
def killed_server(folder: Path) -> Iterator[str]:
    """Run a server in another process, and kill it at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", PAUSING, "serve", "--port", "0", "--backend", LOAD.backend,
         "--threads", "2", "--speculate", "off", "--batch-dir", str(folder),
         "--batch-in-flight", "4"],
        stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), *sys.path])},
    )  # fmt: skip
    assert process.stderr is not None
    try:
        url = next(line.split()[-1] for line in process.stderr if "serving on" in line)
        # A server whose log nobody reads stops when the pipe is full.
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield url
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
