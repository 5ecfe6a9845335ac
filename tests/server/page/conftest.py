"""Chromium for the tests of the chat page; without it, or without Playwright, they are skipped.

The browser is closed after each module: while it is open, Playwright runs an event loop in this
thread, and other tests want to start their own.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from scripted import Script, Server, script_server, scripted
from serving import PATIENCE_S

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# Each window would draw the popup of its address bar, which tests do not see, in another process.
UNUSED = "--disable-features=WebUIOmniboxPopup,WebUIOmniboxAimPopup"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("no Chromium is installed")
    with api.sync_playwright() as playwright:
        options = {"executable_path": path, "timeout": 1000 * PATIENCE_S}
        found = playwright.chromium.launch(**options, args=["--no-sandbox", UNUSED])
        yield found
        found.close()


@pytest.fixture(scope="module")
def lab(browser: Any) -> Iterator[Any]:
    """A page shared by tests that only call its modules."""
    with scripted() as script:
        found = new_tab(browser)
        found.goto(script.url)
        yield found
        found.close()


def new_tab(browser: Any, **options: Any) -> Any:
    """Return a new page in an empty browser profile."""
    context = browser.new_context(**options)
    context.set_default_timeout(1000 * PATIENCE_S)
    return context.new_page()


@dataclass
class Kept:
    """A page that tests use one after another, since a new page takes a second."""

    tab: Any
    problems: list[str] = field(default_factory=list)
    origins: set[str] = field(default_factory=set)

    def clean(self) -> None:
        """Clear the page and the browser's storage after a test."""
        for other in self.tab.context.pages:
            if other is not self.tab:
                other.close()
        if self.tab.url != "about:blank":
            # Left by a script, the renderer process stays and takes the next page.
            leave = "() => { sessionStorage.clear(); location.replace('about:blank'); }"
            self.tab.evaluate(leave)
            self.tab.wait_for_url("about:blank")
        session = self.tab.context.new_cdp_session(self.tab)
        for origin in self.origins:
            session.send("Storage.clearDataForOrigin", {"origin": origin, "storageTypes": "all"})
        session.detach()
        self.origins.clear()
        self.problems.clear()


@pytest.fixture(scope="module")
def kept(browser: Any) -> Iterator[Kept]:
    found = Kept(new_tab(browser))
    watch(found.tab, found.problems)
    yield found
    found.tab.context.close()


@pytest.fixture
def open_tab(browser: Any, kept: Kept) -> Iterator[Callable[..., Any]]:
    """Open a page in an empty browser profile.

    A script error or a broken policy fails the test.
    """
    problems: list[str] = []
    opened: list[Any] = []
    with ExitStack() as stack:

        def open_tab(url: str, wait: bool = True, **options: Any) -> Any:
            if options or kept.tab in opened:
                tab = new_tab(browser, **options)
                stack.callback(tab.context.close)
                watch(tab, problems)
            else:
                tab = kept.tab
                kept.origins.add(url.rstrip("/"))
                stack.callback(kept.clean)
            opened.append(tab)
            tab.goto(url)
            if wait:  # until the page has loaded the list of models
                tab.wait_for_selector("#models option", state="attached")
            return tab

        yield open_tab
        assert problems + kept.problems == []


def watch(tab: Any, problems: list[str]) -> None:
    """Collect script errors, violations of the Content-Security-Policy, and dialogs."""
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.on("dialog", lambda dialog: (problems.append(dialog.message), dialog.dismiss()))

    def on_console(message: Any) -> None:
        # The browser logs error responses; the page shows them.
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            problems.append(message.text)

    tab.on("console", on_console)


@pytest.fixture(scope="module")
def script_host() -> Iterator[Server]:
    """A server for the scripts of all tests, so that the browser loads the page's files once."""
    with script_server() as found:
        yield found


@pytest.fixture
def script(script_host: Server) -> Iterator[Script]:
    with script_host.following() as found:
        yield found


@pytest.fixture
def tab(open_tab: Callable[..., Any], script: Script) -> Any:
    """Open the page of the scripted server."""
    return open_tab(script.url)
