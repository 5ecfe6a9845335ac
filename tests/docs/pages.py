"""Documentation pages, their code blocks, and a server to run them against."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.adapter_files import random_pairs, write_adapter

from zinc.engine.load.files import EMBEDDED_MODEL
from zinc.formats.gguf import GGUFFile

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
PROGRAMS = {"python": sys.executable, "zinc": f"{sys.executable} -m zinc"}
MODELFILE = "./Modelfile"
REQUESTS, ANSWERS = "requests.jsonl", "answers.jsonl"
CLUSTER = "cluster.yaml"
CACHE = "zinc-cache"
RESULTS = ("alone.json", "together.json")  # of `zinc bench`
ADAPTER = re.compile(r"\badapter[\w-]*\.gguf")
ANSWER_TOKENS = 50
ADDRESS = "http://127.0.0.1:8080"  # of the server in every example


def blocks(page: Path, language: str) -> list[str]:
    """Return the fenced code blocks of `page` in `language`."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def commands(page: Path) -> Iterator[str]:
    """Yield the commands of the console blocks of `page`; a backslash continues a line."""
    for block in blocks(page, "console"):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("$ "):
                yield re.sub(r"\s+#.*", "", line.removeprefix("$ "))


def with_demo_model(text: str) -> str:
    """Return `text` with the demo model in place of every model file but adapters."""
    return re.sub(r"(?<![\w./-])(?!adapter)[\w./-]+\.gguf", str(EMBEDDED_MODEL), text)


def write_adapters(text: str, folder: Path) -> None:
    """Write the adapters for the demo model that `text` names."""
    with GGUFFile.open(EMBEDDED_MODEL) as file:
        arch = file.str("general.architecture")
    for name in set(ADAPTER.findall(text)):
        write_adapter(folder / name, random_pairs(EMBEDDED_MODEL, ("attn_q",)), arch)


def script(command: str, folder: Path) -> str:
    """Return a `zinc` or `python` command for this checkout, this Python and the demo model.

    folder: where the Modelfile and the requests of the pages are; redirected output and the prefix
    cache go there.
    """
    command = with_demo_model(command).replace("git diff", "echo '+ x = 1'")
    names = (MODELFILE, REQUESTS, CLUSTER, CACHE, ANSWERS, *RESULTS, *set(ADAPTER.findall(command)))
    for name in names:
        command = command.replace(name, str(folder / name))
    command = re.sub(r"> (?=\w)", f"> {folder}/", command)
    if " -n " not in command:  # the demo model may tell a long story
        command = command.replace("zinc run ", f"zinc run -n {ANSWER_TOKENS} ")
    return re.sub(r"\b(python(?= )|zinc(?= ))", lambda m: PROGRAMS[m[0]], command, count=1)


def environment(state: Path) -> dict[str, str]:
    """Return environment variables for `script`; programs keep their history in `state`."""
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    more = {"ZINC_THREADS": "2", "XDG_STATE_HOME": str(state)}
    return {**os.environ, **more, "PYTHONPATH": os.pathsep.join(paths)}


@contextmanager
def serving(command: str, state: Path) -> Iterator[str]:
    """Run a `zinc serve` command on a free port; yield its address once it serves."""
    process = subprocess.Popen(
        ["bash", "-c", f"exec {script(command, state)} --port 0"],
        env=environment(state),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        lines = iter(process.stderr.readline, "")
        yield next(found[0] for line in lines if (found := re.search(r"http://\S+\d", line)))
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()
