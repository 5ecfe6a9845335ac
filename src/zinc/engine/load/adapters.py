"""LoRA adapters: GGUF files as llama.cpp's converter writes them, for a model that is loaded.

    general.type "adapter", adapter.type "lora", adapter.lora.alpha
    NAME.lora_a [rank, cols], NAME.lora_b [out, rank]      for each changed tensor NAME [out, cols]

The change of a tensor is alpha / rank * b @ a; without alpha it is b @ a. The factors of the token
embedding are stored the other way round, as [tokens, rank] and [cols, rank].
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from zinc.backends.api import TensorData
from zinc.core.dataclass import dataclass
from zinc.core.errors import ModelError, RequestError, UnsupportedError
from zinc.engine.adapters import AdapterUse, adapter_use
from zinc.engine.load.options import AdapterOption
from zinc.formats.gguf import GGUFFile
from zinc.ops.node import Node
from zinc.plan.adapters import EMBEDDING, TYPES, Adapters, Factors, changeable
from zinc.plan.weights import factor_data

_SUFFIXES = (".lora_a", ".lora_b")


@dataclass(frozen=True, slots=True)
class AdapterFile:
    """An open adapter. digest: of its contents. factors: by the tensor that they change.

    task_name, prompt_prefix: metadata for users of the adapter; empty if the file has none.
    """

    file: GGUFFile
    digest: str
    alpha: float
    factors: dict[str, Factors]
    task_name: str = ""
    prompt_prefix: str = ""

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self.file.path

    def data(self, name: str) -> dict[str, TensorData]:
        """Return the data of the factors of the tensor `name`, by the name of their weight.

        Raises ModelError for numbers that are not finite, or too large.
        """
        factors = self.factors[name]
        a, b = (self.file.tensors[f"{name}{suffix}"].to_float32() for suffix in _SUFFIXES)
        if name == TYPES:
            a, b = b, np.ascontiguousarray(a.T)
        found = factor_data(a, b * np.float32(self.alpha / b.shape[1]) if self.alpha else b)
        if found is None:
            raise _damaged(self.file, f"the adapter of {name} has numbers beyond float16 or NaN")
        return dict(zip((factors.a.name, factors.b.name), found, strict=True))


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """The adapters of a load, in the order of its options."""

    files: tuple[AdapterFile, ...] = ()

    @property
    def factors(self) -> Adapters:
        """The factors of each adapter."""
        return tuple(each.factors for each in self.files)

    def use(self, scales: Mapping[int, float]) -> AdapterUse | None:
        """Return the use of the adapters with these scales by index. Raises RequestError."""
        return adapter_use([each.digest for each in self.files], scales)

    def close(self) -> None:
        """Close the files."""
        for each in self.files:
            each.file.close()


NO_ADAPTERS = AdapterFiles()


def open_adapters(
    options: Sequence[AdapterOption], model: GGUFFile, nodes: Iterable[Node]
) -> AdapterFiles:
    """Open the adapters of a load and check that they suit the model, whose graph has `nodes`.

    Raises RequestError for a file that is not an adapter or was made for another model, ModelError
    for a damaged one, and UnsupportedError for one that zinc cannot apply.
    """
    found: list[AdapterFile] = []
    can_change = changeable(nodes)
    try:
        for index, option in enumerate(options):
            found.append(_open_adapter(index, option.path, model, can_change))
    except BaseException:
        AdapterFiles(tuple(found)).close()
        raise
    return AdapterFiles(tuple(found))


def _open_adapter(index: int, path: Path, model: GGUFFile, can_change: set[str]) -> AdapterFile:
    """Open adapter `index` and check it. can_change: names of tensors that adapters may change."""
    file = GGUFFile.open(path)
    try:
        _check_kind(file, model)
        factors = {name: _factors(index, name, file, model, can_change) for name in _names(file)}
        if not factors:
            raise _damaged(file, "it changes no tensor")
        alpha = file.float("adapter.lora.alpha", default=0.0)
        if not math.isfinite(alpha):
            raise _damaged(file, f"its adapter.lora.alpha is {alpha}")
        texts = [
            file.str(f"adapter.lora.{key}", default="") for key in ("task_name", "prompt_prefix")
        ]
        return AdapterFile(file, _digest(file), alpha, factors, *texts)
    except BaseException:
        file.close()
        raise


def _check_kind(file: GGUFFile, model: GGUFFile) -> None:
    """Check that a file is a LoRA adapter for the architecture of `model`."""
    kind = file.str("general.type", default="model")
    if kind != "adapter":
        raise RequestError(
            f"{file.path} is not a LoRA adapter",
            f"its general.type is {kind!r}",
            "with {lora}, name a file that llama.cpp's convert_lora_to_gguf.py made",
        )
    form = file.str("adapter.type", default="lora")
    if form != "lora":
        raise _unsupported(file, f"it is an adapter of type {form!r}, and zinc applies LoRA only")
    if "adapter.alora.invocation_tokens" in file.metadata:
        raise _unsupported(file, "it is an activated LoRA (aLoRA), which zinc cannot switch on")
    made_for, arch = file.str("general.architecture"), model.str("general.architecture")
    if made_for != arch:
        raise RequestError(
            f"{file.path} was made for another model",
            f"it is for the architecture {made_for}, and {model.path.name} is of {arch}",
            "choose an adapter of the same model for {lora}",
        )


def _names(file: GGUFFile) -> list[str]:
    """Return the tensors that an adapter changes."""
    names = []
    for tensor in file.tensors:
        name, dot, suffix = tensor.rpartition(".")
        if dot + suffix not in _SUFFIXES:
            raise _unsupported(
                file, f"it replaces the tensor {tensor}, and zinc applies low-rank changes only"
            )
        others = [f"{name}{each}" for each in _SUFFIXES]
        if missing := [each for each in others if each not in file.tensors]:
            raise _damaged(file, f"the tensor {missing[0]} is missing")
        names.append(name)
    return list(dict.fromkeys(names))


def _factors(
    index: int, name: str, file: GGUFFile, model: GGUFFile, can_change: set[str]
) -> Factors:
    """Return the factors that change the tensor `name`, checked against the model's tensor."""
    whole = model.tensors.get(name)
    if whole is None:
        raise RequestError(
            f"{file.path} was made for another model",
            f"it changes the tensor {name}, which {model.path.name} does not have",
            "choose an adapter of the same model for {lora}",
        )
    if name not in can_change:
        raise _unsupported(
            file, f"it changes the tensor {name}, and zinc applies adapters to plain products only"
        )
    a, b = (file.tensors[f"{name}{suffix}"].shape for suffix in _SUFFIXES)
    fits = len(a) == len(b) == len(whole.shape) == 2
    out, cols = whole.shape if fits else (0, 0)
    if fits and name == EMBEDDING:
        fits = a[0] == out and b[0] == cols and a[1] == b[1]
    elif fits:
        fits = a[1] == cols and b[0] == out and a[0] == b[1]
    if not fits:
        raise RequestError(
            f"{file.path} was made for another model",
            f"its factors of {name} are {list(a)} and {list(b)}, "
            f"and the tensor is {list(whole.shape)}",
            "choose an adapter of the same model for {lora}",
        )
    if name == TYPES:
        a, b = b, a[::-1]
    return Factors.of(f"lora{index}:{name}", a, b)


def _digest(file: GGUFFile) -> str:
    """Return the SHA-256 of a file's metadata and tensors."""
    digest = hashlib.sha256()
    for part in file.parts:
        digest.update(part.header.data)
        for tensor in part.tensors.values():
            digest.update(tensor.to_float32().tobytes())
    return digest.hexdigest()


def _damaged(file: GGUFFile, why: str) -> ModelError:
    return ModelError(
        f"cannot load the LoRA adapter {file.path}",
        why,
        "the file is damaged or converted wrongly; download or convert it again",
    )


def _unsupported(file: GGUFFile, why: str) -> UnsupportedError:
    return UnsupportedError(
        f"cannot load the LoRA adapter {file.path}", why, "use another adapter with {lora}"
    )
