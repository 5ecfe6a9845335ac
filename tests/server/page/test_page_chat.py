"""The chat page against the real server and the embedded model."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, cycle
from typing import Any

import pytest
from acts import (
    answers,
    ask,
    expect,
    expect_answers,
    last_answer,
    send,
    wait_answered,
    wait_ended,
    wait_focused,
    wait_stored,
)
from serving import MODEL, PATIENCE_S, Running, running

from zinc.engine import step_in_flight
from zinc.engine.sampling import Sampled
from zinc.tokenizer import Tokenizer

OpenTab = Callable[..., Any]
BEGINNING = "word after word, " * 10  # shown before the gate


def greedy(tab: Any, max_tokens: int) -> None:
    """Set the conversation's temperature and token limit in the settings."""
    tab.click("#open-settings")
    tab.fill('input[name="temperature"]', "0")
    tab.fill('input[name="max_tokens"]', str(max_tokens))
    tab.keyboard.press("Escape")


def dictate(monkeypatch: pytest.MonkeyPatch, ids: Iterable[int]) -> None:
    """Make the engine sample these tokens."""
    rest = iter(ids)

    def sample_rows(samplers: Any, logits: Any, masks: Any) -> list[Sampled]:
        return [Sampled(next(rest)) for _ in samplers]

    monkeypatch.setattr(step_in_flight, "sample_rows", sample_rows)


@pytest.fixture
def gate(server: Running, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Make the engine write a few words, and after a gate that the test opens, endless words."""
    gate = threading.Event()
    ids = tokenizer_of(server).encode("word after word, ", add_special=False)

    def behind_the_gate() -> Iterator[int]:
        assert gate.wait(PATIENCE_S), "nobody has opened the gate"
        yield from cycle(ids)

    dictate(monkeypatch, chain(ids * 20, behind_the_gate()))
    yield gate
    gate.set()


def tokenizer_of(server: Running) -> Tokenizer:
    assert server.application.pool is not None
    return server.application.pool.loaded[0].tokenizer


@pytest.fixture
def chat(open_tab: OpenTab, server: Running) -> Any:
    return open_tab(server.url)


def test_conversation(chat: Any, server: Running) -> None:
    greedy(chat, 24)
    ask(chat, "Hello! Who are you?")
    ask(chat, "What is two plus three?")
    # The page shows the same answer as a direct request to the server.
    said: list[dict[str, str]] = []
    for question in ("Hello! Who are you?", "What is two plus three?"):
        said.append({"role": "user", "content": question})
        body = {"messages": said, "temperature": 0, "max_tokens": 24}
        message = server.post("/v1/chat/completions", body).json["choices"][0]["message"]
        said.append({"role": "assistant", "content": message["content"]})
    assert said[1]["content"]
    assert said[3]["content"]
    expect_answers(chat, said[1]["content"], said[3]["content"])
    expect(chat).to_have_title("Hello! Who are you? – zinc")
    expect(chat.locator("#models select")).to_have_value(MODEL)
    stats = chat.locator(".stats").last
    expect(stats).to_have_text(re.compile(r"[\d,.]+ tokens/s · \d+ tokens"))
    expect(stats).not_to_contain_text("about")
    expect(chat.locator(".context")).to_have_text(re.compile(r"^[\d,]+ of [\d,]+ tokens$"))


def test_stop_during_a_stream(chat: Any, server: Running, gate: threading.Event) -> None:
    send(chat, "Tell me about a fox.")
    expect(answers(chat)).to_contain_text(BEGINNING)
    chat.click("#stop")
    wait_answered(chat)
    gate.set()
    server.wait_idle()  # the engine has freed it
    text = last_answer(chat)
    assert text.startswith(BEGINNING)
    expect(chat.locator(".note")).to_contain_text("Stopped.")
    expect(chat.locator(".stats").last).to_contain_text("about")
    wait_ended(chat, 1)
    chat.reload()
    expect_answers(chat, text)


def test_a_stopped_answer_is_continued(chat: Any) -> None:
    greedy(chat, 8)
    text = ask(chat, "Tell me a story about a fox.")
    expect(chat.locator(".note")).to_contain_text("limit")
    chat.get_by_role("button", name="Continue").click()
    wait_answered(chat)
    assert last_answer(chat).startswith(text)
    assert len(last_answer(chat)) > len(text)
    expect(answers(chat)).to_have_count(1)


def test_reload_keeps_conversations(chat: Any) -> None:
    greedy(chat, 16)
    first = ask(chat, "Hello!")
    chat.click("#new-chat")
    expect(answers(chat)).to_have_count(0)
    greedy(chat, 16)
    second = ask(chat, "What is the capital of France?")
    wait_ended(chat, 2)
    chat.reload()
    expect_answers(chat, second)
    chat.get_by_role("button", name="Hello!", exact=True).click()
    expect_answers(chat, first)
    chat.go_back()
    expect_answers(chat, second)
    # Settings are stored with the conversation.
    chat.click("#open-settings")
    expect(chat.locator('input[name="max_tokens"]')).to_have_value("16")


def test_reload_during_a_stream_keeps_the_received_text(
    chat: Any, server: Running, gate: threading.Event
) -> None:
    send(chat, "Tell me about a fox.")
    expect(answers(chat)).to_contain_text(BEGINNING)
    wait_stored(chat, "word after word")
    chat.reload()
    expect(answers(chat)).to_contain_text("word after word")
    expect(chat.locator(".note")).to_contain_text("Stopped.")
    gate.set()
    server.wait_idle()


def test_regenerate_edit_and_branch(chat: Any) -> None:
    greedy(chat, 12)
    first = ask(chat, "Hello!")
    second = ask(chat, "What is two plus two?")
    chat.get_by_role("button", name="Answer again").last.click()
    wait_answered(chat)
    expect_answers(chat, first, second)  # greedy sampling repeats the answer
    expect(chat.locator(".versions")).to_have_text("2/2")
    # Editing the first question starts a branch.
    chat.locator(".message.user").first.hover()
    chat.locator(".message.user").first.get_by_role("button", name="Edit").click()
    chat.get_by_label("Edit the message").fill("Goodbye!")
    chat.keyboard.press("Enter")
    wait_answered(chat)
    expect(answers(chat)).to_have_count(1)
    expect(chat.locator(".message.user .plain")).to_have_text(["Goodbye!"])
    # The old branch still exists, with its answers.
    chat.get_by_role("button", name="Earlier version").first.click()
    expect_answers(chat, first, second)
    expect(chat.locator(".message.user .plain").first).to_have_text("Hello!")


def test_emoji_and_chinese_split_across_tokens_arrive_whole(
    chat: Any, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "好的!世界很大,龘龘也在。🦊👩‍👩‍👧 ok"
    tokenizer = tokenizer_of(server)
    ids = tokenizer.encode(text, add_special=False)
    split = [id for id in ids if not is_whole(tokenizer.token_bytes(id))]
    assert len(split) > 12  # otherwise this test would be pointless
    assert tokenizer.eos_id is not None
    dictate(monkeypatch, [*ids, tokenizer.eos_id])
    chat.evaluate(
        """() => {
            window.shown = [];
            new MutationObserver(() => window.shown.push(
                document.querySelector("#messages").textContent,
            )).observe(document.querySelector("#messages"),
                { childList: true, subtree: true, characterData: true });
        }"""
    )
    assert ask(chat, "Say it.") == text
    assert not any("\ufffd" in each for each in chat.evaluate("window.shown"))


def is_whole(piece: bytes) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_keyboard_only(chat: Any) -> None:
    """Use a conversation, its settings, an edit and another conversation without a pointer."""
    press = chat.keyboard.press

    def move(key: str, name: str, wanted: str) -> None:
        """Press a key until the focused element is the wanted one."""
        for _ in range(100):
            if chat.evaluate(f"document.activeElement.{name}") == wanted:
                return
            press(key)
        pytest.fail(f"{key} does not lead to {wanted}")

    wait_focused(chat, "id", "prompt")
    press("Control+,")
    chat.wait_for_selector("#settings[open]")
    move("Tab", "name", "temperature")
    chat.keyboard.type("0")
    move("Tab", "name", "max_tokens")
    chat.keyboard.type("10")
    press("Escape")
    wait_focused(chat, "id", "prompt")
    chat.keyboard.type("Hello!")
    press("Shift+Enter")
    chat.keyboard.type("Who are you?")
    press("Enter")
    chat.wait_for_selector(".message.assistant")
    wait_answered(chat)
    said = chat.locator(".message.user .plain")
    expect(said).to_have_js_property("innerText", "Hello!\nWho are you?")
    press("ArrowUp")
    wait_focused(chat, "value", "Hello!\nWho are you?")
    press("Control+a")
    chat.keyboard.type("Good morning!")
    press("Enter")
    wait_answered(chat)
    expect(chat.locator(".versions").first).to_have_text("2/2")
    move("Shift+Tab", "ariaLabel", "Earlier version")
    press("Enter")
    expect(chat.locator(".versions").first).to_have_text("1/2")
    press("Control+Shift+O")
    wait_focused(chat, "id", "prompt")
    expect(answers(chat)).to_have_count(0)
    press("Control+k")
    wait_focused(chat, "id", "search")
    chat.keyboard.type("who are")
    press("Enter")
    expect(said).to_have_js_property("innerText", "Hello!\nWho are you?")


def test_escape_stops_the_answer(chat: Any, server: Running, gate: threading.Event) -> None:
    send(chat, "Tell me about a fox.")
    expect(answers(chat)).to_contain_text("word")
    chat.keyboard.press("Escape")
    wait_answered(chat)
    expect(chat.locator(".note")).to_contain_text("Stopped.")
    gate.set()
    server.wait_idle()


SUM = "What is 17 + 25 + 3?"


def test_reasoning_is_folded_and_timed(chat: Any, server: Running) -> None:
    greedy(chat, 200)
    chat.click("#open-settings")
    chat.select_option('select[name="thinking"]', "on")
    chat.keyboard.press("Escape")
    ask(chat, SUM)
    details = chat.locator(".reasoning")
    body = {
        "messages": [{"role": "user", "content": SUM}],
        "temperature": 0, "max_tokens": 200, "enable_thinking": True,
    }  # fmt: skip
    message = server.post("/v1/chat/completions", body).json["choices"][0]["message"]
    expected = message["reasoning_content"].strip()
    assert expected
    expect(details).to_have_js_property("open", False)
    summary = details.locator("summary")
    expect(summary).to_have_text(re.compile(r"^(Thought for \d.*s|Thoughts)$"))
    summary.click()
    expect(details.locator(".thought")).to_have_text(expected, use_inner_text=True)


def test_too_small_context_is_reported(chat: Any) -> None:
    send(chat, "word " * 40_000)
    expect(chat.locator(".note.error")).to_have_text(
        re.compile(r"The prompt is too long: .* 4096 tokens")
    )
    expect(chat.get_by_role("button", name="Try again")).to_be_visible()


def test_server_with_a_key_asks_for_it(open_tab: OpenTab) -> None:
    with running(api_keys=("secret",)) as server:
        tab = open_tab(server.url, wait=False)
        tab.fill("#key input[type=password]", "wrong")
        tab.keyboard.press("Enter")
        tab.wait_for_selector("#key[open] .field-error:not(:empty)")
        tab.fill("#key input[type=password]", "secret")
        tab.keyboard.press("Enter")
        tab.wait_for_selector("#models option", state="attached")
        greedy(tab, 8)
        assert ask(tab, "Hello!")
        # Unless the user asks to keep the key, it is lost with the tab.
        assert tab.evaluate("localStorage.getItem('zinc.key')") is None
        tab.goto("about:blank")  # otherwise it would poll a stopped server
