"""Resolution of a model name to a file on this machine. It uses no network."""

from __future__ import annotations

import os
from pathlib import Path

from zinc.core.errors import FormatError
from zinc.hub.choice import choose
from zinc.hub.errors import MissingModelError
from zinc.hub.folders import Folders, folders
from zinc.hub.local import find
from zinc.hub.modelfile import Modelfile, is_modelfile, read
from zinc.hub.names import FileName, HubName, ModelName, OllamaName, parse, registry_name
from zinc.hub.variants import select


def resolve(model: str | os.PathLike[str], where: Folders | None = None) -> Path:
    """Return the model file that `model` names; for a Modelfile, that of its FROM.

    Raises MissingModelError if it is a valid name whose file has to be downloaded first,
    ModelNameError if it is no valid name, FormatError for a path without a file.
    """
    text = os.fspath(model)
    name = parse(text)
    if isinstance(name, FileName):
        if is_modelfile(name.path):
            return base_file(read(name.path), name.path)
        return _file(name.path)
    found = local_path(name, where or folders())
    if found is None:
        raise MissingModelError(text, *_why_missing(name, where or folders()))
    return found


def base_file(modelfile: Modelfile, path: Path, where: Folders | None = None) -> Path:
    """Return the model file after FROM in a Modelfile, which is at `path`. Raises as `resolve`."""
    near = path.parent / os.path.expanduser(modelfile.base)
    if is_modelfile(near):
        raise FormatError(f"{path} is FROM another Modelfile", "FROM names a model", f"see {near}")
    return resolve(near if near.exists() else registry_name(modelfile.base), where)


def local_path(name: HubName | OllamaName, where: Folders) -> Path | None:
    """Return the file of a model on this machine.

    Without a quantisation, the best balanced one that is here is taken (see choice.py).
    """
    here = find(name, where)
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


def _file(path: Path) -> Path:
    if path.is_dir():
        raise FormatError(f"cannot open {path}", "it is a folder", "name a .gguf file inside it")
    if not path.exists():
        raise FormatError(f"cannot open {path}", "there is no such file", "check the path")
    return path


def _why_missing(name: ModelName, where: Folders) -> tuple[str, str]:
    """Return the reason why a model is missing, and a hint; empty strings if none is known."""
    here = find(name, where)
    if here and isinstance(name, HubName):
        labels = ", ".join(variant.label for variant, _ in here)
        return f"of {name.repo} only {labels} is here", ""
    return "", ""
