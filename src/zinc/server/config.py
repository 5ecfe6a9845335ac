"""What a server is told at its start: one frozen value, checked when it is made."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zinc.core.errors import RequestError
from zinc.engine.load.options import LoadOptions
from zinc.engine.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model that can be served: the name clients use, and its file (None: the embedded one)."""

    name: str
    path: Path | None


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Raises RequestError when the server would be open to strangers without having been told so.

    models: the first answers requests that name none. sampling: arguments of `SamplingParams` for
    requests that do not give them. max_waiting: requests of a model that may
    wait beside those that run. ttl_s: an idle model is unloaded after so long (None: never).
    memory_budget_bytes: what loaded models may take together (None: what fits). api_keys: any of
    them opens the API; empty, it is open to whoever can connect. origins: web pages and browser
    extensions that may call it, beside pages of this machine and apps; "SCHEME://*" is every page
    of a scheme, "*" every page. hosts: names in the Host header that are
    accepted beside loopback names, when no key is set. grace_s: how long running answers may take
    to end once the server is asked to stop. allow_public: serve a public address without a key.
    share_cache: let requests with different keys begin with each other's cached prefixes; a client
    can then learn whether another one has sent a text. max_connections: clients that may be
    connected at a time. max_body_memory_bytes: what the bodies of all requests may take together
    (None: 256 MiB, or four of the largest). ignore_unknown_fields: pass over fields no API defines,
    where the default is to refuse them. strict_model_names: answer 404 for another name also when
    one model is served, where the default is to answer with that model.
    """

    models: tuple[ModelSource, ...]
    load: LoadOptions = field(default_factory=LoadOptions)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    host: str = "127.0.0.1"
    port: int = 8080
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
                "give one another name: NAME=FILE",
            )
        if self.body_memory_bytes < self.max_body_bytes:
            raise RequestError(
                "--max-body-memory is less than --max-body",
                "one request of the largest size has to fit",
                "raise the one or lower the other",
            )
        SamplingParams(**self.sampling)  # raises RequestError for what is out of range
        if any(not key or not key.isascii() or not key.isprintable() for key in self.api_keys):
            raise RequestError(
                "an API key is empty or has unusual characters",
                "it travels in an HTTP header",
                "use letters, digits and punctuation",
            )
        if not (self.api_keys or self.allow_public or is_loopback(self.host)):
            raise RequestError(
                f"refusing to serve on {self.host} without an API key",
                "everybody who can reach this machine could use it",
                "set --api-key, or --allow-public if something else guards the address",
            )

    @property
    def body_memory_bytes(self) -> int:
        """The most bytes that the bodies of all requests may take together."""
        return self.max_body_memory_bytes or max(256 << 20, 4 * self.max_body_bytes)

    @property
    def checks_host(self) -> bool:
        """Return whether only loopback names are accepted as Host.

        A page of a stranger can point its own name at 127.0.0.1 and so pass a browser's origin
        check (DNS rebinding); the name it used stands in the Host header.
        """
        return not self.api_keys and is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine's own and reachable only from itself."""
    name = host.strip("[]").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
