"""Tests of `zinc cluster`: options, config files and errors. They need no Ray."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import pytest

from zinc.cli.main import main
from zinc.cluster import config_file
from zinc.cluster.memory import replica_memory
from zinc.cluster.options import ClusterOptions
from zinc.core.errors import RequestError
from zinc.engine.load.files import resolve_model


def without(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    """Pretend that Ray is installed in this version, or not at all."""

    def found(name: str) -> str:
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr("zinc.cluster.ray_version.importlib.metadata.version", found)


@pytest.mark.parametrize("action", ["up", "status", "down"])
def test_without_ray_there_is_one_sentence(monkeypatch, capsys, action):
    without(monkeypatch, None)
    assert main(["cluster", action]) == 1
    assert capsys.readouterr().err == (
        "zinc: a cluster needs Ray: it is not installed. Install it with: pip install "
        "'zinc-llm[ray]'.\n"
    )


@pytest.mark.parametrize("version", ["2.59.1", "2.61.0", "3.0.0", "2.6.0"])
def test_another_ray_is_refused(monkeypatch, capsys, version):
    without(monkeypatch, version)
    assert main(["cluster", "up"]) == 1
    error = capsys.readouterr().err
    assert f"Ray {version} is installed, and zinc needs Ray 2.60" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["up", "--cpus", "0"], "a replica needs a share of a machine"),
        (["up", "--ollama"], "a cluster cannot use --ollama"),
        (["up", "--batch-dir", "x"], "a cluster cannot use --batch-dir"),
        (["up", "--replicas", "3", "--max-replicas", "2"], "--max-replicas is less"),
    ],
)
def test_options_that_contradict_each_other_are_refused(monkeypatch, capsys, words, text):
    words[0] = "yaml"
    assert main(["cluster", *words]) == 1
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["status", "qwen3:8b"], "'qwen3:8b' is one argument too many"),
        (["down", "--replicas", "2"], "there is no option --replicas"),
        (["up", "--kuberay", "x"], "there is no option --kuberay"),
    ],
)
def test_an_action_takes_its_own_options_only(capsys, words, text):
    assert main(["cluster", *words]) == 2
    assert text in capsys.readouterr().err


def test_the_config_file_has_the_options_that_differ(capsys):
    words = ["a.gguf", "--context", "2048", "--replicas", "3", "--api-key", "k", "--port", "81"]
    assert main(["cluster", "yaml", *words]) == 0
    given = parsed(capsys.readouterr().out)
    application = given["applications"][0]
    assert given["http_options"] == {"host": "127.0.0.1", "port": 81}
    assert application["import_path"] == "zinc.cluster.app:build"
    options = ClusterOptions.of(application["args"])
    assert options.replicas == 3
    model = str(Path("a.gguf").absolute())  # replicas have another working folder
    assert (options.serve["models"], options.serve["context"]) == ([model], 2048)
    assert "port" not in options.serve
    assert options.separates_keys


def test_kuberay_gets_the_same_config():
    options = ClusterOptions(serve={"context": 4096}, replicas=0, max_replicas=5, gpus=1)
    service = parsed(config_file.text(options, "0.0.0.0", 8000, "zinc:1"))
    assert parsed(service["spec"]["serveConfigV2"]) == parsed(
        config_file.text(options, "0.0.0.0", 8000)
    )
    group = service["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]
    assert (group["minReplicas"], group["maxReplicas"]) == (1, 5)
    container = group["template"]["spec"]["containers"][0]
    assert container["image"] == "zinc:1"
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"


def parsed(text: str) -> Any:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    return yaml.safe_load(text)


def test_unknown_names_in_a_config_file_are_refused():
    with pytest.raises(RequestError, match="no option 'replica' of a cluster"):
        ClusterOptions.of({"replica": 2})
    with pytest.raises(RequestError, match="no option 'ctx' of `zinc serve`"):
        ClusterOptions.of({"serve": {"ctx": 2}}).server_config()


def test_a_replica_has_the_threads_of_its_share_and_the_server_s_options():
    given = {"context": 1024, "max_waiting": 7, "pull": True}
    config = ClusterOptions(serve=given, cpus=2.5).server_config()
    assert (config.load.threads, config.load.context, config.max_waiting) == (2, 1024, 7)
    assert not config.allow_pull
    assert ClusterOptions(serve={"threads": 5}).server_config().load.threads == 5


def test_a_replica_asks_for_the_memory_of_its_models():
    one = replica_memory(ClusterOptions())
    model = str(resolve_model(None))
    two = replica_memory(ClusterOptions(serve={"models": [f"a={model}", f"b={model}"]}))
    assert one > Path(model).stat().st_size
    process = 2 * one - two  # what a server takes without a model
    assert 0 < process < one
    longer = replica_memory(ClusterOptions(serve={"context": 4096}))
    assert replica_memory(ClusterOptions(serve={"context": 64})) < longer
    both = {"models": [f"a={model}", f"b={model}"]}
    assert replica_memory(ClusterOptions(serve={**both, "memory_budget": 1})) == one
    assert replica_memory(ClusterOptions(serve={**both, "memory_budget": 1 << 40})) == two


@pytest.mark.parametrize(
    "options",
    [{"gpus": 1}, {"serve": {"models": ["missing.gguf"]}}, {"serve": {"backend": "cuda"}}],
)
def test_memory_that_is_unknown_is_not_asked_for(options):
    assert replica_memory(ClusterOptions(**options)) == 0


def test_the_config_file_has_the_memory_of_a_replica(capsys):
    assert main(["cluster", "yaml"]) == 0
    options = parsed(capsys.readouterr().out)["applications"][0]["args"]
    assert options == {"memory": replica_memory(ClusterOptions())}
    assert main(["cluster", "yaml", "--memory", "2G"]) == 0
    assert parsed(capsys.readouterr().out)["applications"][0]["args"] == {"memory": 2 << 30}
