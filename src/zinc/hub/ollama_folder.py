"""Ollama's folder of models.

    manifests/HOST/NAMESPACE/NAME/TAG    a model's layers by SHA-256, as JSON; written last
    blobs/sha256-HEX                     the layers

One layer is the GGUF file. The others (template, parameters, license) are kept too, so that Ollama
can use a model that zinc has downloaded.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from zinc.core.dataclass import dataclass
from zinc.hub.errors import DownloadError
from zinc.hub.names import OllamaName

MODEL_TYPE = "application/vnd.ollama.image.model"
_DIGEST = re.compile(r"sha256[:-](?P<hex>[0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Layer:
    """A blob of a model. sha256: in hexadecimal digits."""

    media_type: str
    sha256: str
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """The layers of a model, and the manifest's own text."""

    layers: tuple[Layer, ...]
    text: bytes

    @property
    def model(self) -> Layer | None:
        """The layer that is the GGUF file, if there is one."""
        return next((layer for layer in self.layers if layer.media_type == MODEL_TYPE), None)


def parse_manifest(text: bytes, name: str) -> Manifest:
    """Return a manifest. Raises DownloadError if it is not valid."""
    try:
        found = json.loads(text)
        entries = [*found["layers"], *([found["config"]] if found.get("config") else [])]
        layers = tuple(_layer(entry) for entry in entries)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DownloadError(
            f"the manifest of {name} is not valid", str(error), "try again later"
        ) from error
    return Manifest(layers, text)


def _layer(entry: dict[str, Any]) -> Layer:
    found = _DIGEST.fullmatch(entry["digest"])
    n_bytes = entry["size"]
    if found is None or not isinstance(n_bytes, int) or n_bytes < 0:
        raise ValueError(f"a layer has the digest {entry['digest']!r} and the size {n_bytes!r}")
    return Layer(str(entry["mediaType"]), found["hex"], n_bytes)


class OllamaFolder:
    """A models folder in Ollama's layout."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def blob(self, layer: Layer) -> Path:
        """Return the path of a layer."""
        return self.root / "blobs" / f"sha256-{layer.sha256}"

    def lock(self, layer: Layer) -> Path:
        """Return the path of the lock of a layer."""
        return self.root / "blobs" / f".zinc-{layer.sha256[:16]}.lock"

    def manifest_path(self, name: OllamaName) -> Path:
        """Return the path of a model's manifest."""
        return self.root / "manifests" / name.host / Path(*name.model.split("/")) / name.tag

    def manifest(self, path: Path) -> Manifest | None:
        """Return a manifest of the folder; None if it is missing or damaged."""
        try:
            return parse_manifest(path.read_bytes(), path.name)
        except (OSError, DownloadError):
            return None

    def find(self, name: OllamaName) -> Path | None:
        """Return the GGUF file of a model, if it is here."""
        manifest = self.manifest(self.manifest_path(name))
        if manifest is None or manifest.model is None:
            return None
        path = self.blob(manifest.model)
        return path if path.is_file() else None

    def models(self) -> Iterator[tuple[OllamaName, Path, int]]:
        """Yield each model's name, its GGUF file and the bytes of all its layers."""
        base = self.root / "manifests"
        for path in sorted(base.glob("*/*/*/*")):
            host, namespace, model, tag = path.relative_to(base).parts
            manifest = self.manifest(path) if path.is_file() else None
            if manifest is None or manifest.model is None:
                continue
            file = self.blob(manifest.model)
            if file.is_file():
                name = OllamaName(f"{namespace}/{model}", tag, f"https://{host}")
                yield name, file, sum(layer.n_bytes for layer in manifest.layers)

    def publish(self, name: OllamaName, manifest: Manifest) -> Path:
        """Write a manifest, all at once, whose layers are here; return the GGUF file's path."""
        path = self.manifest_path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
        temporary.write_bytes(manifest.text)
        os.replace(temporary, path)
        assert manifest.model is not None
        return self.blob(manifest.model)

    def remove(self, name: OllamaName) -> int:
        """Delete a model and the layers that no other model has; return the bytes freed."""
        path = self.manifest_path(name)
        manifest = self.manifest(path)
        if manifest is None:
            return 0
        path.unlink()
        base = self.root / "manifests"
        others = (self.manifest(each) for each in base.glob("*/*/*/*") if each.is_file())
        used = {layer.sha256 for each in others if each is not None for layer in each.layers}
        freed = 0
        for layer in manifest.layers:
            blob = self.blob(layer)
            if layer.sha256 not in used and blob.is_file():
                freed += blob.stat().st_size
                blob.unlink()
        return freed
