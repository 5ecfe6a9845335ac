"""Tests of `zinc cluster`: options, config files and errors. They need no Ray."""

from __future__ import annotations

import importlib.metadata
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from zinc.cli.main import main
from zinc.cluster import config_file
from zinc.cluster.applications import applications, model_of
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
    model, front = given["applications"]
    assert given["http_options"] == {"host": "127.0.0.1", "port": 81}
    assert (model["name"], model["route_prefix"]) == ("zinc-a", None)
    assert model["import_path"] == "zinc.cluster.app:model"
    assert model["deployments"][0]["num_replicas"] == 3
    options = ClusterOptions.of(model["args"])
    path = str(Path("a.gguf").absolute())  # replicas have another working folder
    assert (options.serve["models"], options.serve["context"]) == ([path], 2048)
    assert "port" not in options.serve
    assert (front["name"], front["route_prefix"]) == ("zinc", "/")
    assert front["args"]["separates_keys"]
    assert front["deployments"][0]["user_config"] == {"models": ["a"]}


def test_each_model_has_an_application_with_its_own_options(capsys, tmp_path):
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "cpus: 4\nserve: {context: 8192}\nmodels:\n"
        "  big/x:7b: {gpus: 1, max_replicas: 3}\n"
        "  small: {model: s.gguf, cpus: 2, serve: {context: 512}}\n"
    )
    words = ["--config", str(file), "--memory", "2G", "--router", "load"]
    assert main(["cluster", "yaml", *words]) == 0
    big, small, front = parsed(capsys.readouterr().out)["applications"]
    assert (big["name"], small["name"]) == ("zinc-big%2Fx:7b", "zinc-small")
    assert [model_of(each["name"]) for each in (big, small, front)] == ["big/x:7b", "small", None]
    assert big["args"]["serve"] == {"context": 8192, "models": ["big/x:7b"], "alias": "big/x:7b"}
    assert small["args"]["serve"]["models"] == [str(Path("s.gguf").absolute())]
    assert (small["args"]["serve"]["context"], small["args"]["router"]) == (512, "load")
    scaling, share = (big["deployments"][0][k] for k in ("autoscaling_config", "ray_actor_options"))
    assert (scaling["min_replicas"], scaling["max_replicas"]) == (1, 3)
    del share["runtime_env"]
    assert share == {"num_cpus": 4, "num_gpus": 1, "memory": 2 << 30}
    assert small["deployments"][0]["ray_actor_options"]["num_cpus"] == 2
    assert front["deployments"][0]["user_config"]["models"] == ["big/x:7b", "small"]


def test_models_of_the_command_line_have_replicas_each_or_share_them(capsys):
    words = ["a=x.gguf", "qwen3:8b", "--alias", "first", "--lora", "l.gguf=0.5"]
    assert main(["cluster", "yaml", *words]) == 0
    first, second, _ = parsed(capsys.readouterr().out)["applications"]
    assert (first["name"], second["name"]) == ("zinc-first", "zinc-qwen3:8b")
    assert first["args"]["serve"]["lora"] == [f"{Path('l.gguf').absolute()}=0.5"]
    assert "lora" not in second["args"]["serve"]
    assert main(["cluster", "yaml", *words, "--together"]) == 0
    together, front = parsed(capsys.readouterr().out)["applications"]
    assert len(together["args"]["serve"]["models"]) == 2
    assert front["deployments"][0]["user_config"] == {"models": [""]}


def test_other_settings_leave_the_arguments_of_replicas_alone():
    """Serve replaces replicas whose arguments change."""
    options = ClusterOptions(models={"a": {}, "b": {}})
    more = replace(options, replicas=5, queue=9, memory=1 << 30, drain_s=1.0, fronts=2)
    for one, other in zip(applications(options), applications(more), strict=True):
        assert one.args == other.args
        assert one.settings != other.settings
    changed = replace(options, models={"a": {"serve": {"context": 64}}, "b": {}, "c": {}})
    a, b, c, front = applications(changed)
    assert a.args != applications(options)[0].args
    assert [b.args, front.args] == [each.args for each in applications(options)[1:]]
    assert c.name == "zinc-c"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("models: {a: {replica: 2}}", "no option 'replica' of the model 'a'"),
        ("models: {a: {serve: {api_key: [k]}}}", "'a' cannot have 'api_key' of its own"),
        ("models: {a: {serve: {models: [b]}}}", "'a' cannot have 'models' of its own"),
        ("models: {a: {serve: {cache_type_k: f16}}}", "no option 'cache_type_k' of `zinc serve`"),
        ("serve: {contxt: 512}", "no option 'contxt' of `zinc serve`"),
        ("models: {5: {}}", "the name of a model is 5: it must be text"),
        ("models: {a: {model: 5}}", "the name of a model is 5: it must be text"),
        ("models: [a]", "`models` is not a mapping"),
        ("cpus: four", "cpus is 'four': it must be a number"),
        ("replicas: 1.5", "replicas is 1.5: it must be a whole number"),
        ("models: {a: {memory: 4G}}", "memory is '4G': it must be a whole number of bytes"),
        ("serve: {context: abc}", "of context is wrong: 'abc' is not a whole number of at least 1"),
        ("models: {a: {serve: {context: -1}}}", "context is wrong: '-1' is not a whole number"),
        ("serve: {temperature: hot}", "the value of temperature is wrong: 'hot' is not a number"),
        ("serve: {kv_dtype: q9}", "kv_dtype is wrong: 'q9' is not one of auto, f16"),
        ("serve: {pull: maybe}", "the value of pull is wrong: 'maybe' is neither true nor false"),
        ("serve: {lora: x.gguf}", "lora is wrong: 'x.gguf' is not a list such as [VALUE]"),
        ("serve: {chat_template: 3}", "the value of chat_template is wrong: 3 is not text"),
        ("models: {a: 3}", "the options of the model 'a' are not a mapping"),
        (
            "models: {a: {replicas: 0}}",
            "replicas is 0: a cluster needs at least 1. Write replicas: 1",
        ),
        ("models: {a: {}}\nserve: {models: [b]}", "`serve` has 'models', and there are `models`"),
        ("[1]", "it is not a mapping"),
        ("a: b: c", "is not valid YAML"),
    ],
)
def test_errors_in_a_config_file_name_the_option(capsys, tmp_path, text, error):
    pytest.importorskip("yaml", reason="PyYAML is not installed")
    file = tmp_path / "c.yaml"
    file.write_text(text)
    assert main(["cluster", "yaml", "--config", str(file)]) == 1
    assert error in capsys.readouterr().err


def test_a_config_file_has_values_as_on_the_command_line(capsys, tmp_path):
    pytest.importorskip("yaml", reason="PyYAML is not installed")
    file = tmp_path / "c.yaml"
    file.write_text(
        "serve: {memory_budget: 2G, context: '512', shares: [3, 1], temperature: 1, pull: null}\n"
        "models: {a: {model: a.gguf, serve: {swap_size: 1M, lora: [l.gguf]}}}\n"
    )
    assert main(["cluster", "yaml", "--config", str(file)]) == 0
    found = parsed(capsys.readouterr().out)["applications"][0]["args"]["serve"]
    assert (found["memory_budget"], found["context"]) == (2 << 30, 512)
    assert (found["swap_size"], found["shares"], found["temperature"]) == (1 << 20, [3, 1], 1)
    assert (found["pull"], found["lora"]) == (False, [str(Path("l.gguf").absolute())])


def test_models_are_named_in_one_place_and_once(capsys, tmp_path):
    file = tmp_path / "c.json"
    file.write_text('{"models": {"a": {}}, "serve": {"port": 82}}')
    assert main(["cluster", "yaml", "b", "--config", str(file)]) == 1
    assert "models are named twice" in capsys.readouterr().err
    assert main(["cluster", "yaml", "x/a.gguf", "y/a.gguf"]) == 1
    assert "two models are named 'a'" in capsys.readouterr().err
    assert main(["cluster", "yaml", "--config", str(file)]) == 0
    assert parsed(capsys.readouterr().out)["http_options"]["port"] == 82


def test_kuberay_gets_a_group_of_pods_for_each_model():
    models = {"Qwen3:8b": {"gpus": 0.5, "memory": 3 << 30}, "qwen3-8B": {"max_replicas": 5}}
    options = ClusterOptions(models=models, serve={"allow_public": True}, replicas=2)
    service = parsed(config_file.text(options, "0.0.0.0", 8080, "zinc:1"))
    config = parsed(service["spec"]["serveConfigV2"])
    assert config == parsed(config_file.text(options, "0.0.0.0", 8000))
    cluster = service["spec"]["rayClusterConfig"]
    assert cluster["enableInTreeAutoscaling"]
    first, second = cluster["workerGroupSpecs"]
    assert [first["groupName"], second["groupName"]] == ["qwen3-8b", "qwen3-8b-2"]
    assert (second["minReplicas"], second["maxReplicas"]) == (2, 5)
    container = first["template"]["spec"]["containers"][0]
    assert container["image"] == "zinc:1"
    # KubeRay's own metrics are on 8080, and it asks the port named "serve" for readiness.
    assert container["ports"] == [{"name": "serve", "containerPort": 8000}]
    head = cluster["headGroupSpec"]["template"]["spec"]["containers"][0]
    assert {each["name"] for each in head["ports"]} == {"gcs", "dashboard", "client", "serve"}
    limits = {"cpu": "1", "memory": "4096Mi", "nvidia.com/gpu": "1"}
    assert container["resources"] == {"requests": limits, "limits": limits}


@pytest.mark.parametrize(
    ("host", "error"),
    [("127.0.0.1", "pods cannot be reached on 127.0.0.1"), ("0.0.0.0", "without an API key")],
)
def test_kuberay_needs_an_address_that_pods_can_reach(host, error):
    with pytest.raises(RequestError, match=error):
        config_file.text(ClusterOptions(), host, 8000, "zinc:1")


def parsed(text: str) -> Any:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    return yaml.safe_load(text)


def test_unknown_names_in_a_config_file_are_refused():
    with pytest.raises(RequestError, match="no option 'replica' of a cluster"):
        ClusterOptions.of({"replica": 2})
    with pytest.raises(RequestError, match="no option 'ctx' of `zinc serve`"):
        ClusterOptions.of({"serve": {"ctx": 2}})


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
    found = parsed(capsys.readouterr().out)["applications"][0]["deployments"][0]
    assert found["ray_actor_options"]["memory"] == replica_memory(ClusterOptions())
    assert main(["cluster", "yaml", "--memory", "2G"]) == 0
    found = parsed(capsys.readouterr().out)["applications"][0]["deployments"][0]
    assert found["ray_actor_options"]["memory"] == 2 << 30
