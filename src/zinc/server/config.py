"""The configuration of a server, checked when it is created."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from zinc.core.dataclass import dataclass
from zinc.core.errors import RequestError
from zinc.engine.load.options import LoadOptions
from zinc.engine.load.settings import NO_SETTINGS, ModelSettings
from zinc.engine.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model to serve.

    name: as clients call it. path: its file (None: the embedded model). settings: the model's own.
    is_file: the model is a file, and not another name for one.
    """

    name: str
    path: Path | None
    settings: ModelSettings = NO_SETTINGS
    is_file: bool = True


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The configuration of a server. Raises RequestError if it is not valid.

    models: the models to serve; the first is the default of requests that name none.
    load: how to load them. A draft model and LoRA adapters are for the first one.
    sampling: arguments of `SamplingParams` for requests that do not give them.
    ollama: listen on Ollama's port, too.
    allow_pull: clients may download, add and delete models.
    api_keys: any of these is accepted; with none, the API is open to everyone who can connect.
    origins: web pages and browser extensions that may call the server, besides pages of this
        machine and apps. "SCHEME://*" is every origin of a scheme, "*" every origin.
    hosts: names accepted in the Host header besides loopback names, if there is no key.
    allow_public: serve on a public address without a key.
    share_cache: share the prefix cache between API keys. A client can then find out, by timing,
        whether another one has sent a text.
    ignore_unknown_fields: ignore request fields that no API defines, instead of refusing them.
    strict_model_names: answer 404 for unknown names even if only one model is served.
    max_waiting: requests of one model that may wait besides those that run.
    max_body_bytes: largest request body.
    max_body_memory_bytes: memory for the bodies of all requests together (None: 256 MiB, or four
        times the largest body).
    max_connections: clients that may be connected at a time.
    batch_dir: folder for the files and batches of clients (None: they are refused).
    batch_bytes: most bytes of files in it.
    batch_in_flight: rows of a batch that run at a time, at the lowest priority.
    ttl_s: unload a model after this idle time (None: never).
    memory_budget_bytes: memory for all loaded models together (None: no limit).
    load_wait_s: time that a request waits for its model to load.
    grace_s: time for running answers to finish after a stop signal.
    json_log: write the log as JSON lines.
    """

    models: tuple[ModelSource, ...]
    load: LoadOptions = field(default_factory=LoadOptions)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    host: str = "127.0.0.1"
    port: int = 8080
    ollama: bool = False
    allow_pull: bool = False
    api_keys: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    allow_public: bool = False
    share_cache: bool = False
    ignore_unknown_fields: bool = False
    strict_model_names: bool = False
    max_waiting: int = 64
    max_body_bytes: int = 32 << 20
    max_body_memory_bytes: int | None = None
    max_connections: int = 512
    batch_dir: Path | None = None
    batch_bytes: int = 4 << 30
    batch_in_flight: int = 8
    ttl_s: float | None = None
    memory_budget_bytes: int | None = None
    load_wait_s: float = 300.0
    grace_s: float = 10.0
    json_log: bool = False

    def __post_init__(self) -> None:
        if not self.models:
            raise RequestError("there is no model to serve", "none is named", "name a .gguf file")
        names = [source.name for source in self.models]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise RequestError(
                f"two models are named {twice!r}",
                "clients choose a model by its name",
                "give one of them another name: NAME=FILE",
            )
        if self.body_memory_bytes < self.max_body_bytes:
            raise RequestError(
                "--max-body-memory is less than --max-body",
                "a request of the largest size must fit",
                "raise --max-body-memory or lower --max-body",
            )
        SamplingParams(**self.sampling)  # raises RequestError for what is out of range
        if any(not key or not key.isascii() or not key.isprintable() for key in self.api_keys):
            raise RequestError(
                "an API key is empty or has unusual characters",
                "it is sent in an HTTP header",
                "use letters, digits and punctuation",
            )
        if not (self.api_keys or self.allow_public or is_loopback(self.host)):
            raise RequestError(
                f"refusing to serve on {self.host} without an API key",
                "everyone who can reach this machine could use it",
                "set --api-key, or --allow-public if something else protects the address",
            )

    @property
    def body_memory_bytes(self) -> int:
        """The limit for the memory of all request bodies together."""
        return self.max_body_memory_bytes or max(256 << 20, 4 * self.max_body_bytes)

    @property
    def checks_host(self) -> bool:
        """Whether only loopback names are accepted in the Host header.

        A web page can resolve its own domain to 127.0.0.1 and so pass the browser's same-origin
        check (DNS rebinding). The Host header then still contains that domain.
        """
        return not self.api_keys and is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Return whether a host name or IP address is a loopback address."""
    name = host.strip("[]").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
