"""Resolution of a model name to a file on this machine. It uses no network."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from zinc.core.errors import FormatError
from zinc.hub.errors import MissingModelError, ModelNameError
from zinc.hub.modelfile import Modelfile, is_modelfile, read
from zinc.hub.names import FileName, parse, registry_name

if TYPE_CHECKING:
    from zinc.hub.folders import Folders


def resolve(model: str | os.PathLike[str], where: Folders | None = None) -> Path:
    """Return the model file that `model` names; for a Modelfile, that of its FROM.

    Raises MissingModelError if it is a valid name whose file has to be downloaded first,
    ModelNameError for an invalid name, FormatError for a path without a file.
    """
    text = os.fspath(model)
    name = parse(text)
    if isinstance(name, FileName):
        if is_modelfile(name.path):
            return base_file(read(name.path), name.path, where)
        return _file(name.path)
    # Imported here, because a path needs none of this.
    from zinc.hub.folders import folders
    from zinc.hub.local import local_path, why_missing

    where = where or folders()
    found = local_path(name, where)
    if found is None:
        raise MissingModelError(text, why_missing(name, where))
    return found


def base_file(modelfile: Modelfile, path: Path, where: Folders | None = None) -> Path:
    """Return the model file after FROM in a Modelfile, which is at `path`.

    A short name whose model is not here may be that of a model which Ollama has downloaded. Raises
    as `resolve`.
    """
    try:
        return resolve(base_name(modelfile, path), where)
    except MissingModelError as missing:
        with suppress(MissingModelError, ModelNameError):
            return resolve(f"ollama:{modelfile.base}", where)
        raise missing


def base_name(modelfile: Modelfile, path: Path) -> str | Path:
    """Return the model after FROM in a Modelfile: a file near it, or a name.

    Raises FormatError for another Modelfile.
    """
    near = path.parent / os.path.expanduser(modelfile.base)
    if is_modelfile(near):
        raise FormatError(f"{path} is FROM another Modelfile", "FROM names a model", f"see {near}")
    return near if near.exists() else registry_name(modelfile.base)


def _file(path: Path) -> Path:
    if path.is_dir():
        raise FormatError(f"cannot open {path}", "it is a folder", "name a .gguf file inside it")
    if not path.exists():
        raise FormatError(f"cannot open {path}", "there is no such file", "check the path")
    return path
