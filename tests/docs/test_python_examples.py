"""Run the Python examples of README.md and docs/ with the demo model."""

from __future__ import annotations

import inspect
import io
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from pages import ADDRESS, PAGES, REQUESTS, ROOT, blocks, serving, with_demo_model, write_adapters
from present import absent

from zinc import LLM

PAGE = ROOT / "docs" / "python.md"
# A heading, its example and, where the page says it, what the example prints.
EXAMPLE = re.compile(
    r"^## ([^\n]+)\n(?:(?!^## |^```).)*?^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```)?",
    re.DOTALL | re.MULTILINE,
)
EXAMPLES = [
    pytest.param(code, wanted, id=title)
    for title, code, wanted in EXAMPLE.findall(PAGE.read_text())
]
# Examples of other pages: self-contained ones, and those for clients of a server.
OTHERS = [
    pytest.param(code, id=f"{page.name} {i}")
    for page in PAGES
    if page != PAGE
    for i, code in enumerate(blocks(page, "python"))
]


@pytest.fixture(autouse=True)
def _run_on_two_cpu_threads(monkeypatch, tmp_path):
    monkeypatch.setenv("ZINC_BACKEND", "cpu")
    monkeypatch.setenv("ZINC_THREADS", "2")
    monkeypatch.chdir(tmp_path)


def run(code):
    """Run `code` as a script and return what it prints."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(code, "example", "exec"), {"__name__": "__main__"})
    return printed.getvalue()


def test_the_page_has_eleven_numbered_examples():
    numbers = [str(example.id).partition(".")[0] for example in EXAMPLES]
    assert numbers[:11] == [str(n) for n in range(1, 12)]


@pytest.mark.parametrize(("code", "wanted"), EXAMPLES)
def test_example_prints_what_the_page_says(code, wanted):
    if "constraint" in code:
        pytest.importorskip("llguidance")
    printed = run(code)
    assert printed == wanted or not wanted


def test_options_are_the_arguments_of_llm():
    table = PAGE.read_text().split("## Options of `LLM`")[1].split("\n## ")[0]
    named = {name for row in re.findall(r"^\| (`.+?) \|", table, re.MULTILINE)
             for name in re.findall(r"`(\w+)`", row)}  # fmt: skip
    assert named == {*inspect.signature(LLM).parameters} - {"model"}


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The address of a server for all examples."""
    pytest.importorskip("uvicorn")
    folder = tmp_path_factory.mktemp("server")
    with serving(f"zinc serve --batch-dir {folder}/batches", folder) as found:
        yield found


@pytest.mark.parametrize("code", OTHERS)
def test_example_of_another_page_runs(code, request):
    for module in re.findall(r"^from (\w+) import", code, re.MULTILINE):
        pytest.importorskip(module)
    if "vulkan" in code and "vulkan" in absent():
        pytest.skip("there is no Vulkan device")
    if REQUESTS in code:
        pytest.importorskip("python_multipart")
        Path(REQUESTS).write_text(blocks(ROOT / "docs/batch.md", "jsonl")[0])
    write_adapters(code, Path())
    code = with_demo_model(code)
    if ADDRESS in code:
        code = code.replace(ADDRESS, request.getfixturevalue("address"))
    run(code)
