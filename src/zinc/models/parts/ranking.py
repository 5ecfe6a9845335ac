"""Rerankers: models with a classification head that scores a document for a query.

The head reads one row of the text `query, document`: the first one of an encoder, the last one of a
decoder. `cls.weight` and a tanh come first, then `cls.output.weight`; most files have one of the
two. The first class is the score. Of a decoder the classes are "yes" and "no", and the score is the
probability of "yes".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.refusal import incomplete
from zinc.models.parts.spec import ModelSpec
from zinc.models.parts.weights import Weights
from zinc.ops.values import FloatArray, Weight

RANK_POOLING = 4  # `{arch}.pooling_type` of rerankers
_DENSE, _OUTPUT = "cls", "cls.output"


@dataclass(frozen=True, slots=True)
class RankHead:
    """Layers of a head as (matrix, bias): `dense` [hidden, hidden], `output` [classes, hidden].

    is_probability: the score is the softmax over the classes.
    """

    dense: tuple[FloatArray, FloatArray] | None
    output: tuple[FloatArray, FloatArray] | None
    is_probability: bool

    def score(self, row: npt.NDArray[np.float64]) -> float:
        """Return the score of a pooled row [hidden]."""
        if self.dense is not None:
            row = np.tanh(self.dense[0] @ row + self.dense[1])
        if self.output is not None:
            row = self.output[0] @ row + self.output[1]
        if self.is_probability:
            row = np.exp(row - row.max())
            row /= row.sum()
        return float(row[0])


def is_reranker(file: GGUFFile, arch: str) -> bool:
    """Return whether a file is a reranker: it says so, or has a head and names no pooling."""
    pooling = file.metadata.get(f"{arch}.pooling_type")
    if pooling is None:
        return f"{_OUTPUT}.weight" in file.tensors
    return bool(pooling == RANK_POOLING)


def head_weights(w: Weights, spec: ModelSpec) -> dict[str, tuple[Weight, Weight | None]]:
    """Return the matrix and the bias of each layer of the head in a file.

    Raises ModelError if there are none, or for another shape.
    """
    found: dict[str, tuple[Weight, Weight | None]] = {}
    for name in (_DENSE, _OUTPUT):
        tensor = w.file.tensors.get(f"{name}.weight")
        if tensor is not None:
            rows = spec.hidden if name == _DENSE or len(tensor.shape) != 2 else tensor.shape[0]
            found[name] = w.matrix(name, rows, spec.hidden), w.bias(name, rows)
    if not found:
        raise incomplete(w.file, f"a reranker needs the tensor {_OUTPUT}.weight")
    return found


def rank_head(file: GGUFFile, spec: ModelSpec) -> RankHead:
    """Read the head of a reranker. Raises ModelError if it does not match the metadata."""
    layers = {}
    for name, (matrix, bias) in head_weights(Weights(file), spec).items():
        added = np.zeros(matrix.rows, np.float32)
        if bias is not None:
            added = file.tensors[bias.name].to_float32().reshape(-1)
        layers[name] = file.tensors[matrix.name].to_float32(), added
    return RankHead(layers.get(_DENSE), layers.get(_OUTPUT), is_probability=spec.causal)
