"""Models of Ollama's registry, which speaks the distribution protocol of OCI.

A manifest lists layers by SHA-256, each at an address of its own. The model goes to Ollama's folder
(ollama_folder.py).
"""

from __future__ import annotations

from collections.abc import Callable

from zinc.hub.errors import DownloadError
from zinc.hub.events import OnEvent, Waiting
from zinc.hub.names import OllamaName
from zinc.hub.ollama_folder import Layer, Manifest, parse_manifest
from zinc.hub.transport import Patience, StatusError, Transport, persist, read_all

_MANIFEST_TYPES = (
    "application/vnd.docker.distribution.manifest.v2+json, "
    "application/vnd.oci.image.manifest.v1+json"
)
_MAX_MANIFEST_BYTES = 1 << 20


def fetch_manifest(name: OllamaName, transport: Transport, on_event: OnEvent) -> Manifest:
    """Return the manifest of a model from its registry.

    Raises DownloadError if the registry does not have it, or it holds no GGUF file.
    """
    url = f"{name.registry}/v2/{name.model}/manifests/{name.tag}"
    patience = Patience(
        f"asking {name.host} for {name}",
        transport.pause_s,
        lambda why, s: on_event(Waiting(str(name), f"{why}; next try in {s:.0f} s")),
    )

    def answer() -> bytes:
        return read_all(transport.open(url, {"Accept": _MANIFEST_TYPES}), _MAX_MANIFEST_BYTES)

    text = persist(answer, patience, status_error(name))
    manifest = parse_manifest(text, str(name))
    if manifest.model is None:
        raise DownloadError(
            f"{name} has no GGUF file",
            "the registry has it in another format, or it runs in Ollama's cloud only",
            "choose another model",
        )
    return manifest


def layer_url(name: OllamaName, layer: Layer) -> str:
    """Return the address of a layer."""
    return f"{name.registry}/v2/{name.model}/blobs/sha256:{layer.sha256}"


def status_error(name: OllamaName) -> Callable[[StatusError], DownloadError]:
    """Return a function that turns an error status about a model into a sentence."""

    def describe(error: StatusError) -> DownloadError:
        if error.status == 404:
            return DownloadError(
                f"{name.host} has no {name}",
                "",
                "check the name and the tag at https://ollama.com/search",
            )
        if error.status in (401, 403):
            return DownloadError(
                f"{name.host} denies access to {name}",
                "the model may be private",
                "choose a public model",
            )
        if error.status == 429:
            seconds = error.retry_after_s
            return DownloadError(
                f"{name.host} limits the number of requests",
                f"it asks to wait {seconds:.0f} seconds" if seconds is not None else "",
                "try again later",
            )
        return DownloadError(
            f"{name.host} failed with status {error.status}", "", "try again in a few minutes"
        )

    return describe
