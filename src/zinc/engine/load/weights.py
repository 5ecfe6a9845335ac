"""Uploading the weights of a model file to a backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeAlias

from zinc.backends.api import Backend
from zinc.engine.load.adapters import NO_ADAPTERS, AdapterFiles
from zinc.formats.gguf import GGUFFile, Tensor
from zinc.ops.values import Weight
from zinc.plan.weights import factor_part, tensor_data

if TYPE_CHECKING:
    from zinc.engine.identity import TensorDigests

# Called with the bytes done and the bytes in all.
Progress: TypeAlias = Callable[[int, int], None]


def upload(
    file: GGUFFile,
    weights: Iterable[Weight],
    backend: Backend,
    progress: Progress | None = None,
    digests: TensorDigests | None = None,
    adapters: AdapterFiles = NO_ADAPTERS,
) -> None:
    """Upload `weights` to `backend`, the largest first.

    A backend may read a whole tensor before it packs it; the peak of memory is lowest if it does so
    while the other tensors are not loaded yet. `digests` hashes the tensors as they are read.
    adapters: files of the weights that `file` does not have; they come last.
    Raises FormatError if the file cannot be read.
    """
    weights = list(weights)
    tensors = [(w, file.tensors[w.tensor]) for w in weights if w.tensor in file.tensors]
    tensors.sort(key=lambda pair: pair[1].n_bytes, reverse=True)
    total = sum(t.n_bytes for _, t in tensors)
    done = 0
    backend.expect(weights)

    def upload_one(pair: tuple[Weight, Tensor]) -> int:
        weight, tensor = pair
        reader = tensor if digests is None else digests.reader(tensor)
        backend.upload(weight, tensor_data(weight, tensor, reader))
        return tensor.n_bytes

    with ThreadPoolExecutor(backend.capabilities.parallel_uploads, "zinc-upload") as threads:
        for n_bytes in threads.map(upload_one, tensors):
            done += n_bytes
            if progress is not None:
                progress(done, total)
    upload_adapters(adapters, weights, backend)


def upload_adapters(adapters: AdapterFiles, weights: Iterable[Weight], backend: Backend) -> None:
    """Upload the factors of `adapters` that are among `weights`. Raises a `ZincError`."""
    parts: dict[str, list[Weight]] = {}
    for weight in weights:
        parts.setdefault(weight.tensor, []).append(weight)
    for each in adapters.files:
        for name in each.factors:
            for tensor, data in each.data(name).items():
                for weight in parts.get(tensor, ()):
                    backend.upload(weight, factor_part(weight, data))
