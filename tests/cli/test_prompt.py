"""The sources of the prompt and the model of `zinc run`."""

from __future__ import annotations

import io
import os
import pty
import socket
import sys

import pytest

from zinc.cli import prompt, streams
from zinc.cli.argtypes import UsageError
from zinc.cli.main import build_parser
from zinc.core.errors import RequestError
from zinc.engine.load.files import EMBEDDED_MODEL


def read(*argv: object) -> tuple[str | None, str]:
    """Return the model and the prompt of `zinc run ARGUMENTS`."""
    args = build_parser("run").parse_args(["run", *map(str, argv)])
    text = prompt.read(args)
    return args.model, text


@pytest.fixture
def stdin(monkeypatch):
    """Replace standard input by `text` in memory, or by a file descriptor."""

    def replace(source: str | int) -> None:
        if isinstance(source, int):
            binary = io.BufferedReader(io.FileIO(source, closefd=False))
        else:
            binary = io.BytesIO(source.encode())
        stream = io.TextIOWrapper(binary, encoding="utf-8")
        monkeypatch.setattr(sys, "stdin", stream)

    return replace


@pytest.mark.parametrize(
    ("argv", "piped", "expected"),
    [
        (["Summarise:"], "notes\n", "Summarise:\n\nnotes"),
        (["Summarise:"], "a\n\nb\n\n", "Summarise:\n\na\n\nb\n"),
        (["Summarise:", "--raw"], "notes\n", "Summarise:notes\n"),
        (["Summarise:", "-f", "-"], "notes\n", "Summarise:\n\nnotes"),
        (["Summarise:"], "", "Summarise:"),
        (["Summarise:"], "\n", "Summarise:"),
        (["-"], "notes\n", "notes"),
        (["-f", "-"], "notes\n", "notes"),
        ([], "notes\n", "notes"),
    ],
)
def test_piped_text_follows_the_prompt(stdin, argv, piped, expected):
    stdin(piped)
    assert read(*argv) == (None, expected)


def test_a_named_file_is_read_and_stdin_is_not(stdin, tmp_path):
    path = tmp_path / "notes"
    path.write_text("from the file\n")
    stdin("from the pipe")
    assert read("Summarise:", "-f", path) == (None, "Summarise:\n\nfrom the file")
    assert sys.stdin.read() == "from the pipe"


def test_a_pipe_a_file_and_a_socket_are_read(stdin, tmp_path):
    path = tmp_path / "notes"
    path.write_text("notes\n")
    reader, writer = os.pipe()
    one, other = socket.socketpair()
    os.write(writer, b"notes\n")
    os.close(writer)
    one.sendall(b"notes\n")
    one.close()
    with open(path, "rb") as file, other:
        for descriptor in (reader, file.fileno(), other.fileno()):
            stdin(descriptor)
            assert read("Summarise:") == (None, "Summarise:\n\nnotes")
    os.close(reader)


def test_a_terminal_and_a_device_are_not_read(stdin):
    master, slave = pty.openpty()
    with open(os.devnull, "rb") as null:
        for descriptor in (slave, null.fileno()):
            stdin(descriptor)
            assert read("Summarise:") == (None, "Summarise:")
    os.close(master)
    os.close(slave)


def test_a_stand_in_for_stdin_is_not_read(monkeypatch):
    class Unreadable(io.StringIO):
        def read(self, *_):
            pytest.fail("read")

    monkeypatch.setattr(sys, "stdin", Unreadable())
    assert read("Summarise:") == (None, "Summarise:")


def test_a_pipe_that_stays_silent_is_told(stdin, monkeypatch, capsys):
    reader, writer = os.pipe()
    stdin(reader)

    def select_in_vain(readable, *_):
        assert readable == [sys.stdin]
        os.close(writer)
        return [], [], []

    monkeypatch.setattr(streams.select, "select", select_in_vain)
    assert read("Hello") == (None, "Hello")
    os.close(reader)
    assert "waiting for text on standard input; `< /dev/null` starts" in capsys.readouterr().err


def test_a_model_may_stand_in_front_of_the_prompt(stdin, fixture_model):
    stdin("")
    model = str(fixture_model)
    assert read(model, "Hello") == (model, "Hello")
    stdin("notes\n")
    assert read(model) == (model, "notes")


def test_a_model_in_front_of_the_prompt_runs(zinc, backend):
    options = ("--temperature", "0", "--max-tokens", "8", "--backend", backend)
    named = zinc("run", EMBEDDED_MODEL, "Hello!", *options)
    assert (named.status, named.err) == (0, "")
    assert named.out == zinc("run", "Hello!", *options).out
    assert named.out == zinc("run", EMBEDDED_MODEL, *options, "Hello!").out


@pytest.mark.parametrize("word", ["none.gguf", "~/none", "some/model", "and/or", "qwen3:8b"])
@pytest.mark.parametrize("rest", [[], ["Hello"]])
def test_a_model_that_is_missing_is_named(zinc, monkeypatch, tmp_path, word, rest):
    monkeypatch.setenv("HOME", str(tmp_path))
    result = zinc("run", word, *rest, stdin=b"text")
    assert (result.status, result.out) == (1, "")
    if word.endswith("none.gguf") or word.startswith("~"):
        assert result.err.startswith(f"zinc: cannot open {word}: there is no such file.")
    else:
        assert result.err == (
            f"zinc: the model {word} is not on this machine. Run `zinc pull {word}`.\n"
        )


def test_a_model_without_a_prompt_on_a_terminal_names_chat(monkeypatch, fixture_model):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    with pytest.raises(UsageError, match="`zinc chat` starts a conversation"):
        read(fixture_model)


def test_a_model_is_named_once(stdin, fixture_model):
    stdin("")
    with pytest.raises(UsageError, match="-m names other"):
        read(fixture_model, "Hello", "-m", "other")


def test_a_model_alone_leaves_nothing_to_ask(stdin, fixture_model):
    stdin("")
    with pytest.raises(UsageError, match=r"nothing to ask the model .*: no PROMPT is given"):
        read(fixture_model)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([""], "the PROMPT is empty"),
        ([" \n"], "the PROMPT is empty"),
        (["qwen3:8b", ""], "nothing to ask the model qwen3:8b: the PROMPT is empty"),
        (["-"], "stdin is empty"),
        (["-f", "-"], "stdin is empty"),
        (["-f", os.devnull], f"the file {os.devnull} is empty"),
        (["", "-f", os.devnull], f"the file {os.devnull} is empty"),
        ([], "no PROMPT is given, and stdin is empty"),
    ],
)
@pytest.mark.parametrize("piped", ["", "\n"])
def test_an_empty_prompt_is_an_error(zinc, argv, said, piped):
    result = zinc("run", *argv, stdin=piped.encode())
    assert (result.status, result.out) == (2, "")
    assert said in result.err
    assert "give a PROMPT, or --file FILE" in result.err


def test_a_raw_prompt_may_be_empty(stdin):
    stdin("")
    assert read("--raw", "") == (None, "")


@pytest.mark.parametrize("rest", [[], ["Summarise"]])
def test_a_text_file_in_the_place_of_the_model_is_told(zinc, tmp_path, rest):
    path = tmp_path / "notes.txt"
    path.write_text("notes")
    result = zinc("run", path, *rest)
    assert (result.status, result.out) == (1, "")
    assert result.err == (
        f"zinc: {path} is not a model: it is not a GGUF file. Read a prompt from it with "
        f"--file {path}.\n"
    )


def test_a_model_may_have_any_suffix(stdin, tmp_path, fixture_model):
    stdin("")
    path = tmp_path / "model"
    path.write_bytes(fixture_model.read_bytes())
    assert read(path, "Hello") == (str(path), "Hello")


def test_several_words_need_quotes(stdin):
    stdin("")
    with pytest.raises(UsageError, match="quotes"):
        read("two", "words")


def test_a_prompt_file_that_is_missing_is_named(stdin):
    stdin("")
    with pytest.raises(RequestError, match=r"cannot read none: .*\. Check the path"):
        read("Hello", "-f", "none")


def test_tokenize_does_not_take_a_model_for_text(zinc):
    result = zinc("tokenize", "model.gguf")
    assert result.status == 2
    assert "name it with -m" in result.err
