"""Projection of pooled rows by one or two matrices (EmbeddingGemma).

An embedding is dense_3 @ (dense_2 @ row) for the pooled row of a text. Files may have both
matrices, the first, or none.
"""

from __future__ import annotations

from zinc.core.dataclass import dataclass
from zinc.formats.gguf import GGUFFile
from zinc.models.parts.errors import incomplete
from zinc.models.parts.spec import ModelSpec
from zinc.models.parts.weights import Weights
from zinc.ops.values import FloatArray, Weight


@dataclass(frozen=True, slots=True)
class Projection:
    """Matrices [out, in] that turn a pooled row into an embedding, in order of application."""

    matrices: tuple[FloatArray, ...]

    @property
    def cols(self) -> int:
        """Number of columns of an embedding."""
        return len(self.matrices[-1])

    def __call__(self, rows: FloatArray) -> FloatArray:
        """Return embeddings [..., cols] of pooled rows [..., hidden], float32."""
        for matrix in self.matrices:
            rows = rows.astype("f4") @ matrix.T
        return rows


def projection_weights(w: Weights, spec: ModelSpec) -> list[Weight]:
    """Return the matrices of a file. Raises ModelError for one that does not fit the other."""
    found: list[Weight] = []
    cols = spec.hidden
    for name in ("dense_2", "dense_3"):
        tensor = w.file.tensors.get(f"{name}.weight")
        if tensor is None:
            continue
        if name == "dense_3" and not found:
            raise incomplete(w.file, "the tensor dense_2.weight is missing")
        found.append(w.matrix(name, tensor.shape[0], cols))
        cols = tensor.shape[0]
    return found


def projection(file: GGUFFile, spec: ModelSpec) -> Projection | None:
    """Read the matrices of an encoder, None if it has none."""
    if not spec.is_encoder:
        return None
    found = projection_weights(Weights(file), spec)
    matrices = tuple(file.tensors[weight.name].to_float32() for weight in found)
    return Projection(matrices) if matrices else None
