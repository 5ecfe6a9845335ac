"""Pulls from a registry on loopback into Ollama's folder."""

from __future__ import annotations

import pytest
from hub.conftest import content, leftovers

from zinc.hub.errors import ChecksumError, DownloadError, MissingModelError
from zinc.hub.folders import folders
from zinc.hub.local import list_models
from zinc.hub.names import parse
from zinc.hub.ollama_folder import OllamaFolder, parse_manifest
from zinc.hub.pull import pull
from zinc.hub.resolve import resolve

DATA = content(5)


@pytest.fixture
def name(hub) -> str:
    """Return the MODEL argument for a model of the registry."""
    hub.add_ollama("library/small", "1b", DATA)
    return f"ollama:{hub.url}/library/small:1b"


def test_a_pull_puts_all_layers_and_the_manifest_into_the_folder(hub, home, options, name):
    path = pull(name, options=options)
    assert path.read_bytes() == DATA
    assert path.parent == home.ollama[0] / "blobs"
    manifest = home.ollama[0] / "manifests" / hub.url.removeprefix("http://") / "library/small/1b"
    assert manifest.read_bytes() == hub.manifests["library/small/manifests/1b"]
    for layer in parse_manifest(manifest.read_bytes(), "").layers:
        assert (home.ollama[0] / "blobs" / f"sha256-{layer.sha256}").stat().st_size == layer.n_bytes
    assert resolve(name) == path


def test_a_model_of_ollama_is_listed_and_used_in_place(hub, home, options, name):
    pull(name, options=options)
    host = hub.url.removeprefix("http://")
    registry = home.ollama[0] / "manifests"
    (registry / host).rename(registry / "registry.ollama.ai")
    (listed,) = list_models(home)
    assert (listed.name, listed.program) == ("ollama:small:1b", "Ollama")
    assert resolve("ollama:small:1b") == listed.path


def test_from_finds_a_model_that_ollama_has_under_a_short_name(hub, home, options, tmp_path):
    hub.add_ollama("library/qwen3", "8b", DATA)
    pull(f"ollama:{hub.url}/library/qwen3:8b", options=options)
    host = hub.url.removeprefix("http://")
    registry = home.ollama[0] / "manifests"
    (registry / host).rename(registry / "registry.ollama.ai")
    modelfile = tmp_path / "Modelfile"
    modelfile.write_text("FROM qwen3:8b")
    assert resolve(modelfile) == resolve("ollama:qwen3:8b")
    with pytest.raises(MissingModelError):  # elsewhere, the name is one of the catalogue
        resolve("qwen3:8b")


def test_cut_connections_and_wrong_bytes(hub, home, options, name):
    hub.faults.cut = lambda n: 5_000 if n % 2 else None
    assert pull(name, options=options).read_bytes() == DATA
    OllamaFolder(home.ollama[0]).remove(parse(name))
    hub.faults.cut = lambda n: None
    hub.faults.corrupt = True
    with pytest.raises(ChecksumError):
        pull(name, options=options)
    assert leftovers(home.ollama[0]) == []
    with pytest.raises(MissingModelError):
        resolve(name)


def test_what_the_registry_does_not_have(hub, options):
    with pytest.raises(DownloadError, match=r"has no ollama:.*absent:1b"):
        pull(f"ollama:{hub.url}/library/absent:1b", options=options)
    hub.add_ollama("library/cloud", "1b", b"{}", "application/vnd.ollama.image.tensor")
    with pytest.raises(DownloadError, match="has no GGUF file"):
        pull(f"ollama:{hub.url}/library/cloud:1b", options=options)


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([(401, {})], "denies access"),
        ([(429, {"Retry-After": "600"})], "asks to wait 600 seconds"),
        ([(502, {})] * 5, "failed with status 502"),
    ],
)
def test_refusals_of_the_registry(hub, options, name, answers, message):
    hub.faults.api_answers = list(answers)
    with pytest.raises(DownloadError, match=message):
        pull(name, options=options)


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"{}", b'{"layers": [{}]}', b'{"layers": 3}',
     b'{"layers": [{"mediaType": "x", "digest": "sha256:../../x", "size": 1}]}',
     b'{"layers": [{"mediaType": "x", "digest": "sha256:' + b"a" * 64 + b'", "size": -1}]}'],
)  # fmt: skip
def test_manifests_that_are_not_valid(text):
    with pytest.raises(DownloadError, match="manifest of x is not valid"):
        parse_manifest(text, "x")


def test_a_shared_layer_stays_when_one_of_its_models_is_removed(hub, home, options, name):
    hub.add_ollama("library/small", "copy", DATA)
    pull(name, options=options)
    copy = f"ollama:{hub.url}/library/small:copy"
    path = pull(copy, options=options)
    folder = OllamaFolder(home.ollama[0])
    assert folder.remove(parse(name)) == 0
    assert path.exists()
    assert folder.remove(parse(copy)) > len(DATA)
    assert not path.exists()


def test_ollamas_folder_can_be_named(monkeypatch, tmp_path):
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    assert folders().ollama == (tmp_path,)
