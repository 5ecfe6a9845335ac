"""Models that are on this machine, in the folders of zinc and of other programs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from zinc.core.dataclass import dataclass
from zinc.hub.choice import choose
from zinc.hub.folders import Folders
from zinc.hub.hf_cache import HubCache
from zinc.hub.names import HubName, ModelName, OllamaName
from zinc.hub.ollama_folder import OllamaFolder
from zinc.hub.variants import RepoFile, Variant, is_sibling, select, variants_of


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model on this machine.

    name: a name that every command takes. program: the program that owns the folder. path: the
    (first) GGUF file. n_bytes: size of all parts.
    """

    name: str
    program: str
    path: Path
    n_bytes: int
    modified_s: float


def list_models(found: Folders) -> list[LocalModel]:
    """Return every model in the folders, sorted by name."""
    models = [
        *_hugging_face(found.hugging_face, "Hugging Face"),
        *_llama_cpp(found.llama_cpp, found.hugging_face),
        *_ollama(found.ollama),
        *_lm_studio(found.lm_studio),
    ]
    return sorted(models, key=lambda model: (model.name.lower(), model.program))


def find(name: ModelName, found: Folders) -> list[tuple[Variant, Path]]:
    """Return the variants of a model that are on this machine, with the path of each.

    Those in the folder of Hugging Face come first. An Ollama model has one variant.
    """
    if isinstance(name, OllamaName):
        return _find_ollama(name, found)
    if not isinstance(name, HubName):
        return []
    candidates: list[tuple[Variant, Path]] = []
    for root in dict.fromkeys((found.hugging_face, found.llama_cpp)):
        folder = HubCache(root).snapshot(name.repo, name.revision)
        if folder is not None:
            candidates += _variants_in(folder)
    prefix = f"{name.repo.replace('/', '_')}_"
    candidates += _variants_in(found.llama_cpp, prefix=prefix)
    for studio in found.lm_studio:
        candidates += _variants_in(studio / Path(*name.repo.split("/")))
    return candidates


def local_path(name: HubName | OllamaName, found: Folders) -> Path | None:
    """Return the file of a model on this machine.

    Without a quantisation, the best balanced one that is here is taken (see choice.py).
    """
    here = find(name, found)
    if isinstance(name, HubName) and name.file is not None:
        paths = (path for variant, path in here if variant.files[0].path == name.file)
        return next(paths, None)
    paths_by_variant = {id(variant): path for variant, path in here}
    variants = [variant for variant, _ in here]
    if not variants:
        return None
    if isinstance(name, HubName) and name.quantisation is not None:
        wanted = name.quantisation.upper()
        if not any(
            v.label.upper().removeprefix("UD-") == wanted.removeprefix("UD-") for v in variants
        ):
            return None
        return paths_by_variant[id(select(variants, wanted, name.repo))]
    return paths_by_variant[id(choose(variants, None, str(name)).variant)]


def why_missing(name: HubName | OllamaName, found: Folders) -> str:
    """Return the reason why a model is missing; empty if none is known."""
    here = find(name, found)
    if not here or not isinstance(name, HubName):
        return ""
    return f"of {name.repo} only {', '.join(variant.label for variant, _ in here)} is here"


def _find_ollama(name: OllamaName, found: Folders) -> list[tuple[Variant, Path]]:
    for root in found.ollama:
        path = OllamaFolder(root).find(name)
        if path is not None:
            file = RepoFile(path.name, path.stat().st_size, path.name, None)
            return [(Variant(name.tag, (file,)), path)]
    return []


def _hugging_face(root: Path, program: str) -> Iterator[LocalModel]:
    cache = HubCache(root)
    for repo in cache.repositories():
        folder = cache.snapshot(repo, "main")
        if folder is not None:
            yield from _named(_variants_in(folder), repo, program)


def _llama_cpp(root: Path, hugging_face: Path) -> Iterator[LocalModel]:
    if root != hugging_face:
        yield from _hugging_face(root, "llama.cpp")
    for variant, path in _variants_in(root):
        n_bytes, modified = variant.n_bytes, path.stat().st_mtime
        yield LocalModel(str(path), "llama.cpp", path, n_bytes, modified)


def _ollama(roots: Iterable[Path]) -> Iterator[LocalModel]:
    for root in roots:
        for name, path, n_bytes in OllamaFolder(root).models():
            yield LocalModel(str(name), "Ollama", path, n_bytes, path.stat().st_mtime)


def _lm_studio(roots: Iterable[Path]) -> Iterator[LocalModel]:
    for root in roots:
        for folder in sorted(root.glob("*/*")):
            if folder.is_dir():
                repo = folder.relative_to(root).as_posix()
                yield from _named(_variants_in(folder), repo, "LM Studio")


def _named(
    variants: Iterable[tuple[Variant, Path]], repo: str, program: str
) -> Iterator[LocalModel]:
    for variant, path in variants:
        name = f"{repo}:{variant.label}"
        yield LocalModel(name, program, path, variant.n_bytes, path.stat().st_mtime)


def _variants_in(folder: Path, prefix: str = "") -> list[tuple[Variant, Path]]:
    """Return the variants among the GGUF files of a folder and its subfolders.

    prefix: if given, only files directly in the folder whose names begin with it.
    """
    files = []
    try:
        for path in sorted(folder.glob("*.gguf") if prefix else folder.rglob("*.gguf")):
            # A link may point to a deleted blob, and a file may be deleted during the search.
            if path.name.startswith(prefix) and path.is_file() and os.access(path, os.R_OK):
                relative = path.relative_to(folder).as_posix()
                files.append(RepoFile(relative, path.stat().st_size, relative, None))
    except OSError:
        return []
    return [
        (variant, folder / variant.files[0].path)
        for variant in variants_of(file for file in files if not is_sibling(file.path))
    ]
