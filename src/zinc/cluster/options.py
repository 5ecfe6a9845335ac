"""Options of a cluster, as `zinc cluster` and a Serve config file give them.

Options of the replicas' servers are those of `zinc serve`, by the names of their Python variables:
`{"models": ["qwen3:8b"], "context": 8192}`. The defaults are those of `zinc serve`.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from zinc.cli import serve
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

# Options of `zinc serve` that can name files.
_PATHS = frozenset(("models", "more_models", "draft", "chat_template", "api_key_file", "cache_dir"))


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The options of a cluster. Raises RequestError for values that contradict each other.

    serve: options of the replicas' servers. replicas: number of replicas (0: between `min_replicas`
    and `max_replicas`, by the length of the queue). queue: requests of one replica at which more
    replicas are started. cpus, gpus: share of a machine that a replica takes. memory: bytes of host
    memory that a replica takes, 0 if that is unknown. fronts: processes that forward requests.
    drain_s: time for running answers when a replica is replaced. router: "prefix", "load" or
    "random". share_prefixes: "memory", or a folder that all machines have, from which replicas
    fetch prefixes that others have run; "" for none.
    """

    serve: Mapping[str, Any] = field(default_factory=dict)
    replicas: int = 1
    min_replicas: int = 1
    max_replicas: int = 1
    queue: int = 4
    cpus: float = 1.0
    gpus: float = 0.0
    memory: int = 0
    fronts: int = 1
    drain_s: float = 300.0
    router: str = "prefix"
    share_prefixes: str = ""

    def __post_init__(self) -> None:
        if self.replicas < 0 or self.fronts < 1 or self.queue < 1:
            raise RequestError(
                "a cluster needs replicas",
                "the numbers of replicas, fronts and queued requests are whole numbers from 1",
            )
        if not self.replicas and not 1 <= self.min_replicas <= self.max_replicas:
            raise RequestError(
                "--max-replicas is less than --min-replicas",
                "",
                "give at least 1 for both, and a larger --max-replicas",
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

    @property
    def max_body_bytes(self) -> int:
        """The largest request body."""
        return int({**vars(_serve_defaults()), **self.serve}["max_body"])

    @property
    def separates_keys(self) -> bool:
        """Whether prompts share the prefix cache only with those of the same API key."""
        has_keys = self.serve.get("api_key") or self.serve.get("api_key_file")
        return bool(has_keys) and not self.serve.get("share_cache")

    def server_config(self) -> ServerConfig:
        """Return the configuration of a replica's server. Raises a ZincError.

        Model names are looked up on this machine; with `pull`, missing models are downloaded.
        """
        given = dict(self.serve)
        args = _serve_defaults()
        _check_names(given, set(vars(args)), "`zinc serve`")
        if given.get("threads") is None and not self.gpus:
            given["threads"] = max(1, int(self.cpus))
        vars(args).update(given)
        # Clients could change the models of one replica only.
        return replace(serve.config(args), allow_pull=False)


def serve_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `zinc serve` in `args` that differ from its defaults."""
    default = vars(_serve_defaults())
    given = {name: getattr(args, name) for name in default if getattr(args, name) != default[name]}
    given.pop("port", None)  # of Ray Serve
    for name in _PATHS & given.keys():
        value = given[name]
        is_list = isinstance(value, list)
        given[name] = [_absolute(each) for each in value] if is_list else _absolute(value)
    return given


def shared_folder(given: str) -> str:
    """Return the value of --share-prefixes, with an absolute path."""
    return given if given == "memory" else str(Path(given).expanduser().absolute())


def _absolute(text: str) -> str:
    """Return [NAME=]FILE with an absolute path, as replicas have another working folder.

    Other texts, such as names of models, stay as they are.
    """
    name, mark, path = text.rpartition("=")
    if Path(text).expanduser().exists():
        name, mark, path = "", "", text
    if not Path(path).expanduser().exists() and not path.endswith(".gguf"):
        return text
    return f"{name}{mark}{Path(path).expanduser().absolute()}"


def _serve_defaults() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    return parser.parse_args([])


def _check_names(given: Mapping[str, Any], known: set[str], owner: str) -> None:
    unknown = sorted(given.keys() - known)
    if unknown:
        raise RequestError(
            f"there is no option {unknown[0]!r} of {owner}",
            f"there are {', '.join(sorted(known))}",
            "correct the config file, or write it anew with `zinc cluster yaml`",
        )
