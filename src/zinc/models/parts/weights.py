"""Tensors of a model file by role, with their shapes held against the metadata.

A model asks for `layer.matrix("attn_q", rows, cols)` and gets a graph `Weight`, or a ModelError
that names the tensor, the shape it has, the shape the metadata implies and the file. So no model
computes with a tensor that is not what it takes it for, and none is left out.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace

from zinc.core.errors import ModelError, UnsupportedError
from zinc.formats.gguf import GGUFFile
from zinc.ops.values import Weight
from zinc.quant.blocks import GGMLType


def block_of(name: str) -> int | None:
    """The number of the block that a tensor belongs to, None for those of the whole model."""
    found = re.match(r"blk\.(\d{1,9})\.", name)
    return None if found is None else int(found[1])


@dataclass(frozen=True, slots=True)
class Weights:
    """The tensors whose names start with `prefix`.

    `used` collects what was asked for, and `looked_for` by name in a layer, whether each layer that
    was asked for an optional tensor has it.
    """

    file: GGUFFile
    prefix: str = ""
    used: set[str] = field(default_factory=set)
    looked_for: dict[str, dict[str, bool]] = field(default_factory=dict)

    def layer(self, index: int) -> Weights:
        return replace(self, prefix=f"blk.{index}.")

    def ignore(self, *names: str) -> None:
        """Says that the model is right without these tensors, if the file has them."""
        self.used.update(f"{self.prefix}{name}.weight" for name in names)

    def check(self, n_layers: int, n_nextn: int) -> None:
        """Holds the tensors of the file against what the model asked for in its layers.

        A tensor that nobody asked for would change the result (a bias, a scale) and be skipped
        without a word: that is an UnsupportedError, and for blocks that the metadata does not
        count, or an optional tensor that only some layers have, a ModelError. Not meant are RoPE
        tables, the parts of a model that see and hear, and the `n_nextn` blocks behind the layers.
        """
        for name in self.file.tensors:
            if name in self.used or name.startswith(("rope_", "v.", "a.", "mm.")):
                continue
            block = block_of(name)
            if block is not None and block >= n_layers + n_nextn:
                raise ModelError(
                    f"cannot load {self.file.path}",
                    f"it has the tensor {name}, but the metadata counts "
                    f"{n_layers + n_nextn} blocks",
                    "the file is damaged or converted wrongly; convert or download it again",
                )
            if block is not None and (block >= n_layers or name.endswith("rot_embd.weight")):
                continue
            raise UnsupportedError(
                f"cannot load {self.file.path}",
                f"zinc does not know what the tensor {name} does in this architecture",
                "use another conversion of the model, or a newer zinc",
            )
        for name, found in self.looked_for.items():
            if len(set(found.values())) > 1:
                lacking = next(prefix for prefix, there in found.items() if not there)
                raise ModelError(
                    f"cannot load {self.file.path}",
                    f"the tensor {lacking}{name} is missing, and other layers have theirs",
                    "the file is incomplete; convert or download it again",
                )

    def has(self, name: str, suffix: str = "weight") -> bool:
        found = f"{self.prefix}{name}.{suffix}" in self.file.tensors
        self.looked_for.setdefault(f"{name}.{suffix}", {})[self.prefix] = found
        return found

    def stacks(self, name: str, rows: int) -> bool:
        """Whether the matrix is there and has so many rows, being several matrices in one."""
        tensor = self.file.tensors.get(f"{self.prefix}{name}.weight")
        return tensor is not None and tensor.shape[0] == rows

    def refuse(self, name: str, suffix: str) -> None:
        """Raises UnsupportedError when the file has a tensor that would have to be split."""
        if self.has(name, suffix):
            raise UnsupportedError(
                f"cannot load {self.file.path}",
                f"zinc does not split the tensor {self.prefix}{name}.{suffix}",
                "use a conversion that keeps its parts apart",
            )

    def matrix(self, name: str, rows: int, cols: int, planes: int | None = None) -> Weight:
        """The required matrix [rows, cols], or [planes, rows, cols]."""
        shape = (rows, cols) if planes is None else (planes, rows, cols)
        return self._get(f"{self.prefix}{name}.weight", shape)

    def rows(self, name: str, shape: tuple[int, ...], first: int, n: int) -> Weight:
        """Rows first to first + n of the required matrix of `shape` (of each plane of it)."""
        whole = self._get(f"{self.prefix}{name}.weight", shape)
        part = range(first, first + n)
        name = f"{whole.name}[{part.start}:{part.stop}]"
        return Weight(name, whole.type, whole.shape, part, source=whole.name)

    def flat(self, name: str, shape: tuple[int, ...]) -> Weight:
        """The required tensor of `shape` as one float32 vector, the last dimension fastest."""
        whole = self._get(f"{self.prefix}{name}.weight", shape)
        return Weight(whole.name, whole.type, (math.prod(shape),))

    def plane_vectors(self, name: str, planes: int, cols: int, suffix: str = "bias") -> Weight:
        """A required vector for each plane, [planes, cols] in the file, as one flat vector."""
        whole = self._get(f"{self.prefix}{name}.{suffix}", (planes, cols))
        return Weight(whole.name, whole.type, (planes * cols,))

    def pick(self, name: str, shape: tuple[int, int], rows: tuple[int, ...], part: str) -> Weight:
        """Some rows of the required matrix of `shape`; `part` says which in the weight's name."""
        whole = self._get(f"{self.prefix}{name}.weight", shape)
        return Weight(f"{whole.name}[{part}]", whole.type, shape, rows, source=whole.name)

    def transposed(
        self, name: str, shape: tuple[int, int], rows: tuple[int, ...], planes: int
    ) -> Weight:
        """Some rows of the required matrix of `shape`, cut into planes, each plane transposed.

        It is made at load. Float16 keeps what a block format holds to 11 bits.
        """
        whole = self._get(f"{self.prefix}{name}.weight", shape)
        kept = whole.type in (GGMLType.F32, GGMLType.BF16)
        return Weight(
            f"{whole.name}[transposed]",
            whole.type if kept else GGMLType.F16,
            (planes, shape[1], len(rows) // planes),
            source=whole.name,
            transposed_rows=rows,
        )

    def row(self, name: str, cols: int) -> Weight:
        """The required matrix of one row, which some files store as a vector."""
        full = f"{self.prefix}{name}.weight"
        tensor = self.file.tensors.get(full)
        is_vector = tensor is not None and len(tensor.shape) == 1
        whole = self._get(full, (cols,) if is_vector else (1, cols))
        return Weight(whole.name, whole.type, (1, cols))

    def require(self, *names: str) -> None:
        """Raises ModelError unless the file has these tensors (`attn_q.bias`)."""
        for name in names:
            if f"{self.prefix}{name}" not in self.file.tensors:
                raise ModelError(
                    f"cannot load {self.file.path}",
                    f"the tensor {self.prefix}{name} is missing",
                    "the file is incomplete or of another architecture; convert it again",
                )

    def scalar(self, name: str) -> float:
        """The required finite number in a tensor of one element."""
        weight = self.vector(name, 1)
        value = float(self.file.tensors[weight.name].to_float32()[0])
        if not math.isfinite(value):
            raise ModelError(
                f"cannot load {self.file.path}",
                f"the tensor {weight.name} is {value}, and it must be a finite number",
                "the file is damaged; download or convert it again",
            )
        return value

    def vector(self, name: str, cols: int, suffix: str = "weight") -> Weight:
        return self._get(f"{self.prefix}{name}.{suffix}", (cols,))

    def bare_vector(self, name: str, cols: int) -> Weight:
        """A required vector whose name ends without `.weight` or the like."""
        return self._get(f"{self.prefix}{name}", (cols,))

    def optional_vector(self, name: str, cols: int, suffix: str = "weight") -> Weight | None:
        return self.vector(name, cols, suffix) if self.has(name, suffix) else None

    def bias(self, name: str, cols: int) -> Weight | None:
        return self.optional_vector(name, cols, "bias")

    def _get(self, name: str, shape: tuple[int, ...]) -> Weight:
        tensor = self.file.tensors.get(name)
        if tensor is None:
            raise ModelError(
                f"cannot load {self.file.path}",
                f"the tensor {name} of shape {list(shape)} is missing",
                "the file is incomplete or of another architecture; convert or download it again",
            )
        if tuple(tensor.shape) != shape:
            raise ModelError(
                f"cannot load {self.file.path}",
                f"the tensor {name} has shape {list(tensor.shape)}, "
                f"but the metadata implies {list(shape)}",
                "the file is damaged or converted wrongly; convert or download it again",
            )
        self.used.add(name)
        return Weight(name, tensor.type, shape)
