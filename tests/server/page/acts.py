"""What somebody does on the page, for tests to read like it."""

from __future__ import annotations

import json
import time
from typing import Any

from serving import PATIENCE_S


def send(tab: Any, text: str) -> None:
    tab.fill("#prompt", text)
    tab.press("#prompt", "Enter")


def wait_answered(tab: Any) -> None:
    """Waits until no answer is on its way."""
    tab.wait_for_selector("#stop", state="hidden")


def ask(tab: Any, text: str) -> str:
    """Sends a message; the answer's text."""
    send(tab, text)
    wait_answered(tab)
    return last_answer(tab)


def last_answer(tab: Any) -> str:
    text: str = tab.locator(".message.assistant .markdown").last.inner_text()
    return text


def answers(tab: Any) -> list[str]:
    found: list[str] = tab.locator(".message.assistant .markdown").all_inner_texts()
    return found


STORED = """() => new Promise((resolve) => {
    const opening = indexedDB.open("zinc");
    opening.onsuccess = () => {
        const store = opening.result.transaction("conversations").objectStore("conversations");
        store.getAll().onsuccess = ({ target }) => {
            opening.result.close();
            resolve(target.result);
        };
    };
})"""


def wait_stored(tab: Any, text: str) -> None:
    """Waits until the browser's store holds a conversation with this text."""
    until = time.monotonic() + PATIENCE_S
    while text not in json.dumps(tab.evaluate(STORED), ensure_ascii=False):
        assert time.monotonic() < until
        tab.wait_for_timeout(50)
