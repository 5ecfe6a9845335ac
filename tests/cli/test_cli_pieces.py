"""Parts that commands share: progress, reasoning, text, costs."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zinc.backends.plans import Launch
from zinc.chat.formats import detect
from zinc.chat.parser import AnswerParser
from zinc.cli import text
from zinc.cli.answer import DIM, RESET, Printer, show
from zinc.core.progress import ProgressBar, is_plain
from zinc.engine.step_cost import StepShape
from zinc.ops.registry import Cost
from zinc.ops.values import Dim


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def terminal(monkeypatch) -> Terminal:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    return Terminal()


def test_progress_waits_then_draws_then_leaves_nothing(terminal):
    clock = Clock()
    with ProgressBar("loading", stream=terminal, clock=clock) as bar:
        clock.now = 1.9
        bar(1, 4)
        assert terminal.getvalue() == ""
        clock.now = 3.0
        bar(2, 4)
        assert "loading [############............]  50% 3 s left" in terminal.getvalue()
        drawn = terminal.getvalue()
        clock.now = 3.05  # too soon to draw again
        bar(3, 4)
        assert terminal.getvalue() == drawn
    assert terminal.getvalue().endswith("\r\x1b[K")


@pytest.mark.parametrize("why", ["pipe", "NO_COLOR", "dumb"])
def test_no_progress_on_a_plain_stream(terminal, monkeypatch, why):
    stream: io.StringIO = terminal
    if why == "pipe":
        stream = io.StringIO()
    elif why == "dumb":
        monkeypatch.setenv("TERM", "dumb")
    else:
        monkeypatch.setenv("NO_COLOR", "1")
    clock = Clock()
    with ProgressBar("loading", stream=stream, clock=clock) as bar:
        clock.now = 100.0
        bar(1, 2)
    assert stream.getvalue() == ""
    assert is_plain(stream)


def reasoner():
    return AnswerParser(detect("<think> <tool_call>"))


def chunk(content, finish_reason=None):
    return SimpleNamespace(text=content, finish_reason=finish_reason, timings=None)


def test_reasoning_is_dim_on_a_terminal_and_the_answer_is_not(terminal):
    out = io.StringIO()
    answer = show(
        [chunk("<think>hm"), chunk("</think>Hi"), chunk("", "stop")],
        Printer(out, terminal),
        reasoner(),
    )
    assert (answer.text, answer.finish_reason) == ("Hi", "stop")
    assert out.getvalue() == "Hi\n"
    assert terminal.getvalue() == f"{DIM}hm{RESET}\n"


def test_a_stopped_answer_leaves_no_dim_terminal(terminal):
    closed = []

    def chunks():
        try:
            yield chunk("<think>hm")
            raise KeyboardInterrupt
        finally:
            closed.append(True)

    with pytest.raises(KeyboardInterrupt):
        show(chunks(), Printer(terminal, terminal), reasoner())
    assert terminal.getvalue() == f"{DIM}hm{RESET}\n"
    assert closed


def test_stopping_closes_the_stream_and_keeps_its_text():
    closed = []

    def chunks():
        try:
            for i in range(100):
                yield chunk(f"{i} ")
        finally:
            closed.append(True)

    seen = iter([False, False, True])
    out = io.StringIO()
    answer = show(chunks(), Printer(out, None), reasoner(), lambda: next(seen))
    assert answer.text == "0 1 2 "
    assert answer.finish_reason is None
    assert closed


@pytest.mark.parametrize(
    ("n_bytes", "shown"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (18_856_256, "18.9 MB"),
                           (2.5e9, "2.5 GB"), (7e12, "7.0 TB")]
)  # fmt: skip
def test_sizes(n_bytes, shown):
    assert text.size(n_bytes) == shown


def test_plain_text_is_one_bounded_line():
    assert text.plain("a\nb\x1b[0m", 40) == "a\\nb\\x1b[0m"
    assert len(text.plain("x" * 100, 20)) == 20
    assert len(text.plain("\x1b" * 20, 20)) == 20
    assert text.plain("", 20) == ""


def test_tables_line_up():
    lines = text.table(("name", "n |"), [("a", 5), ("long", 1234)]).splitlines()
    assert lines == ["name      n", "a         5", "long  1,234"]
    assert text.table(("name", "n |"), []) == "name  n"


@given(
    tokens=st.integers(1, 40),
    depth=st.integers(0, 40),
    window=st.integers(0, 30),
)
def test_attention_costs_count_keys_and_pairs(tokens, depth, window):
    launch = Launch(
        "attention", Dim.TOKENS, (), (), (("window", window),), Cost(1, 2, 4, 8, 16), "blk.0"
    )
    seen = [
        [k for k in range(q + 1) if not window or q - k < window]
        for q in range(depth, depth + tokens)
    ]
    shape = StepShape(tokens, 1, depth)
    assert shape.keys(launch) == len(set().union(*seen))
    assert shape.pairs(launch) == sum(map(len, seen))
    assert shape.bytes(launch) == 1 + 2 * tokens + 4 * shape.keys(launch)
    assert shape.flops(launch) == 8 * tokens + 16 * shape.pairs(launch)
