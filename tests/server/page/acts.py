"""Actions on the chat page, and waits for their visible effects, for tests."""

from __future__ import annotations

import json
from typing import Any

from serving import PATIENCE_S, wait_for


def expect(found: Any) -> Any:
    """Return Playwright's assertions, which wait for a condition."""
    from playwright import sync_api  # tests without it are skipped

    sync_api.expect.set_options(timeout=1000 * PATIENCE_S)
    return sync_api.expect(found)


def send(tab: Any, text: str) -> None:
    tab.fill("#prompt", text)
    tab.press("#prompt", "Enter")


def wait_answered(tab: Any) -> None:
    """Wait until no answer is running and everything is drawn."""
    tab.wait_for_selector("#stop", state="hidden")


def ask(tab: Any, text: str) -> str:
    """Send a message and return the text of the answer."""
    send(tab, text)
    wait_answered(tab)
    return last_answer(tab)


def answers(tab: Any) -> Any:
    return tab.locator(".message.assistant .markdown")


def last_answer(tab: Any) -> str:
    text: str = answers(tab).last.inner_text()
    return text


def expect_answers(tab: Any, *texts: str) -> None:
    """Wait until the shown conversation has exactly these answers."""
    expect(answers(tab)).to_have_text(list(texts), use_inner_text=True)


def wait_focused(tab: Any, name: str, wanted: str) -> None:
    """Wait until the focused element has this value of a property."""
    test = "([name, wanted]) => document.activeElement[name] === wanted"
    tab.wait_for_function(test, arg=[name, wanted])


def stop_clock(tab: Any) -> None:
    """Stop the page's timers, so that short messages stay visible until `let_time_pass`."""
    tab.evaluate(
        """() => {
            const begin = window.setTimeout;
            const waiting = [];
            window.setTimeout = (...given) => waiting.push(given);
            window.letTimePass = () => {
                window.setTimeout = begin;
                for (const given of waiting) begin(...given);
            };
        }"""
    )


def let_time_pass(tab: Any) -> None:
    tab.evaluate("letTimePass()")


STORED = """() => new Promise((resolve, reject) => {
    const opening = indexedDB.open("zinc");
    opening.onerror = () => reject(opening.error);
    opening.onsuccess = () => {
        const store = opening.result.transaction("conversations").objectStore("conversations");
        store.getAll().onsuccess = ({ target }) => {
            opening.result.close();
            resolve(target.result);
        };
    };
})"""


def wait_stored(tab: Any, *texts: str) -> None:
    """Wait until the conversations in the browser's store contain these texts."""

    def are_there() -> bool:
        kept = json.dumps(tab.evaluate(STORED), ensure_ascii=False)
        return all(text in kept for text in texts)

    wait_for(are_there)


def wait_ended(tab: Any, n: int) -> None:
    """Wait until the browser's store contains `n` complete answers."""

    def have_ended() -> bool:
        nodes = [node for each in tab.evaluate(STORED) for node in each["nodes"].values()]
        found = [node["finish"] for node in nodes if node["role"] == "assistant"]
        return None not in found and len(found) == n

    wait_for(have_ended)
