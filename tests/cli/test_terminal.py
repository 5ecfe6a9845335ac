"""Output to a terminal, a pipe and closed streams."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import threading
import unicodedata
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import MappingProxyType

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zinc.chat.template import ChatTemplate
from zinc.cli import loading
from zinc.cli.main import main
from zinc.core import progress
from zinc.core.errors import RequestError
from zinc.core.progress import ProgressBar, stepper
from zinc.core.terminal import visible
from zinc.engine.load.files import EMBEDDED_MODEL
from zinc.engine.load.settings import NO_SETTINGS
from zinc.llm import Chunk

SOURCE = Path(__file__).parent.parent.parent / "src"
HOSTILE = "a\x1b]0;title\x07b\x9b2Jc\rd\x08\u202ee\tf\r\ng"
SHOWN = "a^[]0;title^Gb\ufffd2Jc^Md^H\ufffde\tf\r\ng"


def test_control_characters_are_made_visible():
    assert visible(HOSTILE) == SHOWN
    assert visible("\x00\x7f") == "^@^?"


@given(st.text())
def test_no_control_character_is_left_and_all_other_text_is_unchanged(text):
    shown = visible(text)
    left = {c for c in shown.replace("\r\n", "\n") if unicodedata.category(c) == "Cc"}
    assert left <= {"\t", "\n"}
    if not any(unicodedata.category(c) == "Cc" or c in "\u202d\u202e" for c in text):
        assert shown == text


END = b"end of the output"


class Screen:
    """A pseudo-terminal that replaces stdout and stderr."""

    def __init__(self) -> None:
        self._master, self._slave = pty.openpty()

    def run(self, *argv: object, stdin: bytes = b"") -> str:
        """Run a command; return what the terminal received, without carriage returns."""
        received: list[bytes] = []
        reader = threading.Thread(target=self._read, args=[received])
        reader.start()  # a full terminal would block the command
        terminal = partial(open, self._slave, "w", encoding="utf-8", closefd=False)
        with pytest.MonkeyPatch.context() as patch, terminal() as out, terminal() as err:
            patch.setenv("TERM", "xterm")
            patch.delenv("NO_COLOR", raising=False)
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            main([str(a) for a in argv])
        os.write(self._slave, END)
        reader.join()
        return b"".join(received).removesuffix(END).decode().replace("\r", "")

    def _read(self, received: list[bytes]) -> None:
        while not b"".join(received[-2:]).endswith(END):
            received.append(os.read(self._master, 4096))

    def close(self) -> None:
        os.close(self._master)
        os.close(self._slave)


@pytest.fixture
def screen() -> Iterator[Screen]:
    screen = Screen()
    yield screen
    screen.close()


class Speaker(nullcontext[object]):
    """A fake model that answers with a given text."""

    template = ChatTemplate("{{ messages[0].content }}\n")
    sampling = MappingProxyType({})
    settings = NO_SETTINGS
    context = 4096

    def __init__(self, answer: str) -> None:
        super().__init__(self)
        self._answer = answer

    def render(self, messages, **template_args) -> list[int]:
        return [1]

    def stream(self, prompt, params) -> Iterator[Chunk]:
        yield Chunk(self._answer, [1])
        yield Chunk("", [2], "stop", None)


def test_an_answer_cannot_control_the_terminal(screen, monkeypatch):
    monkeypatch.setattr(loading, "open_llm", lambda args: Speaker(HOSTILE))
    assert screen.run("run", "hi") == SHOWN.replace("\r", "") + "\n"


def test_a_piped_answer_is_what_the_model_wrote(zinc, monkeypatch):
    monkeypatch.setattr(loading, "open_llm", lambda args: Speaker(HOSTILE))
    assert zinc("run", "hi").out == f"{HOSTILE}\n"


@pytest.fixture
def hostile_file(tmp_path: Path) -> Path:
    """Return a model file whose names contain escape sequences."""
    path = tmp_path / "hostile.gguf"
    writer = gguf.GGUFWriter(path, "abacus\x1b[31m")
    writer.add_string("general.name", "name\x1b[2J")
    writer.add_string("general.\x9b31m", "\x07")
    writer.add_tensor("beads\x1b[31m", np.ones((2, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("command", ["inspect", "plan", "tokenize"])
def test_a_model_file_cannot_control_the_terminal(screen, hostile_file, command):
    text = "x" if command == "tokenize" else hostile_file
    seen = screen.run(command, text, *(["-m", hostile_file] if command == "tokenize" else []))
    assert "hostile.gguf" in seen
    assert not {c for c in seen if unicodedata.category(c) == "Cc"} - {"\n"}


def test_an_error_in_a_conversation_cannot_control_the_terminal(screen, monkeypatch):
    def refuse(self, prompt, params):
        raise RequestError("the template says \x1b[2J")

    monkeypatch.setattr(Speaker, "stream", refuse)
    monkeypatch.setattr(loading, "open_llm", lambda args: Speaker(""))
    assert "the template says ^[[2J" in screen.run("chat", stdin=b"hi\n")


@pytest.mark.parametrize(
    ("command", "closed"),
    [
        ("run hi", "<&-"),
        pytest.param("run hi", ">&-", marks=pytest.mark.every),
        pytest.param("run hi", "2>&-", marks=pytest.mark.every),
        ("chat", "<&- >&- 2>&-"),
    ],
)
def test_closed_streams_are_no_error(command, closed):
    script = f"{sys.executable} -m zinc {command} --max-tokens 2 {closed}"
    done = subprocess.run(
        ["bash", "-c", script],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


WORK = {
    "verify": (["--tokens", "4"], ["comparing launches"]),
    "bench": (
        ["--prefill", "4", "--decode", "2", "--reps", "2", "--profile"],
        ["measuring memory", "measuring [", "profiling prefill", "profiling decode"],
    ),
    "perplexity": (["--window", "8"], ["scoring"]),
}


@pytest.mark.parametrize("command", WORK)
def test_work_shows_its_progress_and_leaves_a_clean_screen(
    screen, zinc, monkeypatch, tmp_path, fixture_model, command
):
    options, labels = WORK[command]
    arguments = [fixture_model]
    if command == "perplexity":
        (tmp_path / "text").write_text("some words and some more " * 8)
        arguments = [EMBEDDED_MODEL, tmp_path / "text"]
    arguments += [*options, "--backend", "ref"]
    monkeypatch.setitem(ProgressBar.__init__.__kwdefaults__, "delay_s", 0.0)
    monkeypatch.setattr(progress, "_REDRAW_S", 0.0)
    seen = screen.run(command, *arguments)
    for label in labels:
        assert f"\x1b[K{label}" in seen
    assert "100%" in seen
    left = "".join(line.split("\x1b[K")[-1] + "\n" for line in seen.splitlines())
    assert not any(f"{label} [" in left for label in labels)
    piped = zinc(command, *arguments)
    assert piped.err == ""
    first_words = [sorted(line.split(" ")[0] for line in x.splitlines()) for x in (left, piped.out)]
    assert first_words[0] == first_words[1]


def test_progress_is_shown_from_the_start():
    seen: list[tuple[int, int]] = []
    tick = stepper(lambda done, total: seen.append((done, total)), 2)
    tick()
    tick()
    assert seen == [(0, 2), (1, 2), (2, 2)]
    stepper(None, 2)()
