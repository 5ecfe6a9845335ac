"""Download a model by name.

    from zinc.hub.pull import pull

    path = pull("qwen3:0.6b")  # then LLM(path), or LLM("qwen3:0.6b")

Files go to the folders of Hugging Face and of Ollama, see folders.py.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import field
from pathlib import Path
from typing import TypeAlias

from zinc.core.dataclass import dataclass
from zinc.core.errors import FormatError
from zinc.hub.choice import Choice, FitCheck, choose
from zinc.hub.download import Download, disk_error, fetch
from zinc.hub.errors import DownloadError, ModelNameError
from zinc.hub.events import Chosen, Finished, OnEvent, ignore
from zinc.hub.folders import Folders, folders
from zinc.hub.hf_cache import HubCache
from zinc.hub.huggingface import Hub, Repository
from zinc.hub.modelfile import is_modelfile, read
from zinc.hub.names import FileName, HubName, OllamaName, parse
from zinc.hub.ollama import fetch_manifest, layer_url, status_error
from zinc.hub.ollama_folder import OllamaFolder
from zinc.hub.partial import missing_bytes
from zinc.hub.resolve import base_name
from zinc.hub.transport import Transport
from zinc.hub.variants import RepoFile, Variant, select, siblings_of, variants_of

# Function from a repository and its variants to a check of the memory that a variant needs.
MakeFitCheck: TypeAlias = Callable[[Hub, Repository, Sequence[Variant]], FitCheck]


@dataclass(frozen=True, slots=True)
class PullOptions:
    """Options of a pull.

    fit: makes the check whether a variant fits in memory; None chooses without one. siblings: also
    download the image encoder and the draft model of a repository. connections: simultaneous
    requests for a file. chunk_bytes: size of the range that one request asks for. pause_s: the
    first pause after a failure; each further one is twice as long.
    """

    fit: MakeFitCheck | None = None
    siblings: bool = True
    connections: int = 4
    chunk_bytes: int = 32 << 20
    pause_s: float = 1.0
    folders: Folders = field(default_factory=folders)


def pull(model: str, on_event: OnEvent = ignore, options: PullOptions | None = None) -> Path:
    """Download the model that `model` names and return the path of its (first) file.

    Of a Modelfile, the model after FROM is downloaded.
    Complete files are not downloaded again, and an interrupted pull is resumed. Raises
    ModelNameError, DownloadError or MemoryLimitError; UnsupportedError if the optional dependency
    huggingface_hub is missing.
    """
    options = options or PullOptions()
    name = parse(model)
    if isinstance(name, FileName):
        if is_modelfile(name.path):
            return pull(str(base_name(read(name.path), name.path)), on_event, options)
        if not name.path.exists():
            raise FormatError(f"cannot open {name.path}", "there is no such file", "check the path")
        raise ModelNameError(
            f"{model} is a file on this machine",
            "there is nothing to download",
            f"run it with `zinc run -m {model}`",
        )
    if isinstance(name, OllamaName):
        path = _pull_ollama(name, model, on_event, options)
    else:
        path = _pull_hub(name, model, on_event, options)
    on_event(Finished(model, str(path)))
    return path


def _pull_hub(name: HubName, model: str, on_event: OnEvent, options: PullOptions) -> Path:
    hub = Hub(name.endpoint, pause_s=options.pause_s)
    repository = hub.repository(name, on_event)
    chosen = _choose(hub, repository, options)
    files = list(chosen.variant.files)
    if options.siblings:
        files += siblings_of(repository.files)
    _announce(model, chosen, files, on_event)
    cache = HubCache(options.folders.hugging_face)
    describe = hub.error(name)
    downloads = [
        Download(
            name=file.path,
            url=hub.url(repository, file),
            n_bytes=file.n_bytes,
            sha256=file.sha256,
            target=cache.target(name.repo, repository.commit, file),
            lock=cache.lock(name.repo, file),
            describe=describe,
        )
        for file in files
    ]
    _fetch_all(downloads, hub.transport, on_event, options)
    try:
        return cache.publish(name.repo, name.revision, repository.commit, files)[0]
    except OSError as error:
        raise disk_error(error, cache.root) from error


def _choose(hub: Hub, repository: Repository, options: PullOptions) -> Choice:
    """Return the variant that the name asks for, or the best that fits."""
    name = repository.name
    variants = variants_of(repository.files)
    if name.file is not None:
        found = [v for v in variants if any(file.path == name.file for file in v.files)]
        if not found:
            raise ModelNameError(
                f"{name.repo} has no file {name.file}",
                "",
                f"`zinc show {name.repo}` lists its quantisations",
            )
        return Choice(found[0], "")
    if not variants:
        raise hub.no_gguf_files(name)
    if name.quantisation is not None:
        return Choice(select(variants, name.quantisation, name.repo), "")
    check = None if options.fit is None else options.fit(hub, repository, variants)
    return choose(variants, check, name.repo)


def _pull_ollama(name: OllamaName, model: str, on_event: OnEvent, options: PullOptions) -> Path:
    transport = Transport(pause_s=options.pause_s)
    manifest = fetch_manifest(name, transport, on_event)
    folder = OllamaFolder(options.folders.ollama[0])
    total = sum(layer.n_bytes for layer in manifest.layers)
    files = tuple(layer.media_type.rpartition(".")[2] for layer in manifest.layers)
    on_event(Chosen(model, name.tag, "", files, total))
    downloads = [
        Download(
            name=layer.media_type.rpartition(".")[2],
            url=layer_url(name, layer),
            n_bytes=layer.n_bytes,
            sha256=layer.sha256,
            target=folder.blob(layer),
            lock=folder.lock(layer),
            describe=status_error(name),
        )
        for layer in manifest.layers
    ]
    _fetch_all(downloads, transport, on_event, options)
    try:
        return folder.publish(name, manifest)
    except OSError as error:
        raise disk_error(error, folder.root) from error


def _announce(model: str, chosen: Choice, files: Sequence[RepoFile], on_event: OnEvent) -> None:
    paths, total = tuple(file.path for file in files), sum(file.n_bytes for file in files)
    on_event(Chosen(model, chosen.variant.label, chosen.why, paths, total))


def _fetch_all(
    files: Sequence[Download], transport: Transport, on_event: OnEvent, options: PullOptions
) -> None:
    """Download files one after the other. Raises DownloadError if the disk has no room for all."""
    _check_room(files)
    for file in files:
        fetch(
            file,
            transport,
            on_event,
            connections=options.connections,
            chunk_bytes=options.chunk_bytes,
        )


def _check_room(files: Sequence[Download]) -> None:
    needed = sum(missing_bytes(file.target, file.n_bytes) for file in files)
    folder = files[0].target.parent
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DownloadError(
            f"there is not enough room in {folder}",
            f"{needed / 1e9:.1f} GB are needed and {free / 1e9:.1f} GB are free",
            "free some space, or choose another disk with HF_HUB_CACHE (Ollama's models: "
            "OLLAMA_MODELS)",
        )
