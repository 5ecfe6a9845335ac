"""`zinc batch`: every row exactly once, whatever happens, and the server's own answers."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from effort import EVERY
from serving import LOAD, PATIENCE_S, Running

import zinc
from zinc.cli.main import main
from zinc.core.errors import RequestError
from zinc.server.batch import rows
from zinc.server.batch.journal import Journal
from zinc.server.http.in_process import Reply

SOURCE = Path(zinc.__file__).parent.parent
OPTIONS = ("--backend", LOAD.backend, "--threads", "2", "--speculate", "off")
CHAT, TEXT, EMBED = rows.URLS


def row(custom_id: str, url: str, **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def story(number: int, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"Tell me a story of {number} foxes."}]
    return row(f"row-{number}", CHAT, **{"messages": messages, "temperature": 0, **more})


def write(path: Path, lines: list[Any]) -> Path:
    """Write JSON lines; texts are written as they are."""
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("".join(f"{text}\n" for text in texts))
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def batch(*argv: object) -> int:
    return main(["batch", *OPTIONS, *map(str, argv)])


PAUSING = """
import sys, time
from zinc.cli.main import main
from zinc.server.batch.journal import Journal

append, n_left = Journal.append, int(sys.argv.pop(1))

def paused(*arguments):
    global n_left
    if not n_left:
        time.sleep(600)
    n_left -= 1
    append(*arguments)

Journal.append = paused
sys.exit(main(sys.argv[1:]))
"""


def begin(*argv: object, n_rows: int) -> subprocess.Popen[str]:
    """Start a batch that pauses after some rows, so that a signal may come late.

    It starts as from a terminal: a process that a shell starts with `&` ignores SIGINT.
    """
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # children get the default
    try:
        return _begin(n_rows, *argv)
    finally:
        signal.signal(signal.SIGINT, handler)


def _begin(n_rows: int, *argv: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PAUSING, str(n_rows), "batch", *OPTIONS, *map(str, argv)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )  # fmt: skip


def wait_for_growth(path: Path, process: subprocess.Popen[str], n_bytes: int) -> None:
    """Wait until a file has grown by `n_bytes`, or the process that writes it has ended."""
    start = path.stat().st_size if path.exists() else 0
    until = time.monotonic() + PATIENCE_S
    while process.poll() is None and time.monotonic() < until:
        if path.exists() and path.stat().st_size >= start + n_bytes:
            return
        time.sleep(0.001)


def test_killed_runs_answer_every_row_once(tmp_path: Path):
    n_rows, n_runs = (300, 4) if EVERY else (60, 1)
    source = write(tmp_path / "in.jsonl", [story(i, max_tokens=16) for i in range(n_rows)])
    output, chance = tmp_path / "out.jsonl", random.Random(5)
    for _ in range(n_runs):
        process = begin(source, output, n_rows=n_rows * 9 // 10 // n_runs)
        wait_for_growth(output, process, chance.randrange(1, n_rows * 130))
        time.sleep(chance.random() / 50)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    assert batch(source, output) == 0
    found = read(output)
    assert sorted(each["custom_id"] for each in found) == sorted(f"row-{i}" for i in range(n_rows))
    assert all(each["response"]["status_code"] == 200 for each in found)


def test_answers_are_those_of_the_server(tmp_path: Path, server: Running):
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
    json_schema = {"name": "n", "schema": schema}
    lines = [
        story(3, max_tokens=12),
        story(4, max_tokens=12, logprobs=True, top_logprobs=2),
        story(5, max_tokens=60, tools=[tool], tool_choice="required"),
        story(
            6,
            max_tokens=40,
            response_format={"type": "json_schema", "json_schema": json_schema},
        ),
        row("text", TEXT, prompt=["Once", "Two"], max_tokens=8, temperature=0, echo=True),
        row("vector", EMBED, input=["fox", "bird"], encoding_format="base64"),
        row("unknown", CHAT, messages=[{"role": "user", "content": "Hi"}], no_such_field=1),
        row("long", TEXT, prompt="fox " * 100_000),
    ]
    output = tmp_path / "out.jsonl"
    assert batch(write(tmp_path / "in.jsonl", lines), output) == 1
    found = {each["custom_id"]: each["response"] for each in read(output)}
    for line in lines:
        expected = server.post(line["url"], line["body"])
        response = found[line["custom_id"]]
        assert response["status_code"] == expected.status
        assert response["request_id"].startswith("req_")
        for name in ("choices", "data", "error"):
            ours, theirs = response["body"].get(name), expected.json.get(name)
            if name == "choices" and line["custom_id"] == "row-5":
                for choice in (*ours, *theirs):  # ids of calls are random
                    for call in choice["message"]["tool_calls"]:
                        del call["id"]
            assert ours == theirs
    assert found["long"]["body"]["error"]["code"] == "context_length_exceeded"


def test_bad_rows_get_errors_and_the_run_goes_on(tmp_path: Path, capsys):
    good = story(0, max_tokens=2)
    lines = [
        good,
        "{nonsense",
        "",
        {**story(1), "custom_id": None},
        good,
        {**story(2), "url": "/v1/images"},
        {**story(3), "method": "GET"},
        {**story(4), "body": "text"},
        story(5, stream=True),
        story(6, temperature="hot"),
        "[1]",
        f'"{"x" * 3000}"',
        story(7, max_tokens=2),
    ]
    source, output = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    assert batch(source, output, "--max-body", "2K") == 1
    err = capsys.readouterr().err
    assert "12 of 12 rows done, 10 failed" in err
    assert "--retry-failed" in err
    found = read(output)
    by_line = {each["line"]: each["error"] for each in found if "line" in each}
    assert sorted(by_line) == [2, 4, 5, 11, 12]
    assert by_line[4]["param"] == by_line[5]["param"] == "custom_id"
    message = by_line[2]["message"]
    assert message.startswith("the line is not valid JSON: column 2: Expecting property name")
    assert by_line[12]["code"] == "request_too_large"
    by_id = {each["custom_id"]: each for each in found if each["custom_id"]}
    assert len(by_id) == 7
    for custom_id, param in (("row-2", "url"), ("row-3", "method"), ("row-4", "body"),
                             ("row-5", "stream")):  # fmt: skip
        assert by_id[custom_id]["response"] is None
        assert by_id[custom_id]["error"]["param"] == param
    assert by_id["row-6"]["error"] is None
    assert by_id["row-6"]["response"]["status_code"] == 400
    assert by_id["row-6"]["response"]["body"]["error"]["param"] == "temperature"
    # A second run has nothing to do, and --retry-failed runs the errors again.
    before = output.read_bytes()
    assert batch(source, output, "--max-body", "2K") == 1
    assert output.read_bytes() == before
    assert f"all 12 rows of {source} were done already" in capsys.readouterr().err
    repaired = [good, *(story(i, max_tokens=2) for i in range(1, 11)), lines[-1]]
    repaired[7] = story(11, max_tokens=2)  # the last row is row-7
    write(source, repaired)
    assert batch(source, output, "--retry-failed") == 0
    found = read(output)
    assert len({each["custom_id"] for each in found}) == len(found) == 12


def test_a_batch_without_a_row_to_run_says_so_and_loads_no_model(
    tmp_path: Path, capsys, monkeypatch
):
    source, output = write(tmp_path / "in.jsonl", [story(0), story(1)]), tmp_path / "out.jsonl"
    with Journal(output) as journal:
        for name in ("row-1", "row-0"):
            journal.append(rows.answer_line(name, Reply(200, "req_1", {})))
    monkeypatch.setattr("zinc.cli.batch._run", None)  # loads the model
    assert batch(source, output) == 0
    what = f"all 2 rows of {source} were done already"
    assert capsys.readouterr().err.endswith(f"zinc: {what}; there is nothing to do\n")
    assert batch(write(tmp_path / "none.jsonl", [""]), tmp_path / "other.jsonl") == 0
    assert capsys.readouterr().err.endswith("none.jsonl has no rows; there is nothing to do\n")
    with pytest.raises(TypeError):  # a third row is run
        batch(write(source, [story(0), story(1), story(2)]), output)


@pytest.mark.parametrize("n_cut", [1, 2, 30, 10_000])
def test_a_torn_last_line_is_removed(tmp_path: Path, n_cut: int):
    path = tmp_path / "out.jsonl"
    with Journal(path) as journal:
        for name in "ab":
            journal.append(rows.answer_line(name, Reply(200, "req_1", {"text": "é" * 40_000})))
    whole = path.read_bytes()
    path.write_bytes(whole[:-n_cut])
    with Journal(path) as journal:
        assert (journal.has_id("a"), journal.has_id("b"), journal.n_done) == (True, False, 1)
        journal.append(rows.answer_line("b", Reply(200, "req_2", {})))
    assert [each["custom_id"] for each in read(path)] == ["a", "b"]


@pytest.mark.parametrize("text", ["dear diary", "dear diary\n", '{"a": 1}\n', "[]\n"])
def test_other_files_are_not_changed(tmp_path: Path, text: str):
    path = tmp_path / "out.jsonl"
    path.write_text(text)
    for retry in (False, True):
        with pytest.raises(RequestError, match="other contents"):
            Journal(path, retry)
        assert path.read_text() == text


def test_wrong_files_are_one_line(tmp_path: Path, capsys):
    source = write(tmp_path / "in.jsonl", [story(0)])
    assert batch(source, source) == 1
    assert "same file" in capsys.readouterr().err
    none = tmp_path / "none.jsonl"
    assert batch(none, tmp_path / "out.jsonl") == 1
    why = "No such file or directory. Check the path."
    assert capsys.readouterr().err == f"zinc: cannot read {none}: {why}\n"
    output = tmp_path / "none" / "out.jsonl"
    assert batch(source, output) == 1
    assert f"zinc: cannot write {output}: {why}\n" in capsys.readouterr().err
    with Journal(tmp_path / "out.jsonl"):
        assert batch(source, tmp_path / "out.jsonl") == 1
    assert "is in use" in capsys.readouterr().err


def test_pipes_and_devices_are_refused(tmp_path: Path, capsys):
    """A batch reads its input several times, and its output when it resumes."""
    source, pipe = write(tmp_path / "in.jsonl", [story(0)]), tmp_path / "pipe"
    os.mkfifo(pipe)
    assert batch(pipe, tmp_path / "out.jsonl") == 1
    assert capsys.readouterr().err == (
        f"zinc: cannot read requests from {pipe}: it is a pipe or a device, and a batch reads its "
        "input several times. Write the requests to a file first.\n"
    )
    for output in (pipe, Path(os.devnull)):
        assert batch(source, output) == 1
        assert f"cannot write answers to {output}: it is a pipe" in capsys.readouterr().err


def test_an_interrupt_ends_the_run_and_says_how_to_go_on(tmp_path: Path):
    lines = [story(i, max_tokens=40) for i in range(2000)]  # more than run before the signal
    source, output = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    process = begin(source, output, "-j", "2", n_rows=len(lines))
    wait_for_growth(output, process, 1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (130, "")
    assert f"{output} keeps the rows that are done, and the same command continues" in err
    assert "Traceback" not in err
    assert 0 < len(read(output)) < len(lines)


def test_an_interrupt_before_the_model_is_loaded_says_what_is_kept(
    tmp_path: Path, capsys, monkeypatch
):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("zinc.cli.batch._application", interrupt)
    source, output = write(tmp_path / "in.jsonl", [story(0)]), tmp_path / "out.jsonl"
    assert batch(source, output) == 130
    assert "before a row was done; the same command starts again" in capsys.readouterr().err
    with Journal(output) as journal:
        journal.append(rows.answer_line("row-1", Reply(200, "req_1", {})))
    assert batch(source, output) == 130
    assert f"interrupted; {output} keeps the rows that are done" in capsys.readouterr().err
