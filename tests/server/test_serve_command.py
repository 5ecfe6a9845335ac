"""`zinc serve` as a process, its options, and its log."""

from __future__ import annotations

import argparse
import asyncio
import errno
import io
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from serving import LOAD, PATIENCE_S, Running, running, wait_for

import zinc
from zinc import LLM
from zinc.cli import serve
from zinc.cli.main import main
from zinc.core.errors import RequestError
from zinc.engine.load.files import EMBEDDED_MODEL
from zinc.models.parts.context import RopeScaling
from zinc.server import main as server_main
from zinc.server.config import ServerConfig
from zinc.server.http import log
from zinc.server.http.connection import Connection

SOURCE = Path(zinc.__file__).parent.parent


def config(*argv: str) -> ServerConfig:
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    return serve.config(parser.parse_args(argv))


def test_options(tmp_path: Path):
    keys = tmp_path / "keys"
    keys.write_text("one\n\n two \n")
    found = config(
        str(EMBEDDED_MODEL), f"small={EMBEDDED_MODEL}", "--port", "0", "--api-key", "zero",
        "--api-key-file", str(keys), "--ttl", "60", "--memory-budget", "1.5G", "--max-body", "2K",
        "--context", "512", "--kv-dtype", "q8_0", "--host", "0.0.0.0", "--log-json",
        "--no-prefix-cache", "--cache-size", "1M", "--cache-dir", str(tmp_path),
        "--rope-scaling", "yarn", "--rope-scale", "4", "--yarn-orig-ctx", "256",
        "--swap-size", "2M", "--chat-template", str(keys), "--temp", "0.5", "--top-k", "7",
        "--draft", str(EMBEDDED_MODEL),
    )  # fmt: skip
    assert [m.name for m in found.models] == [EMBEDDED_MODEL.stem, "small"]
    assert found.api_keys == ("zero", "one", "two")
    assert (found.ttl_s, found.memory_budget_bytes) == (60, 1610612736)
    assert (found.max_body_bytes, found.load.context, found.load.kv_dtype) == (2048, 512, "q8_0")
    assert found.load.rope == RopeScaling("yarn", 4.0, 256)
    assert (found.load.prefix_cache, found.load.cache_bytes) == (False, 1 << 20)
    assert found.load.cache_dir == tmp_path
    assert found.load.draft == EMBEDDED_MODEL
    assert found.load.swap_bytes == 2 << 20
    assert found.load.chat_template == keys.read_text()
    assert found.sampling == {"temperature": 0.5, "top_k": 7}
    with pytest.raises(RequestError, match="--top-p"):
        config("--top-p", "2")
    assert (found.host, found.json_log) == ("0.0.0.0", True)


def test_a_cache_folder_that_cannot_be_written_is_an_error_at_start(tmp_path: Path):
    with pytest.raises(RequestError, match="cannot be kept in /dev/null: it is not a folder"):
        config("--cache-dir", "/dev/null")
    with pytest.raises(RequestError, match="cannot be kept in /proc/zinc"):
        config("--cache-dir", "/proc/zinc")
    config("--cache-dir", str(tmp_path / "new" / "folder"))
    assert (tmp_path / "new" / "folder").is_dir()


def test_the_embedded_model_is_named_on_stderr(capsys):
    (model,) = config().models
    assert model.path is None
    assert EMBEDDED_MODEL.stem == model.name
    assert "embedded" in capsys.readouterr().err


def test_a_path_with_an_equals_sign(tmp_path: Path):
    path = tmp_path / "a=b.gguf"
    path.touch()
    (model,) = config(str(path)).models
    assert (model.name, model.path) == ("a=b", path)


@pytest.mark.parametrize(
    "argv",
    [("--port", "70000"), ("--port", "x"), ("--ttl", "-1"), ("--memory-budget", "much"),
     ("--max-body", "0"), ("--no-such-option",)],
)  # fmt: skip
def test_wrong_options(argv, capsys):
    assert main(["serve", *argv]) == 2
    assert "error" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.EADDRINUSE, "Choose another --port, or stop what uses it."),
        (errno.EACCES, "Choose a --port of at least 1024: lower ones need privileges."),
        (errno.EADDRNOTAVAIL, "Choose a --host that is an address of this machine."),
    ],
)
def test_an_address_that_cannot_be_used_names_the_option(number: int, hint: str, monkeypatch):
    def bind(self: socket.socket, address: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(socket.socket, "bind", bind)
    with pytest.raises(RequestError, match=re.escape(f"{os.strerror(number)}. {hint}")):
        server_main.bind("127.0.0.1", 80)


def test_failures_are_one_line(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch):
    assert main(["serve", str(tmp_path / "none.gguf"), "--port", "0"]) == 1
    assert re.fullmatch(r"zinc: .*none.gguf.*\n", capsys.readouterr().err)
    assert main(["serve", "--host", "0.0.0.0"]) == 1
    assert "without an API key" in capsys.readouterr().err
    assert main(["serve", "--host", "no.such.host.invalid", "--allow-public"]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("zinc: cannot serve on")
    monkeypatch.setattr(serve, "_NEEDED", ("no_such_module",))
    assert main(["serve"]) == 1
    assert "pip install 'zinc-llm[server]'" in capsys.readouterr().err


def damaged(folder: Path) -> Path:
    """Return a copy of the embedded model without the end of its file."""
    path = folder / "damaged.gguf"
    path.write_bytes(EMBEDDED_MODEL.read_bytes()[:100_000])
    return path


@pytest.mark.parametrize("what", ["a damaged file", "a context above the trained length"])
def test_a_model_that_cannot_be_loaded_ends_the_server(what, tmp_path: Path):
    argv = [str(damaged(tmp_path))] if what == "a damaged file" else ["--context", "999999"]
    process = begin(*argv)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (1, "")
    assert "serving on" not in err
    expected = (
        r"zinc: .*damaged\.gguf.*"
        if argv[0] != "--context"
        else (
            r"zinc: a context of 999,999 tokens is not possible: .* Choose --context \d+ or less.*"
        )
    )
    assert re.fullmatch(expected, err.splitlines()[-1])
    assert len([line for line in err.splitlines() if "embedded" not in line]) == 1


def test_server_runs_although_one_of_several_models_cannot_be_loaded(tmp_path: Path):
    process, url = start(f"bad={damaged(tmp_path)}", f"demo={EMBEDDED_MODEL}")
    try:
        with urllib.request.urlopen(f"{url}/v1/models", timeout=PATIENCE_S) as answer:
            rows = {row["id"]: row for row in json.loads(answer.read())["data"]}
        assert rows["bad"]["state"] == "failed"
        assert "damaged.gguf" in rows["bad"]["error"]
        body = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
        assert post(f"{url}/v1/chat/completions", body)["model"] == "demo"
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


SLOW = """
import sys, time
from zinc.cli.main import main
from zinc.server.runtime import pool

def slow(options, progress):
    print("zinc: it loads", file=sys.stderr, flush=True)
    while True:
        time.sleep(0.05)
        if STOPS:
            progress(1, 2)

pool.load_llm = slow
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("number", "stops"),
    [
        (signal.SIGINT, True),
        pytest.param(signal.SIGTERM, True, marks=pytest.mark.every),
        (signal.SIGTERM, False),
    ],
)
def test_a_signal_stops_the_server_while_it_loads(number, stops):
    """This works even if the load reports no progress, as within a large tensor."""
    err = stopped_at("it loads", f"STOPS = {stops}\n{SLOW}", number)
    assert "serving on" not in err


def stopped_at(moment: str, program: str, number: signal.Signals) -> str:
    """Run a server by a program, and send a signal when it prints `moment`. Return its log."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, "serve", "--port", "0"],
        stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )  # fmt: skip
    try:
        assert process.stderr is not None
        assert any(moment in line for line in process.stderr)
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert (process.returncode, out) == (0, "")
    assert "Traceback" not in err
    return err


STARTING = """
import sys, time

def wait():
    print("zinc: it starts", file=sys.stderr, flush=True)
    time.sleep(600)

class Finder:
    def find_spec(name, path=None, target=None):
        if name == "uvicorn.config":
            try:
                wait()
            except KeyboardInterrupt:
                raise ImportError("as numpy has it") from None

def config(args):
    try:
        wait()
    except KeyboardInterrupt:
        return old_config(args)  # as if the exception came in a finalizer

from zinc.cli import serve
from zinc.cli.main import main

if WHERE == "import":
    sys.meta_path.insert(0, Finder)
elif WHERE == "config":
    serve.config, old_config = config, serve.config
else:
    import zinc.server.main
    zinc.server.main.Application = lambda config: wait()
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.alike(2)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("where", ["import", "config", "application"])
def test_a_signal_stops_the_server_while_it_starts(where, number):
    """This works even if the code that is interrupted replaces or swallows the exception."""
    stopped_at("it starts", f"WHERE = {where!r}\n{STARTING}", number)


def test_a_port_in_use(server: Running, capsys):
    assert main(["serve", "--port", str(server.port)]) == 1
    assert "in use" in capsys.readouterr().err


def begin(*argv: str, program: tuple[str, str] = ("-m", "zinc")) -> subprocess.Popen[str]:
    """Start `zinc serve`. program: arguments of Python that run `zinc`."""
    command = [sys.executable, *program, "serve", "--port", "0", "--backend", LOAD.backend]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    return subprocess.Popen(
        [*command, *argv], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=environment,
    )  # fmt: skip


def start(
    *argv: str, program: tuple[str, str] = ("-m", "zinc")
) -> tuple[subprocess.Popen[str], str]:
    """Start `zinc serve`, and return its address once it serves."""
    process = begin(*argv, program=program)
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"serving on (http://\S+)", line):
            return process, found[1]
    raise AssertionError(process.wait())


def post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return json.loads(answer.read())


@pytest.mark.parametrize("text", ["", "\n  \n\t\n"])
def test_a_key_file_without_keys_is_refused(text, tmp_path: Path):
    keys = tmp_path / "keys"
    keys.write_text(text)
    with pytest.raises(RequestError, match="has no keys"):
        config("--api-key-file", str(keys))
    with pytest.raises(RequestError, match="has no keys"):
        config("--api-key", "one", "--api-key-file", str(keys))


@pytest.mark.parametrize(
    "number",
    [
        # Other tests stop servers with these two.
        pytest.param(signal.SIGINT, marks=pytest.mark.every),
        pytest.param(signal.SIGTERM, marks=pytest.mark.every),
        signal.SIGHUP,
    ],
)
def test_a_signal_stops_the_server_with_status_0(number):
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("the tests run under nohup")
    process, url = start(f"demo={EMBEDDED_MODEL}", "--log-json")
    try:
        # The address is printed after the model is loaded, so the first request is answered.
        messages = [{"role": "user", "content": "xylophone"}]
        body = {"messages": messages, "max_tokens": 4, "ignore_eos": True}
        post(f"{url}/v1/chat/completions", body)
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert (process.returncode, out) == (0, "")
    assert "Traceback" not in err
    lines = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    (line,) = [each for each in lines if each.get("path") == "/v1/chat/completions"]
    assert (line["status"], line["model"], line["completion_tokens"]) == (200, "demo", 4)
    assert line["prompt_tokens"] > 5
    assert line["client"] == "127.0.0.1"
    assert "xylophone" not in err


STORY = {"prompt": "Once upon a time", "n_predict": 4000, "ignore_eos": True, "stream": True}


def begin_story(url: str, **fields: Any) -> socket.socket:
    """Return a connection on which a long answer is being streamed."""
    host, port = url.removeprefix("http://").split(":")
    body = json.dumps({**STORY, **fields}).encode()
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(PATIENCE_S)
    client.connect((host, int(port)))
    head = f"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    client.sendall(head.encode() + body)
    assert client.recv(1) == b"H"
    return client


def is_refused(url: str) -> bool:
    """Return whether a server accepts no connection any more."""
    host, port = url.removeprefix("http://").split(":")
    try:
        socket.create_connection((host, int(port)), PATIENCE_S).close()
    except ConnectionError:
        return True
    return False


def end_of(process: subprocess.Popen[str]) -> str:
    """Wait for the end of a server, with status 0 and no traceback. Return its log."""
    try:
        _, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 0
    assert "Traceback" not in err
    return err


UNHURRIED = """
import sys, time
import zinc.server.main
from zinc.cli.main import main
from zinc.engine.engine import Engine

zinc.server.main._SECOND_SIGNAL_S = 600  # for error events to reach clients
step = Engine.step

def slow(engine):
    time.sleep(0.05)
    return step(engine)

Engine.step = slow
sys.exit(main(sys.argv[1:]))
"""


def test_a_second_signal_ends_running_answers() -> None:
    options = ("--grace", "600", "--context", "4096", "--speculate", "off")
    process, url = start(f"demo={EMBEDDED_MODEL}", *options, program=("-c", UNHURRIED))
    with begin_story(url) as client:
        process.send_signal(signal.SIGTERM)
        wait_for(lambda: is_refused(url))  # else both may become one signal
        process.send_signal(signal.SIGTERM)
        received = b""
        while part := client.recv(1 << 16):
            received += part
    end_of(process)
    assert b"the server is shutting down" in received[-300:]


def test_a_client_that_does_not_read_delays_the_end_by_the_grace_time_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = Connection.connection_made

    def with_small_buffer(self: Connection, transport: asyncio.Transport) -> None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        made(self, transport)

    monkeypatch.setattr(Connection, "connection_made", with_small_buffer)
    monkeypatch.setattr(server_main, "_ERROR_EVENT_S", 0.5)
    with running(grace_s=0.1) as own, begin_story(own.url, n_probs=20):
        connections = own.server.server_state.connections
        wait_for(lambda: any(c.flow.write_paused for c in list(connections)))
        own.server.should_exit = True
        wait_for(lambda: own.application.pool and not own.application.pool.loaded)
    assert "Traceback" not in caplog.text


@contextmanager
def restored_loggers() -> Iterator[None]:
    """Restore the loggers that `log.set_up` changes."""
    loggers = [logging.getLogger(name) for name in log.LOGGERS]
    before = [(logger, list(logger.handlers), logger.propagate, logger.level) for logger in loggers]
    try:
        yield
    finally:
        for logger, handlers, propagate, level in before:
            logger.handlers[:] = handlers
            logger.propagate = propagate
            logger.setLevel(level)


def lines_of(json_lines: bool, monkeypatch: pytest.MonkeyPatch, server: Running) -> list[str]:
    """Return the log lines of three requests. Other parts may log among them."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with restored_loggers():
        log.set_up(json_lines)
        secret = {"messages": [{"role": "user", "content": "xylophone"}], "max_tokens": 2}
        answers = [
            server.post("/v1/chat/completions", secret),
            server.post("/v1/chat/completions", {**secret, "xylophone_field": 1}),
            server.get("/v1/models/%0aforged%20line"),
        ]
        ids = [answer.headers["x-request-id"] for answer in answers]
        # A line is written after the response is sent.
        wait_for(lambda: all(each in stream.getvalue() for each in ids))
    lines = stream.getvalue().splitlines()
    assert [sum(each in line for line in lines) for each in ids] == [1, 1, 1]
    assert not any(line.startswith("forged line") for line in lines)
    return [line for line in lines if any(each in line for each in ids)]


def test_the_log_has_no_text_of_prompts_and_answers(
    server: Running, monkeypatch: pytest.MonkeyPatch
):
    text = lines_of(False, monkeypatch, server)
    assert len(text) == 3
    assert "POST /v1/chat/completions 200" in text[0]
    assert "completion_tokens=2" in text[0]
    assert "error=unknown_parameter" in text[1]
    assert not any("xylophone" in line for line in text)
    rows = [json.loads(line) for line in lines_of(True, monkeypatch, server)]
    assert [row["status"] for row in rows] == [200, 400, 404]
    assert all(row["id"].startswith("req_") and row["time"].endswith("Z") for row in rows)


@pytest.mark.parametrize("name", ["zinc.cache", "zinc.loading"])
def test_warnings_of_other_layers_are_in_the_log(monkeypatch: pytest.MonkeyPatch, name: str):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with restored_loggers():
        log.set_up(True)
        logging.getLogger(name).warning("%s is full", "the disk")
    (line,) = map(json.loads, stream.getvalue().splitlines())
    assert (line["level"], line["message"]) == ("warning", "the disk is full")


def test_sampling_options_of_the_server_are_defaults_for_requests(monkeypatch: pytest.MonkeyPatch):
    """With top_k 1, every answer is greedy unless the request sets top_k."""
    messages = [{"role": "user", "content": "Tell me a story."}]
    chat = {"messages": messages, "max_tokens": 12}
    asked = {
        "/v1/chat/completions": (chat, lambda found: found["choices"][0]["message"]["content"]),
        "/v1/messages": (chat, lambda found: found["content"][0]["text"]),
        "/completion": ({"prompt": "Once", "n_predict": 12}, lambda found: found["content"]),
    }
    monkeypatch.setattr(
        LLM, "sampling", {"top_k": 9, "min_p": 0.0}
    )  # recommendations of the file, which rank below options
    with running(sampling={"top_k": 1, "seed": 5}) as server:
        params = server.get("/props").json["default_generation_settings"]["params"]
        assert (params["top_k"], params["seed"], params["min_p"]) == (1, 5, 0)
        for path, (fields, text_of) in asked.items():
            greedy = text_of(server.post(path, {**fields, "temperature": 0}).json)
            assert text_of(server.post(path, fields).json) == greedy
            hot = {**fields, "top_k": 0, "temperature": 5, "seed": 3}
            assert text_of(server.post(path, hot).json) != greedy
