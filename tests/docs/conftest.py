"""A hub on loopback for the models that pages download."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator

import pytest
from hub.fake_hub import FakeHub
from pages import CLUSTER, MODELFILE, PAGES, REQUESTS, ROOT, blocks, commands, write_adapters

from zinc.engine.load.files import EMBEDDED_MODEL
from zinc.hub.errors import ModelNameError
from zinc.hub.names import HubName, is_model_name, parse
from zinc.hub.pull import pull

MODELFILE_TEXT = blocks(ROOT / "docs/models.md", "dockerfile")[0]
CLUSTER_TEXT = blocks(ROOT / "docs/cluster.md", "yaml")[0]
REQUESTS_TEXT = blocks(ROOT / "docs/batch.md", "jsonl")[0]


def model_names(words: list[str]) -> list[str]:
    """Return the words that name a model of the hub."""
    return [name for word in words if is_of_hub(name := word.partition("=")[2] or word)]


def is_of_hub(word: str) -> bool:
    """Return whether a word names a repository, or a model of the catalogue."""
    try:
        return is_model_name(word) and "://" not in word and isinstance(parse(word), HubName)
    except ModelNameError:
        return False


@pytest.fixture(scope="session")
def hub() -> Iterator[FakeHub]:
    """A hub that has the demo model in every repository that a page names."""
    server = FakeHub()
    data = EMBEDDED_MODEL.read_bytes()
    words = [w for page in PAGES for command in commands(page) for w in shlex.split(command)]
    words += [w for page in PAGES for code in blocks(page, "python")
              for w in re.findall(r'"([^"\n]+)"', code)]  # fmt: skip
    for name in {*model_names(words), *model_names(MODELFILE_TEXT.split())}:
        files = {f"model-{label}.gguf": data for label in ("Q4_K_M", "Q8_0")}
        server.add(parse(name).repo, files)
    yield server
    server.close()


@pytest.fixture(autouse=True)
def provide(hub, monkeypatch, tmp_path) -> Callable[[str], None]:
    """Use `hub`, and an empty cache. Return a function that gets what a command needs.

    It pulls the models, and writes the Modelfile, the requests of a batch, the config of a cluster
    and adapters.
    """
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "models"))

    def provide(command: str) -> None:
        words = shlex.split(command)
        if MODELFILE in command:
            (tmp_path / MODELFILE).write_text(MODELFILE_TEXT)
            words += MODELFILE_TEXT.split()
        if REQUESTS in command:
            (tmp_path / REQUESTS).write_text(REQUESTS_TEXT)
        if CLUSTER in command:
            (tmp_path / CLUSTER).write_text(CLUSTER_TEXT)
        write_adapters(command, tmp_path)
        for name in model_names(words):
            pull(name)

    return provide
