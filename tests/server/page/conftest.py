"""Chromium for the tests of the chat page; without it, or without Playwright, they are skipped.

The browser is closed after each module: while it is open, Playwright runs an event loop in this
thread, and other tests want to start their own.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from scripted import Script, scripted
from serving import PATIENCE_S

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("no Chromium is installed")
    with api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def lab(browser: Any) -> Iterator[Any]:
    """One page for tests that call its modules and leave it as it is."""
    with scripted() as script:
        found = browser.new_page()
        found.goto(script.url)
        yield found
        found.close()


@pytest.fixture
def open_tab(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens a page in a fresh profile. A script error or a broken policy fails the test."""
    problems: list[str] = []
    with ExitStack() as stack:

        def open_tab(url: str, wait: bool = True, **options: Any) -> Any:
            context = browser.new_context(**options)
            stack.callback(context.close)
            context.set_default_timeout(1000 * PATIENCE_S)
            tab = context.new_page()
            watch(tab, problems)
            tab.goto(url)
            if wait:  # for the models
                tab.wait_for_selector("#models option", state="attached")
            return tab

        yield open_tab
        assert not problems


def watch(tab: Any, problems: list[str]) -> None:
    """Notes script errors, violations of the content policy, and dialogs."""
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.on("dialog", lambda dialog: (problems.append(dialog.message), dialog.dismiss()))

    def on_console(message: Any) -> None:
        # What the server refuses is logged by the browser, and shown by the page.
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            problems.append(message.text)

    tab.on("console", on_console)


@pytest.fixture
def script() -> Iterator[Script]:
    with scripted() as found:
        yield found


@pytest.fixture
def tab(open_tab: Callable[..., Any], script: Script) -> Any:
    """The page of the scripted server."""
    return open_tab(script.url)
