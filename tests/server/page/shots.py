"""Take the screenshots of docs/chat-page.md: `python tests/server/page/shots.py docs/images`.

The texts are samples, so that the pictures show what the page can, and not what a small model says.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1]))

from acts import send, wait_answered
from scripted import Script, answer, scripted

SEARCH = """A **binary search** finds a value in a sorted list by halving the range:

1. Look at the middle.
   - smaller: go on to the right of it
   - larger: go on to the left of it
2. Repeat until the value is found, or the range is empty.

```python
def search(values: list[int], wanted: int) -> int | None:
    \"\"\"Index of `wanted` in sorted `values`, or None.\"\"\"
    low, high = 0, len(values)
    while low < high:
        middle = (low + high) // 2  # rounds down
        if values[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low if low < len(values) and values[low] == wanted else None
```

| method | comparisons | needs |
|:-------|------------:|:------|
| linear | n | nothing |
| binary | log2 n | a sorted list |
"""
WEATHER = '[{"name": "get_weather", "parameters": {"type": "object"}}]'


def converse(tab: Page, script: Script) -> None:
    for question, text in (
        ("Plan a weekend in Lisbon", "Day one: Alfama."),
        ("你好!用中文介绍一下自己", "你好!"),
    ):
        script.say(*answer(text))
        submit(tab, question)
        tab.keyboard.press("Control+Shift+O")
    pieces = [SEARCH[i : i + 4] for i in range(0, len(SEARCH), 4)]
    parts = answer(pieces, reasoning=["The list is sorted, ", "so halve it."])
    script.say(*parts[:2], 1.3, *parts[2:])
    submit(tab, "How does binary search work? Show me some Python.")


def submit(tab: Page, text: str) -> None:
    tab.fill("#prompt", text)
    tab.click("#send")
    wait_answered(tab)


def call_tool(tab: Page, script: Script) -> None:
    tab.click("#open-settings")
    tab.get_by_label("Functions").fill(WEATHER)
    tab.keyboard.press("Escape")
    call = ("get_weather", '{"city": "Lisbon", "unit": "celsius"}')
    parts = answer("", reasoning=["They ask for", " the weather."], calls=[call])
    script.say(*parts[:2], 0.8, *parts[2:])
    send(tab, "What is the weather in Lisbon?")
    tab.wait_for_selector("form.results")
    tab.fill("form.results textarea", '{"temperature": 18}')


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with scripted() as script, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        context = browser.new_context(viewport={"width": 1180, "height": 860}, locale="en-GB")
        tab = context.new_page()
        tab.goto(script.url)
        converse(tab, script)
        tab.wait_for_timeout(300)
        tab.screenshot(path=folder / "chat-light.png")
        tab.emulate_media(color_scheme="dark")
        call_tool(tab, script)
        tab.wait_for_timeout(300)
        tab.screenshot(path=folder / "chat-dark-tools.png")
        tab.click("#open-settings")
        tab.wait_for_timeout(300)
        tab.screenshot(path=folder / "chat-settings.png")
        phone = browser.new_context(
            viewport={"width": 390, "height": 780}, is_mobile=True, has_touch=True, locale="en-GB"
        )
        tab = phone.new_page()
        tab.goto(script.url)
        converse(tab, script)
        tab.locator("#thread").evaluate("(e) => { e.scrollTop = 0; }")
        tab.wait_for_timeout(300)
        tab.screenshot(path=folder / "chat-phone.png")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
