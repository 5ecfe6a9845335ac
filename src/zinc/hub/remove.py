"""Delete downloaded models from the folders that zinc writes: Hugging Face's and Ollama's."""

from __future__ import annotations

import os
from pathlib import Path

from zinc.hub.errors import DownloadError, MissingModelError, ModelNameError
from zinc.hub.folders import Folders
from zinc.hub.hf_cache import HubCache
from zinc.hub.local import find
from zinc.hub.names import FileName, HubName, OllamaName, parse
from zinc.hub.ollama_folder import OllamaFolder
from zinc.hub.variants import select


def remove(model: str, where: Folders) -> int:
    """Delete the model that `model` names and return the bytes freed.

    A repository without a quantisation is deleted with all its files. Raises MissingModelError if
    the model is not here, ModelNameError for a file or a folder that belongs to another program,
    DownloadError if the folder cannot be written.
    """
    name = parse(model)
    if isinstance(name, FileName):
        raise ModelNameError(
            f"zinc did not download {model}", "it is a path", "delete the file itself"
        )
    try:
        freed = _ollama(name, where) if isinstance(name, OllamaName) else _hub(name, where)
    except OSError as error:
        raise DownloadError(
            f"cannot delete {model}", error.strerror or str(error), "check the permissions"
        ) from error
    if freed:
        return freed
    here = find(name, where)
    if here:
        raise ModelNameError(
            f"{model} belongs to another program",
            f"it is {here[0][1]}",
            "delete it with that program, or delete the file",
        )
    raise MissingModelError(model, hint="`zinc list` shows the models that are")


def _ollama(name: OllamaName, where: Folders) -> int:
    return sum(OllamaFolder(root).remove(name) for root in where.ollama)


def _hub(name: HubName, where: Folders) -> int:
    """Delete the links to the named files, then blobs without a link; return the bytes freed."""
    cache = HubCache(where.hugging_face)
    folder = cache.repository(name.repo)
    only_here = Folders(where.hugging_face, where.hugging_face, (), ())
    here = find(name, only_here)
    if not here:
        return 0
    doomed = [variant for variant, _ in here]
    if name.quantisation is not None:
        doomed = [select(doomed, name.quantisation, name.repo)]
    elif name.file is not None:
        doomed = [v for v in doomed if any(file.path == name.file for file in v.files)]
    paths = {file.path for variant in doomed for file in variant.files}
    is_all = {file.path for variant, _ in here for file in variant.files} == paths
    freed = 0
    for snapshot in (folder / "snapshots").iterdir():
        for link in list(snapshot.rglob("*")):
            inside = link.relative_to(snapshot).as_posix()
            if not link.is_dir() and (is_all or inside in paths):
                # Without links, the file itself is in the snapshot.
                freed += 0 if link.is_symlink() else link.stat().st_size
                link.unlink()
    return freed + _sweep(folder)


def _sweep(folder: Path) -> int:
    """Delete the blobs of a repository that nothing links to; return the bytes freed."""
    links = [path for path in (folder / "snapshots").rglob("*") if path.is_symlink()]
    used = {os.path.realpath(link) for link in links}
    freed = 0
    for blob in (folder / "blobs").iterdir():
        if blob.is_file() and os.path.realpath(blob) not in used:
            freed += blob.stat().st_size
            blob.unlink()
    return freed
