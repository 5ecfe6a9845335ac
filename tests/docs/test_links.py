"""Links between documentation pages, images and results lead to files and headings."""

from __future__ import annotations

import re

import pytest
from pages import PAGES, ROOT

ALL = [*PAGES, ROOT / "CHANGELOG.md", *(ROOT / "dev" / "kernels").glob("*.md")]
FOLDERS = ("src", "tests", "docs", "dev", "benchmarks")


def anchors(page):
    """Return the anchors of the headings of `page`, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page):
    found = re.findall(r"\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"", page.read_text())
    return [link for pair in found for link in pair if link and "://" not in link]


@pytest.mark.parametrize("page", ALL, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_index_lists_every_page():
    index = ROOT / "docs" / "README.md"
    listed = {(index.parent / link).resolve() for link in links(index)}
    assert {page.resolve() for page in PAGES} - {index} <= listed


@pytest.mark.parametrize("page", ALL, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_in_backticks_exist(page):
    """Check names such as `kv/tree.py`, which stand for the end of a path."""
    named = re.findall(r"`(\w[\w./-]*\.(?:py|cpp|h|inc|slang|txt|json|md))`", page.read_text())
    paths = [str(file) for folder in FOLDERS for file in (ROOT / folder).rglob("*.*")]
    missing = {name for name in named if not any(p.endswith(f"/{name}") for p in paths)}
    assert missing == set()
