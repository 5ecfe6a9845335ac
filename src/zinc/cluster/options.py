"""Options of a cluster, as `zinc cluster` and a Serve config file give them.

Options of the replicas' servers are those of `zinc serve`, by the names of their Python variables:
`{"models": ["qwen3:8b"], "context": 8192}`. The defaults are those of `zinc serve`. Options of a
single model, in `models`, override those of all models:

    {"cpus": 4, "models": {"qwen3:8b": {"gpus": 1}, "small": {"model": "s.gguf", "replicas": 2}}}
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, field, fields, replace
from pathlib import Path
from typing import Any

from zinc.cli import serve
from zinc.cluster import serve_values
from zinc.core.dataclass import dataclass
from zinc.core.errors import RequestError
from zinc.server.config import ServerConfig

# Options of `zinc serve` that need one server on one machine, and what to use instead.
_REFUSED = {
    "ollama": ("a cluster has one port", "point Ollama clients at it"),
    "batch_dir": (
        "each replica would have its own files",
        "use `zinc.cluster.batch` from Python",
    ),
}

# Options of `zinc serve` that can name files, beside `lora`.
_PATHS = frozenset(("models", "more_models", "draft", "chat_template", "api_key_file", "cache_dir"))

# Options of `zinc serve` that name models, and options of the address that all models share.
_NAMING = frozenset(("models", "more_models", "alias"))
_SHARED = frozenset(
    ("host", "api_key", "api_key_file", "allow_public", "allow_origin", "allow_host", "share_cache",
     "max_body", "max_connections")
)  # fmt: skip

# Options that a model can have of its own.
_OWN = frozenset(("replicas", "max_replicas", "queue", "cpus", "gpus", "memory"))

# Fields of `ClusterOptions` by type.
_WHOLE = ("replicas", "max_replicas", "queue", "memory", "fronts")
_NUMBERS = ("cpus", "gpus", "drain_s")

_CONNECTIONS = 10_000  # of a front, unless an option says how many

# Options of `zinc serve` that concern its first model.
_FIRST = frozenset(("draft", "lora"))


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The options of a cluster. Raises RequestError for values that contradict each other.

    models: options of each model, by its name for clients: `model` (its file or name, by default
    the name for clients), `serve`, `replicas`, `max_replicas`, `queue`, `cpus`, `gpus` and
    `memory`. Each model has replicas of its own. Without `models`, every replica serves all models
    in `serve`, and loads those after the first when requests name them. serve: options of the
    replicas' servers. replicas: number of replicas. max_replicas: start more up to this number, by
    the length of the queue (0: do not). queue: requests of one replica at which more replicas are
    started. cpus, gpus: share of a machine that a replica takes. memory: bytes of host memory that
    a replica takes, 0 if that is unknown. fronts: processes that forward requests. drain_s: time
    for running answers when a replica is replaced. router: "prefix", "load" or "random".
    share_prefixes: "memory", or a folder that all machines have, from which replicas fetch prefixes
    that others have run; "" for none.
    """

    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    serve: Mapping[str, Any] = field(default_factory=dict)
    replicas: int = 1
    max_replicas: int = 0
    queue: int = 4
    cpus: float = 1.0
    gpus: float = 0.0
    memory: int = 0
    fronts: int = 1
    drain_s: float = 300.0
    router: str = "prefix"
    share_prefixes: str = ""

    def __post_init__(self) -> None:
        for name in _WHOLE:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                unit, example = (" of bytes", "8000000000") if name == "memory" else ("", "2")
                raise RequestError(
                    f"{name} is {value!r}",
                    f"it must be a whole number{unit}",
                    f"write {name}: {example}",
                )
        for name in _NUMBERS:
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise RequestError(
                    f"{name} is {value!r}", "it must be a number", f"write {name}: 1"
                )
        if not isinstance(self.models, Mapping):
            raise RequestError("`models` is not a mapping", "", "write NAME: {}")
        for name in ("replicas", "fronts", "queue"):
            if getattr(self, name) < 1:
                raise RequestError(f"{name} is 0", "a cluster needs at least 1", f"write {name}: 1")
        if self.max_replicas and self.max_replicas < self.replicas:
            raise RequestError(
                "--max-replicas is less than --replicas", "", "give a larger --max-replicas"
            )
        if not (self.cpus >= 0 and self.gpus >= 0 and self.cpus + self.gpus > 0):
            raise RequestError(
                "a replica needs a share of a machine",
                f"--cpus is {self.cpus:g} and --gpus is {self.gpus:g}",
                "give a number above 0 for one of them",
            )
        if self.router not in ("prefix", "load", "random"):
            raise RequestError(
                f"there is no router {self.router!r}", "", "use prefix, load or random"
            )
        if self.share_prefixes and (
            self.serve.get("cache_dir") or self.serve.get("no_prefix_cache")
        ):
            raise RequestError(
                "--share-prefixes cannot be used with --cache-dir or --no-prefix-cache",
                "shared prefixes are the saved prefix cache of all replicas",
                "give --share-prefixes a folder to keep them over restarts",
            )
        for name, (why, hint) in _REFUSED.items():
            if self.serve.get(name):
                option = "--" + name.replace("_", "-")
                raise RequestError(f"a cluster cannot use {option}", why, hint)
        _check_names(self.serve, serve_values.names(), "`zinc serve`")
        self.by_model()

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> ClusterOptions:
        """Return the options of a config file. Raises RequestError for unknown names."""
        known = {each.name for each in fields(cls)}
        _check_names(given, known, "a cluster")
        return cls(**given)

    def changed(self) -> dict[str, Any]:
        """Return the options that differ from the defaults, for a config file."""
        default = asdict(ClusterOptions())
        return {name: v for name, v in asdict(self).items() if v != default[name]}

    def by_model(self) -> dict[str, ClusterOptions]:
        """Return the options of each model's replicas, by its name; "" if they serve all models.

        The model of such options is in `serve`. Raises RequestError.
        """
        if not self.models:
            return {"": self}
        named = sorted(_NAMING & self.serve.keys())
        if named:
            raise RequestError(
                f"`serve` has {named[0]!r}, and there are `models`",
                "each of `models` names its model",
                "name all models in `models`",
            )
        return {name: self._of_model(name, given) for name, given in self.models.items()}

    def _of_model(self, name: str, given: Mapping[str, Any]) -> ClusterOptions:
        """Return the options of the replicas of one model. Raises RequestError."""
        owner = f"the model {name!r}"
        if not isinstance(given, Mapping) or not isinstance(given.get("serve", {}), Mapping):
            raise RequestError(f"the options of {owner} are not a mapping", "", "write NAME: VALUE")
        _check_names(given, {"model", "serve", *_OWN}, owner)
        own_serve = given.get("serve", {})
        refused = sorted((_NAMING | _SHARED) & own_serve.keys())
        if refused:
            raise RequestError(
                f"{owner} cannot have {refused[0]!r} of its own",
                "it concerns the address of all models"
                if refused[0] in _SHARED
                else "a model is named by its name and `model`",
                "give it in the `serve` of all models"
                if refused[0] in _SHARED
                else "leave it out of `serve`",
            )
        model = given.get("model", name)
        for text in (name, model):
            if not isinstance(text, str):
                raise RequestError(
                    f"the name of a model is {text!r}", "it must be text", "put it in quotes"
                )
        serve = {**self.serve, **own_serve, "models": [model], "alias": name}
        own = {key: given[key] for key in _OWN & given.keys()}
        return replace(self, models={}, serve=serve, **own)

    @property
    def max_body_bytes(self) -> int:
        """The largest request body."""
        return int({**vars(serve_values.defaults()), **self.serve}["max_body"])

    @property
    def max_connections(self) -> int:
        """The number of clients that may be connected to a front at a time."""
        return int(self.serve.get("max_connections", _CONNECTIONS))

    @property
    def separates_keys(self) -> bool:
        """Whether prompts share the prefix cache only with those of the same API key."""
        return self.has_keys and not self.serve.get("share_cache")

    @property
    def has_keys(self) -> bool:
        """Whether clients have to send an API key."""
        return bool(self.serve.get("api_key") or self.serve.get("api_key_file"))

    def server_config(self) -> ServerConfig:
        """Return the configuration of a replica's server. Raises a ZincError.

        Model names are looked up on this machine; with `pull`, missing models are downloaded.
        """
        given = dict(self.serve)
        args = serve_values.defaults()
        if given.get("threads") is None and not self.gpus:
            given["threads"] = max(1, int(self.cpus))
        vars(args).update(given)
        # Clients could change the models of one replica only.
        return replace(serve.config(args), allow_pull=False)


def model_options(serve_given: Mapping[str, Any]) -> ClusterOptions:
    """Return options with replicas for each model of the options `serve_given` of `zinc serve`.

    `draft` and `lora` are for the first model, as in `zinc serve`. Raises RequestError if two
    models have one name.
    """
    texts = [*serve_given.get("models", ()), *serve_given.get("more_models", ())]
    if not texts:
        return ClusterOptions(serve=serve_given)
    models: dict[str, dict[str, Any]] = {}
    for number, text in enumerate(texts):
        name, model = serve.split_name(text)
        if not number:
            name = serve_given.get("alias") or name
        if name in models:
            raise RequestError(
                f"two models are named {name!r}",
                "clients choose a model by its name",
                "give one of them another name: NAME=FILE",
            )
        models[name] = {} if model == name else {"model": model}
    first = {name: serve_given[name] for name in sorted(_FIRST & serve_given.keys())}
    if first:
        models[next(iter(models))]["serve"] = first
    shared = {k: v for k, v in serve_given.items() if k not in _NAMING | _FIRST}
    return ClusterOptions(models=models, serve=shared)


def read_options(
    path: Path, given: Mapping[str, Any], serve_given: Mapping[str, Any], port: int
) -> tuple[ClusterOptions, int]:
    """Return the options in a YAML or JSON file, and the port.

    given, serve_given, port: options of the cluster, and of `zinc serve`, that override those in
    the file if they differ from the defaults. Raises RequestError and OSError.
    """
    text = path.read_text("utf-8")
    try:
        found = json.loads(text)
    except ValueError:
        found = _yaml(text, path)
    if not isinstance(found, dict) or not isinstance(found.get("serve", {}), dict):
        raise RequestError(
            f"{path} has no options of a cluster",
            "it is not a mapping",
            "see docs/cluster.md",
        )
    if _NAMING & serve_given.keys() and found.get("models"):
        raise RequestError(
            "models are named twice", f"{path} names some, too", "name all of them in the file"
        )
    served = _with_absolute_paths({**serve_values.converted(found.get("serve", {})), **serve_given})
    own_port = served.pop("port", None)
    default_port = vars(serve_values.defaults())["port"]
    options = ClusterOptions.of({**found, **given, "serve": served})
    models = {name: _absolute_model(each) for name, each in options.models.items()}
    return replace(options, models=models), port if port != default_port else own_port or port


def _absolute_model(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a model with absolute paths."""
    found = dict(given)
    if "model" in found:
        found["model"] = _absolute(found["model"])
    if "serve" in found:
        found["serve"] = _with_absolute_paths(serve_values.converted(found["serve"]))
    return found


def _yaml(text: str, path: Path) -> Any:
    """Return the contents of a YAML file. Raises RequestError."""
    try:
        import yaml  # of Ray
    except ImportError:
        raise RequestError(
            f"{path} cannot be read", "PyYAML is not installed", "install it, or write JSON"
        ) from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        why = " ".join(str(error).split())
        raise RequestError(f"{path} is not valid YAML", why, "correct the file") from None


def serve_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `zinc serve` in `args` that differ from its defaults."""
    default = vars(serve_values.defaults())
    given = {name: getattr(args, name) for name in default if getattr(args, name) != default[name]}
    given.pop("port", None)  # of Ray Serve
    return _with_absolute_paths(given)


def _with_absolute_paths(serve_given: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of `zinc serve` with absolute paths: replicas have another working folder."""
    given = dict(serve_given)
    for name in _PATHS & given.keys():
        value = given[name]
        is_list = isinstance(value, list)
        given[name] = [_absolute(each) for each in value] if is_list else _absolute(value)
    if "lora" in given:
        given["lora"] = [_absolute_adapter(each) for each in given["lora"]]
    return given


def shared_folder(given: str) -> str:
    """Return the value of --share-prefixes, with an absolute path."""
    return given if given == "memory" else str(Path(given).expanduser().absolute())


def _absolute_adapter(text: str) -> str:
    """Return FILE[=SCALE] with an absolute path."""
    path, mark, scale = text.rpartition("=")
    if not mark or Path(text).expanduser().exists():  # a path may contain "="
        path, mark, scale = text, "", ""
    return f"{Path(path).expanduser().absolute()}{mark}{scale}"


def _absolute(text: str) -> str:
    """Return [NAME=]FILE with an absolute path.

    Other texts, such as names of models, stay as they are.
    """
    name, mark, path = text.rpartition("=")
    if Path(text).expanduser().exists():
        name, mark, path = "", "", text
    if not Path(path).expanduser().exists() and not path.endswith(".gguf"):
        return text
    return f"{name}{mark}{Path(path).expanduser().absolute()}"


def _check_names(given: Mapping[str, Any], known: Collection[str], owner: str) -> None:
    unknown = sorted(given.keys() - set(known))
    if unknown:
        raise RequestError(
            f"there is no option {unknown[0]!r} of {owner}",
            f"there are {', '.join(sorted(known))}",
            "correct the config file, or create a new one with `zinc cluster yaml`",
        )
