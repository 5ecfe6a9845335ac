"""Blocks behind the layers of a model that predict further tokens (NextN, multi-token prediction).

They are kept in the file for speculation and are no part of the trunk: no plan reads them, and a
run does not load them. Some files have lost theirs, and still count them.
"""

from __future__ import annotations

from zinc.core.errors import ModelError, UnsupportedError
from zinc.formats.gguf import GGUFFile, Tensor
from zinc.models.parts.spec import ModelSpec
from zinc.models.parts.weights import block_of

# Joins the embedding of a token with the hidden state before it: what no layer of a trunk has.
MARK = "nextn.eh_proj.weight"


def nextn_tensors(file: GGUFFile, spec: ModelSpec) -> list[Tensor]:
    """The tensors of those blocks, in the order of the file."""
    blocks = range(spec.n_layers, spec.n_layers + spec.n_nextn)
    return [tensor for name, tensor in file.tensors.items() if block_of(name) in blocks]


def check_nextn(file: GGUFFile, spec: ModelSpec) -> None:
    """Raises UnsupportedError when the file has such blocks alone, and ModelError when one of them
    is a layer, or a layer one of them: the counts of the metadata are wrong then."""
    for name in file.tensors:
        if ".nextn." in name and (block := block_of(name)) is not None and block < spec.n_layers:
            raise ModelError(
                f"cannot load {file.path}",
                f"its metadata says that block {block} is a layer, and it has the tensor {name}",
                "the file is damaged or converted wrongly; convert or download it again",
            )
    if not spec.n_nextn:
        return
    blocks = {block_of(name) for name in file.tensors} - {None}
    if 0 not in blocks:
        raise UnsupportedError(
            f"cannot load {file.path}",
            "it has only the blocks of a model that predict further tokens (NextN)",
            "name the file of the model itself",
        )
    for block in range(spec.n_layers, spec.n_layers + spec.n_nextn):
        if block in blocks and f"blk.{block}.{MARK}" not in file.tensors:
            raise ModelError(
                f"cannot load {file.path}",
                f"its metadata says that block {block} predicts further tokens, "
                f"and it has no tensor blk.{block}.{MARK}",
                "the file is damaged or converted wrongly; convert or download it again",
            )
