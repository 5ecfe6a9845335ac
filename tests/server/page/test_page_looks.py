"""Layout and labels of the page: phone width, dark mode, contrast, names of controls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from acts import ask, expect, let_time_pass, stop_clock, wait_answered
from scripted import Script, answer

OpenTab = Callable[..., Any]

WIDE = """A table wider than a phone:

| one | two | three | four | five | six |
|---|---|---|---|---|---|
| aaaaaaaaaaaa | bbbbbbbbbbbb | cccccccccccc | dddddddddddd | eeeeeeeeeeee | ffffffffffff |

```python
line = "a line of code that is much wider than the screen of any telephone, by far, and then some"
```

Averyveryveryveryveryveryveryveryveryveryveryveryveryveryveryveryveryverylongword.
"""

PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}


def test_phone_width(open_tab: OpenTab, script: Script) -> None:
    tab = open_tab(script.url, **PHONE)
    script.say(*answer(WIDE, calls=[("f", '{"x": "' + "y" * 200 + '"}')]))
    tab.fill("#prompt", "Hi " + "x" * 100)
    tab.tap("#send")
    tab.wait_for_selector("form.results")
    overflow = "() => document.documentElement.scrollWidth > innerWidth"
    assert not tab.evaluate(overflow)
    beyond = tab.evaluate(
        """() => [...document.querySelectorAll("#main *")].filter((each) => {
            const box = each.getBoundingClientRect();
            const inside = each.closest(".table, pre, .offscreen");
            return box.width && !inside && (box.right > innerWidth + 1 || box.left < -1);
        }).map((each) => each.className || each.tagName)"""
    )
    assert beyond == []
    # The sidebar covers the page and can be closed.
    sidebar, main = tab.locator("#sidebar"), tab.locator("#main")
    expect(sidebar).not_to_be_visible()
    tab.tap("#show-sidebar")
    expect(sidebar).to_be_visible()
    expect(main).to_have_js_property("inert", True)
    tab.tap("#conversations .open")
    tab.keyboard.press("Escape")
    expect(sidebar).not_to_be_visible()
    expect(main).to_have_js_property("inert", False)
    # A touch target is at least 36 pixels high.
    for name in ("#show-sidebar", "#send", "#open-settings", "#theme"):
        assert tab.locator(name).bounding_box()["height"] >= 36
    tab.tap("#open-settings")
    tab.wait_for_selector("#settings[open]")
    assert not tab.evaluate(overflow)


def test_enter_on_a_phone_starts_a_new_line(open_tab: OpenTab, script: Script) -> None:
    phone = open_tab(script.url, **PHONE)
    phone.fill("#prompt", "One")
    phone.press("#prompt", "Enter")
    expect(phone.locator("#prompt")).to_have_value("One\n")
    assert phone.get_attribute("#prompt", "enterkeyhint") == "enter"
    script.say(*answer("Hello."))
    phone.tap("#send")
    wait_answered(phone)
    assert not phone.evaluate("document.activeElement.matches('textarea')")  # it opens a keyboard
    phone.get_by_role("button", name="Edit").first.tap()
    edit = phone.get_by_label("Edit the message")
    edit.press("End")
    edit.press("Enter")
    expect(edit).to_have_value("One\n")
    phone.get_by_role("button", name="Cancel").tap()
    phone.tap("#show-sidebar")
    expect(phone.get_by_role("button", name="Hide conversations")).to_be_focused()


def test_deleting_the_open_chat_on_a_phone_leaves_the_list_open(
    open_tab: OpenTab, script: Script
) -> None:
    phone = open_tab(script.url, **PHONE)
    for text in ("One", "Two"):
        script.say(*answer(text))
        phone.fill("#prompt", text)
        phone.tap("#send")
        wait_answered(phone)
        if text == "One":
            phone.tap("#new-chat-short")
    sidebar, rows = phone.locator("#sidebar"), phone.locator("#conversations li")
    phone.tap("#show-sidebar")
    expect(rows).to_have_count(2)
    stop_clock(phone)
    phone.get_by_role("button", name="Delete Two").tap()
    expect(rows).to_have_count(1)
    expect(sidebar).to_be_visible()
    expect(phone.locator("#thread .message")).to_have_count(0)
    phone.get_by_role("button", name="Undo").tap()
    let_time_pass(phone)
    expect(rows).to_have_count(2)
    expect(sidebar).to_be_visible()
    phone.get_by_role("button", name="One", exact=True).tap()
    expect(sidebar).not_to_be_visible()


def test_wide_formulas_scroll_separately(open_tab: OpenTab, script: Script) -> None:
    tab = open_tab(script.url, **PHONE)
    wide = " + ".join(f"x_{{{i}}}" for i in range(20))
    script.say(*answer(f"See ${wide}$ here.\n\n# ${wide}$\n\n$$\n{wide}\n$$\n\n- ${wide}$"))
    tab.fill("#prompt", "Formulas?")
    tab.tap("#send")
    tab.wait_for_function("() => document.querySelectorAll('math').length === 4")
    assert tab.evaluate("() => { const e = document.querySelector('#thread');"
                        " return e.scrollWidth === e.clientWidth; }")  # fmt: skip


def test_dark_mode(open_tab: OpenTab, script: Script) -> None:
    light, dark = "rgb(253, 253, 252)", "rgb(24, 24, 27)"
    tab = open_tab(script.url, color_scheme="dark")

    def expect_ground(colour: str) -> None:
        expect(tab.locator("body")).to_have_css("background-color", colour)

    expect_ground(dark)  # as the system's setting
    tab.click("#theme")
    expect(tab.locator("#theme")).to_have_attribute("aria-label", "Theme: light")
    expect_ground(light)
    tab.reload()
    expect_ground(light)
    tab.click("#theme")
    tab.emulate_media(color_scheme="light")
    expect_ground(dark)
    tab.click("#theme")
    expect_ground(light)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(open_tab: OpenTab, script: Script, scheme: str) -> None:
    """Text, including code and notes, has the contrast that WCAG 2 requires (4.5)."""
    tab = open_tab(script.url, color_scheme=scheme)
    ratios = tab.evaluate(
        """() => {
            const probe = document.body.appendChild(document.createElement("span"));
            const rgb = (name) => {
                probe.style.color = `var(--${name})`;
                return getComputedStyle(probe).color.match(/[\\d.]+/g).slice(0, 3).map(Number);
            };
            const light = (name) => {
                const [r, g, b] = rgb(name).map((v) => v / 255).map(
                    (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
                return 0.2126 * r + 0.7152 * g + 0.0722 * b;
            };
            const code = ["comment", "string", "word", "value", "call", "key"];
            const pairs = [
                ...["ground", "raised", "sunken", "line"].map((on) => ["text", on]),
                ...["ground", "raised", "sunken"].map((on) => ["muted", on]),
                ["accent", "ground"], ["text", "accent-soft"], ["on-accent", "accent"],
                ["error", "error-soft"], ["error", "ground"],
                ...code.map((kind) => [`code-${kind}`, "sunken"]),
            ];
            return pairs.map(([text, on]) => {
                const [a, b] = [light(text), light(on)];
                return [text, on, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)];
            });
        }"""
    )
    assert [pair for pair in ratios if pair[2] < 4.5] == []


def test_every_control_has_a_name(open_tab: OpenTab, script: Script) -> None:
    tab = open_tab(script.url)
    script.say(*answer(WIDE, reasoning=["Hm."], calls=[("f", "{}")]))
    tab.fill("#prompt", "Hi")
    tab.keyboard.press("Enter")
    tab.wait_for_selector("form.results")
    tab.click("#open-settings")
    tab.wait_for_selector("#settings[open]")
    nameless = tab.evaluate(
        """() => [...document.querySelectorAll(
                "button, input, select, textarea, a, [tabindex='0']")]
            .filter((each) => !each.hidden && each.type !== "file")
            .filter((each) => !each.ariaLabel && !each.labels?.length && !each.textContent.trim())
            .map((each) => each.outerHTML)"""
    )
    assert nameless == []
    ids = tab.evaluate("[...document.querySelectorAll('[id]')].map((each) => each.id)")
    assert len(ids) == len(set(ids))


def test_headings_give_the_conversation_a_structure(open_tab: OpenTab, script: Script) -> None:
    tab = open_tab(script.url)
    script.say(*answer("# Answer\n\ntext"))
    ask(tab, "Hi")
    found = tab.locator("#main").get_by_role("heading")
    expect(found).to_have_text(["Hi", "You", "Assistant", "Answer"])
