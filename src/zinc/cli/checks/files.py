"""Folders: the cache of zinc, the models on this machine, and the space for more."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from zinc.cli.checks.finding import Finding, Section, ok, skip, warn
from zinc.cli.text import size
from zinc.core import env
from zinc.hub.folders import Folders, folders
from zinc.hub.local import list_models

LITTLE_BYTES = 10 << 30


def section(cache: Path | None = None, models: Folders | None = None) -> Section:
    """Check the folders. cache, models: by default those of this user."""
    cache, models = cache or env.cache_folder(), models or folders()
    findings = (*_cache(cache), *_models(models), *_space(models.hugging_face))
    facts = {"cache_folder": str(cache), "model_folder": str(models.hugging_face)}
    return Section("Files", findings, facts)


def _cache(folder: Path) -> Iterator[Finding]:
    if not os.access(_existing(folder), os.W_OK | os.X_OK):
        yield warn(
            f"cached files cannot be written to {folder}: kernels are compiled at every start",
            f"sudo chown -R $USER {_existing(folder)}, or set XDG_CACHE_HOME to another folder",
        )
        return
    n_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    yield ok(f"{folder} holds {size(n_bytes)} of compiled kernels and measurements")


def _models(models: Folders) -> Iterator[Finding]:
    found = sorted(list_models(models), key=lambda model: model.program)
    for program, group in groupby(found, key=lambda model: model.program):
        rows = list(group)
        n_bytes = sum(model.n_bytes for model in rows)
        count = "1 model" if len(rows) == 1 else f"{len(rows)} models"
        yield ok(f"{program}: {count}, {size(n_bytes)}")
    if not found:
        yield skip("there is no model besides the embedded one", "zinc pull qwen3:0.6b")
    for folder in (models.hugging_face, models.ollama[0]):
        if not os.access(_existing(folder), os.W_OK | os.X_OK):
            yield warn(
                f"models cannot be downloaded to {folder}",
                f"sudo chown -R $USER {_existing(folder)}, or set HF_HOME or OLLAMA_MODELS",
            )


def _space(folder: Path) -> Iterator[Finding]:
    """Look at the free space where models are downloaded to."""
    free = shutil.disk_usage(_existing(folder)).free
    text = f"{size(free)} are free for models in {folder}"
    if free < LITTLE_BYTES:
        yield warn(text, "delete models with zinc rm MODEL, or set HF_HOME to a folder elsewhere")
    else:
        yield ok(text)


def _existing(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that exists."""
    return next(each for each in (folder, *folder.parents) if each.exists())
