"""Model files: the path that a name means, and the bytes of a plan's tensors."""

from __future__ import annotations

import os
from pathlib import Path

from zinc.backends.plans import Plan
from zinc.core.errors import FormatError
from zinc.formats.gguf import GGUFFile

EMBEDDED_MODEL = Path(__file__).parents[2] / "data" / "zinc-demo-30m-q4_k_m.gguf"


def resolve_model(name: str | os.PathLike[str] | None) -> Path:
    """Return the path of the model file `name`; None is the embedded model. Raises FormatError."""
    if name is None:
        return EMBEDDED_MODEL
    path = Path(name).expanduser()
    if path.is_dir():
        raise FormatError(f"cannot open {path}", "it is a folder", "name a .gguf file inside it")
    if not path.exists():
        hint = "check the path"
        if path.suffix != ".gguf":  # the name of a repository, for example
            hint = "models are .gguf files on this machine: download one, and give its path"
        raise FormatError(f"cannot open {path}", "there is no such file", hint)
    return path


def weights_bytes(file: GGUFFile, plan: Plan) -> int:
    """Return the bytes of the tensors that `plan` reads; several weights may share a tensor."""
    return sum(file.tensors[name].n_bytes for name in {w.tensor for w in plan.weights})
