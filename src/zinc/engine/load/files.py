"""Model files: the path of a model name, and the bytes of the tensors that plans read."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from zinc.formats.gguf import GGUFFile
from zinc.hub.resolve import resolve
from zinc.ops.costs import weight_bytes
from zinc.ops.values import Weight

EMBEDDED_MODEL = Path(__file__).parents[2] / "data" / "zinc-demo-30m-q4_k_m.gguf"


def resolve_model(name: str | os.PathLike[str] | None) -> Path:
    """Return the path of the model file `name`; None is the embedded model.

    name: a path, or a name of the hub, the catalogue or Ollama (docs/models.md). Raises FormatError
    for a path without a file, MissingModelError for a model that has to be downloaded first, and
    ModelNameError for an invalid name.
    """
    return EMBEDDED_MODEL if name is None else resolve(name)


def weights_bytes(file: GGUFFile, weights: Iterable[Weight]) -> int:
    """Return the bytes of the tensors of `weights`; several weights may share a tensor.

    Parts of matrices, and tensors that the file does not have, those of adapters, count with their
    own shapes.
    """
    tensors = {w.name if _is_part(w) else w.tensor: w for w in weights}
    return sum(
        file.tensors[name].n_bytes if name in file.tensors else weight_bytes(w)
        for name, w in tensors.items()
    )


def _is_part(weight: Weight) -> bool:
    """Return whether a weight is made of some rows or columns of a matrix."""
    rows = weight.rows_from or weight.transposed_rows
    return not weight.is_vector and (rows is not None or weight.box is not None)
