"""NextN blocks (multi-token prediction), which follow the layers of a model in its file.

They predict further tokens for speculation. No plan reads them and they are not loaded. In some
files they are missing although the metadata counts them.
"""

from __future__ import annotations

from zinc.formats.gguf import GGUFFile, Tensor
from zinc.models.parts.refusal import damaged, unsupported
from zinc.models.parts.spec import ModelSpec
from zinc.models.parts.weights import block_of

# Every NextN block has this tensor and no layer does. It joins embedding and hidden state.
MARK = "nextn.eh_proj.weight"


def nextn_tensors(file: GGUFFile, spec: ModelSpec) -> list[Tensor]:
    """Return the tensors of NextN blocks, in the order of the file."""
    blocks = range(spec.n_layers, spec.n_layers + spec.n_nextn)
    return [tensor for name, tensor in file.tensors.items() if block_of(name) in blocks]


def check_nextn(file: GGUFFile, spec: ModelSpec) -> None:
    """Raise ModelError if the counts in the metadata take a NextN block for a layer or vice versa.

    Raises UnsupportedError if the file has NextN blocks only.
    """
    for name in file.tensors:
        if ".nextn." in name and (block := block_of(name)) is not None and block < spec.n_layers:
            raise damaged(
                file,
                f"its metadata says that block {block} is a layer, and it has the tensor {name}",
            )
    if not spec.n_nextn:
        return
    blocks = {block_of(name) for name in file.tensors} - {None}
    if 0 not in blocks:
        raise unsupported(
            file,
            "it has only the NextN blocks of a model, which predict further tokens",
            "name the file of the model itself",
        )
    for block in range(spec.n_layers, spec.n_layers + spec.n_nextn):
        if block in blocks and f"blk.{block}.{MARK}" not in file.tensors:
            raise damaged(
                file,
                f"its metadata says that block {block} predicts further tokens, "
                f"and it has no tensor blk.{block}.{MARK}",
            )
