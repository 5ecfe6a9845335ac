"""The chat page against the real server and the embedded model."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from itertools import cycle
from typing import Any

import pytest
from acts import answers, ask, last_answer, send, wait_answered, wait_stored
from serving import MODEL, Running, running

from zinc.engine import flight
from zinc.engine.sampling import Sampled
from zinc.tokenizer import Tokenizer

OpenTab = Callable[..., Any]


def greedy(tab: Any, max_tokens: int) -> None:
    """Sets the conversation's temperature and length on its settings sheet."""
    tab.click("#open-settings")
    tab.fill('input[name="temperature"]', "0")
    tab.fill('input[name="max_tokens"]', str(max_tokens))
    tab.keyboard.press("Escape")


def dictate(monkeypatch: pytest.MonkeyPatch, ids: Iterable[int], pause_s: float = 0) -> None:
    """Makes the engine draw these tokens, one a `pause_s`, whatever the model says."""
    rest = iter(ids)

    def sample_rows(samplers: Any, logits: Any, masks: Any) -> list[Sampled]:
        time.sleep(pause_s)
        return [Sampled(next(rest)) for _ in samplers]

    monkeypatch.setattr(flight, "sample_rows", sample_rows)


def go_on(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the engine write words without end."""
    ids = tokenizer_of(server).encode("word after word, ", add_special=False)
    dictate(monkeypatch, cycle(ids), pause_s=0.02)


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
    # The page shows what the server says when it is asked for the same without it.
    said: list[dict[str, str]] = []
    for question in ("Hello! Who are you?", "What is two plus three?"):
        said.append({"role": "user", "content": question})
        body = {"messages": said, "temperature": 0, "max_tokens": 24}
        message = server.post("/v1/chat/completions", body).json["choices"][0]["message"]
        said.append({"role": "assistant", "content": message["content"]})
    expected = [said[1]["content"].strip(), said[3]["content"].strip()]
    assert all(expected)
    assert [re.sub(r"\s+", " ", text) for text in answers(chat)] == [
        re.sub(r"\s+", " ", text) for text in expected
    ]
    assert chat.title() == "Hello! Who are you? – zinc"
    assert chat.locator("#models select").input_value() == MODEL
    stats = chat.locator(".stats").last.inner_text()
    assert re.search(r"[\d,.]+ tokens/s · \d+ tokens", stats)
    assert "about" not in stats
    assert re.fullmatch(r"[\d,]+ of [\d,]+ tokens", chat.locator(".context").inner_text())


def test_stop_in_mid_stream(chat: Any, server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on(server, monkeypatch)
    send(chat, "Tell me about a fox.")
    chat.wait_for_function(
        "() => document.querySelector('.message.assistant .markdown')?.textContent.length > 40"
    )
    chat.click("#stop")
    wait_answered(chat)
    server.wait_idle()  # the engine has let go of it
    text = last_answer(chat)
    assert len(text) > 40
    assert "Stopped." in chat.locator(".note").inner_text()
    assert "about" in chat.locator(".stats").last.inner_text()
    wait_stored(chat, "stopped")
    chat.reload()
    chat.wait_for_selector(".message.assistant .markdown p")
    assert last_answer(chat) == text


def test_a_stopped_answer_is_continued(chat: Any) -> None:
    greedy(chat, 8)
    text = ask(chat, "Tell me a story about a fox.")
    assert "limit" in chat.locator(".note").inner_text()
    chat.get_by_role("button", name="Continue").click()
    wait_answered(chat)
    assert last_answer(chat).startswith(text)
    assert len(last_answer(chat)) > len(text)
    assert len(answers(chat)) == 1


def test_reload_keeps_conversations(chat: Any) -> None:
    greedy(chat, 16)
    first = ask(chat, "Hello!")
    chat.click("#new-chat")
    assert answers(chat) == []
    greedy(chat, 16)
    second = ask(chat, "What is the capital of France?")
    wait_stored(chat, second.split("\n")[0][:20])
    chat.reload()
    chat.wait_for_selector(".message.assistant .markdown p")
    assert answers(chat) == [second]
    chat.get_by_role("button", name="Hello!", exact=True).click()
    assert answers(chat) == [first]
    chat.go_back()
    assert answers(chat) == [second]
    # Settings are part of it.
    chat.click("#open-settings")
    assert chat.input_value('input[name="max_tokens"]') == "16"


def test_reload_in_mid_stream_keeps_what_came(
    chat: Any, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on(server, monkeypatch)
    send(chat, "Tell me about a fox.")
    chat.wait_for_function(
        "() => document.querySelector('.message.assistant .markdown')?.textContent.length > 200"
    )
    wait_stored(chat, "word after word")
    chat.reload()
    chat.wait_for_selector(".message.assistant .markdown p")
    assert len(last_answer(chat)) > 20
    assert "Stopped." in chat.locator(".note").inner_text()
    server.wait_idle()


def test_regenerate_edit_and_branch(chat: Any) -> None:
    greedy(chat, 12)
    first = ask(chat, "Hello!")
    second = ask(chat, "What is two plus two?")
    chat.get_by_role("button", name="Answer again").last.click()
    wait_answered(chat)
    assert answers(chat) == [first, second]  # greedy says it again
    assert chat.locator(".versions").inner_text() == "2/2"
    # Another first question begins a branch.
    chat.locator(".message.user").first.hover()
    chat.locator(".message.user").first.get_by_role("button", name="Edit").click()
    chat.get_by_label("Edit the message").fill("Goodbye!")
    chat.keyboard.press("Enter")
    wait_answered(chat)
    assert len(answers(chat)) == 1
    assert chat.locator(".message.user .plain").all_inner_texts() == ["Goodbye!"]
    # The old one is there still, with what followed.
    chat.get_by_role("button", name="Earlier version").first.click()
    assert answers(chat) == [first, second]
    assert chat.locator(".message.user .plain").first.inner_text() == "Hello!"


def test_emoji_and_chinese_split_across_tokens_arrive_whole(
    chat: Any, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "好的!世界很大,龘龘也在。🦊👩‍👩‍👧 ok"
    tokenizer = tokenizer_of(server)
    ids = tokenizer.encode(text, add_special=False)
    split = [id for id in ids if not is_whole(tokenizer.token_bytes(id))]
    assert len(split) > 12  # or the test shows nothing
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
    """A conversation, its settings, an edit and another conversation, without a pointer."""
    press, focused = chat.keyboard.press, "document.activeElement"
    assert chat.evaluate(f"{focused}.id") == "prompt"
    press("Control+,")
    chat.wait_for_selector("#settings[open]")
    while chat.evaluate(f"{focused}.name") != "temperature":
        press("Tab")
    chat.keyboard.type("0")
    while chat.evaluate(f"{focused}.name") != "max_tokens":
        press("Tab")
    chat.keyboard.type("10")
    press("Escape")
    assert chat.evaluate(f"{focused}.id") == "prompt"
    chat.keyboard.type("Hello!")
    press("Shift+Enter")
    chat.keyboard.type("Who are you?")
    press("Enter")
    chat.wait_for_selector(".message.assistant")
    wait_answered(chat)
    assert chat.locator(".message.user .plain").inner_text() == "Hello!\nWho are you?"
    press("ArrowUp")
    assert chat.evaluate(f"{focused}.value") == "Hello!\nWho are you?"
    press("Control+a")
    chat.keyboard.type("Good morning!")
    press("Enter")
    wait_answered(chat)
    assert chat.locator(".versions").first.inner_text() == "2/2"
    while chat.evaluate(f"{focused}.ariaLabel") != "Earlier version":
        press("Shift+Tab")
    press("Enter")
    assert chat.locator(".versions").first.inner_text() == "1/2"
    press("Control+Shift+O")
    assert chat.evaluate(f"{focused}.id") == "prompt"
    assert answers(chat) == []
    press("Control+k")
    assert chat.evaluate(f"{focused}.id") == "search"
    chat.keyboard.type("who are")
    press("Enter")
    assert chat.locator(".message.user .plain").inner_text() == "Hello!\nWho are you?"


def test_escape_stops_the_answer(
    chat: Any, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on(server, monkeypatch)
    send(chat, "Tell me about a fox.")
    chat.wait_for_selector(".message.assistant .markdown p")
    chat.keyboard.press("Escape")
    wait_answered(chat)
    assert "Stopped." in chat.locator(".note").inner_text()
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
    assert details.get_attribute("open") is None
    summary = details.locator("summary")
    assert re.fullmatch(r"Thought for [\d.]+ (ms|s)|Thoughts", summary.inner_text())
    summary.click()
    chat.wait_for_selector(".thought p")
    shown = re.sub(r"\s+", " ", details.locator(".thought").inner_text())
    assert shown == re.sub(r"\s+", " ", expected)


def test_context_that_is_too_small_is_told(chat: Any) -> None:
    send(chat, "word " * 40_000)
    chat.wait_for_selector(".note.error")
    assert re.search(r"prompt has \d+ tokens", chat.locator(".note.error").inner_text())
    chat.get_by_role("button", name="Try again").is_visible()


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
        # Not asked to keep it, the browser forgets it with the tab.
        assert tab.evaluate("localStorage.getItem('zinc.key')") is None
        tab.close()
