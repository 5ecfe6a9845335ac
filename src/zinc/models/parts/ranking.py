"""Rerankers: models with a classification head that scores a document for a query.

The head reads one row of the text `query, document`: the first one of an encoder, the last one of a
decoder. `cls.weight` and a tanh come first, then `cls.output.weight`; most files have one of the
two. The first class is the score. The classes of a decoder are "yes" and "no", and the score is the
probability of "yes". In ModernBERT, a GELU and the layer norm `cls.norm.weight` take the place of
the tanh, and the head may read the mean of all rows.
"""

from __future__ import annotations

from math import erf, sqrt

import numpy as np
import numpy.typing as npt

from zinc.core.dataclass import dataclass
from zinc.formats.gguf import GGUFFile
from zinc.models.parts.errors import incomplete, unsupported
from zinc.models.parts.spec import ModelSpec
from zinc.models.parts.weights import Weights
from zinc.ops.values import FloatArray, Weight

_POOLINGS = {1: "mean", 2: "cls", 3: "last"}
RANK_POOLING = 4  # `{arch}.pooling_type` of rerankers
_DENSE, _NORM, _OUTPUT = "cls", "cls.norm", "cls.output"


@dataclass(frozen=True, slots=True)
class RankHead:
    """Layers of a head as (matrix, bias): `dense` [hidden, hidden], `output` [classes, hidden].

    norm: weight of the layer norm after `dense`, None without one. is_probability: the score is the
    softmax over the classes. pooling: "mean", "cls" or "last", the row that the head reads.
    """

    dense: tuple[FloatArray, FloatArray] | None
    output: tuple[FloatArray, FloatArray] | None
    is_probability: bool
    norm: FloatArray | None
    eps: float
    pooling: str

    def score(self, row: npt.NDArray[np.float64]) -> float:
        """Return the score of a pooled row [hidden]."""
        if self.dense is not None:
            row = self.dense[0] @ row + self.dense[1]
            row = np.tanh(row) if self.norm is None else self._normalised(_gelu(row))
        if self.output is not None:
            row = self.output[0] @ row + self.output[1]
        if self.is_probability:
            row = np.exp(row - row.max())
            row /= row.sum()
        return float(row[0])

    def _normalised(self, row: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        assert self.norm is not None
        row = row - row.mean()
        normalised: npt.NDArray[np.float64] = row / np.sqrt(np.mean(row * row) + self.eps)
        return normalised * self.norm


def _gelu(row: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.array([0.5 * x * (1 + erf(x / sqrt(2))) for x in row.tolist()])


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
            is_last = name == _OUTPUT or f"{_OUTPUT}.weight" not in w.file.tensors
            rows = tensor.shape[0] if is_last and len(tensor.shape) == 2 else spec.hidden
            found[name] = w.matrix(name, rows, spec.hidden), w.bias(name, rows)
    if _DENSE in found and f"{_NORM}.weight" in w.file.tensors:
        w.vector(_NORM, spec.hidden)
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
    norm = file.tensors.get(f"{_NORM}.weight")
    return RankHead(
        dense=layers.get(_DENSE),
        output=layers.get(_OUTPUT),
        is_probability=spec.causal,
        norm=None if norm is None else norm.to_float32(),
        eps=spec.eps,
        pooling=_pooling(file, spec, norm is not None),
    )


def _pooling(file: GGUFFile, spec: ModelSpec, is_modern: bool) -> str:
    """Return the row that the head reads. ModernBERT without the key uses the mean."""
    if spec.causal:
        return "last"
    number = file.int(f"{spec.arch}.classifier.pooling_type", default=1 if is_modern else 2)
    if number not in _POOLINGS:
        raise unsupported(file, f"its head reads rows of pooling type {number}")
    return _POOLINGS[number]
