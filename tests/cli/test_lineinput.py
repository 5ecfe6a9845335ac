"""Reading messages from a terminal and from a script."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pytest
from cli.session import Session
from hypothesis import given
from hypothesis import strategies as st

from zinc.cli.lineinput import LineInput, read_history, unquoted, write_history

QUOTE = '"""'
PASTE, PASTED = "\x1b[200~", "\x1b[201~"
UP = "\x1b[A"


def lines_of(monkeypatch, data: bytes) -> list[str | None]:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), "utf-8"))
    found: list[str | None] = []
    with LineInput() as lines:
        assert not lines.interactive
        while not found or found[-1] is not None:
            found.append(lines.read())
    return found


def test_lines_continue_after_a_backslash(monkeypatch):
    assert lines_of(monkeypatch, b"one\\\ntwo\nthree\r\n") == ["one\ntwo", "three", None]
    assert lines_of(monkeypatch, b"cut\\\n") == ["cut", None]
    assert lines_of(monkeypatch, b"") == [None]


def test_a_line_that_is_no_text_is_left_out(monkeypatch, capsys):
    assert lines_of(monkeypatch, b"a\xff\nb\n") == ["b", None]
    assert "not UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{QUOTE}one line{QUOTE}", ["one line"]),
        (f"{QUOTE}one\n\ntwo\\\nthree{QUOTE}\nnext", ["one\n\ntwo\\\nthree", "next"]),
        (f"{QUOTE}\none\n{QUOTE}  \nnext", ["one", "next"]),
        (f"{QUOTE}never closed\ntwo", ["never closed\ntwo"]),
        (f"{QUOTE}\n{QUOTE}", [""]),
        (f'{QUOTE}a "{QUOTE}', ['a "']),
        (f"no {QUOTE} here{QUOTE}", [f"no {QUOTE} here{QUOTE}"]),
        (f"{QUOTE}", [""]),
        (f"/system {QUOTE}Be\nbrief.{QUOTE}\nnext", ["/system Be\nbrief.", "next"]),
        (f"/system {QUOTE}Be\nbrief.", ["/system Be\nbrief."]),
        (f"a /system {QUOTE}\nnext", [f"a /system {QUOTE}", "next"]),
    ],
)
def test_quotes_open_and_close_a_message(monkeypatch, text, expected):
    assert lines_of(monkeypatch, text.encode()) == [*expected, None]


def test_quotes_that_are_too_short_are_not_closed():
    assert unquoted(QUOTE) is None
    assert unquoted(f"{QUOTE}{QUOTE[:2]}") is None
    assert unquoted(QUOTE * 2) == ""


@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("\n\\"))))
def test_history_keeps_whole_messages(tmp_path_factory, entries):
    path = tmp_path_factory.mktemp("state") / "zinc" / "history"
    write_history(path, entries)
    assert read_history(path) == entries
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_history_that_cannot_be_kept_is_no_error(tmp_path):
    assert read_history(tmp_path) == []
    write_history(tmp_path, ["entry"])


# -- on a terminal ------------------------------------------------------------------------------

needs_login = pytest.mark.skipif(
    not hasattr(os, "login_tty"), reason="needs os.login_tty (Python 3.11)"
)


@pytest.fixture
def chat(tmp_path, backend):
    """Start `zinc chat` on a terminal; `chat(TERM=...)`. Its history is kept between starts."""
    sessions: list[Session] = []

    def start(**environment: str) -> Session:
        state = str(tmp_path / "state")
        session = Session(
            "chat", "--backend", backend, "--temperature", "0", "-n", "2",
            XDG_STATE_HOME=state, **environment,
        )  # fmt: skip
        sessions.append(session)
        session.expect("Ctrl-D exits")
        session.expect("> ")
        return session

    yield start
    for session in sessions:
        session.close()


def messages_of(session: Session, path: Path) -> list[str]:
    """Return the user's messages so far."""
    session.send(f"/save {path}\r")
    session.expect("Saved to")
    session.expect("> ")
    return [m["content"] for m in json.loads(path.read_text()) if m["role"] == "user"]


def leave(session: Session) -> None:
    session.send("\x04")
    assert session.wait() == 0


@needs_login
def test_a_pasted_block_is_one_message_and_is_recalled_whole(chat, tmp_path):
    block = "/* one */\ntwo \\\n\tthree"
    session = chat()
    session.send(PASTE + block.replace("\n", "\r") + PASTED)
    session.expect("three")
    session.send(" four\r")
    session.expect("> ")
    whole = block + " four"
    assert messages_of(session, tmp_path / "chat.json") == [whole]
    session.send(UP + UP)  # over /save
    session.expect("four")
    session.send("\r")
    session.expect("> ")
    assert messages_of(session, tmp_path / "chat.json") == [whole, whole]
    leave(session)

    session = chat()
    session.send(UP + UP)
    session.expect("four")
    session.send("\r")
    session.expect("> ")
    assert messages_of(session, tmp_path / "chat.json") == [whole]
    leave(session)


@needs_login
def test_quotes_are_recalled_whole(chat, tmp_path):
    session = chat()
    for line in (f"{QUOTE}one", "two", f"three{QUOTE}"):
        session.send(line + "\r")
        session.expect(r"\r\n")
    session.expect("> ")
    session.send(UP)
    session.expect("three")
    session.send("\r")
    session.expect("> ")
    assert messages_of(session, tmp_path / "chat.json") == ["one\ntwo\nthree"] * 2
    leave(session)


@needs_login
def test_a_block_is_one_message_where_the_terminal_does_not_bracket_it(chat, tmp_path):
    session = chat(TERM="dumb")
    session.send("one\rtwo\rthree\r")
    session.expect("three")
    session.expect("> ")
    assert messages_of(session, tmp_path / "chat.json") == ["one\ntwo\nthree"]
    leave(session)
