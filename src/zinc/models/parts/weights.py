"""Tensors of a model file by name, with their shapes checked against the metadata.

`layer.matrix("attn_q", rows, cols)` returns a graph `Weight`, or raises a ModelError that names the
file, the tensor, its shape and the expected shape. `Weights.check` then makes sure that the model
used every tensor.
"""

from __future__ import annotations

import math
import re
from dataclasses import field, replace

from zinc.core.dataclass import dataclass
from zinc.core.errors import UnsupportedError
from zinc.formats.gguf import GGUFFile
from zinc.models.parts.errors import damaged, incomplete, unsupported
from zinc.ops.values import Weight
from zinc.quant.blocks import GGMLType


def block_of(name: str) -> int | None:
    """Return the number of the block that a tensor belongs to, None for tensors outside blocks."""
    found = re.match(r"blk\.(\d{1,9})\.", name)
    return None if found is None else int(found[1])


def in_layers(file: GGUFFile, name: str) -> bool:
    """Return whether any block of a file has the tensor `name` (`attn_q_norm.weight`)."""
    return any(x.endswith(f".{name}") and block_of(x) is not None for x in file.tensors)


@dataclass(frozen=True, slots=True)
class Weights:
    """The tensors of a file whose names start with `prefix`.

    used: names of all requested tensors. looked_for: for each optional tensor name, whether it was
    found, by prefix.
    """

    file: GGUFFile
    prefix: str = ""
    used: set[str] = field(default_factory=set)
    looked_for: dict[str, dict[str, bool]] = field(default_factory=dict)

    def layer(self, index: int) -> Weights:
        """Return the tensors of one layer."""
        return replace(self, prefix=f"blk.{index}.")

    def ignore(self, *names: str) -> None:
        """Exempt tensors, which the model does not need, from the check for unused tensors."""
        self.used.update(f"{self.prefix}{name}.weight" for name in names)

    def check(self, n_layers: int, n_nextn: int) -> None:
        """Check that the model used all tensors of its `n_layers` layers.

        RoPE tables, vision and audio parts and the `n_nextn` NextN blocks are exempt. Raises
        UnsupportedError for an unused tensor, such as a bias that would change the result. Raises
        ModelError for blocks that the metadata does not count, and for an optional tensor that only
        some layers have.
        """
        for name in self.file.tensors:
            if name in self.used or name.startswith(("rope_", "v.", "a.", "mm.")):
                continue
            block = block_of(name)
            if block is not None and block >= n_layers + n_nextn:
                raise damaged(
                    self.file,
                    f"it has the tensor {name}, but the metadata counts "
                    f"{n_layers + n_nextn} blocks",
                )
            if block is not None and (block >= n_layers or name.endswith("rot_embd.weight")):
                continue
            raise self._unknown(name)
        for name, found in self.looked_for.items():
            if len(set(found.values())) > 1:
                lacking = next(prefix for prefix, there in found.items() if not there)
                raise incomplete(
                    self.file,
                    f"the tensor {lacking}{name} is missing, and other layers have theirs",
                )

    def check_block(self, index: int) -> None:
        """Raise UnsupportedError if the model did not use every tensor of block `index`."""
        for name in self.file.tensors:
            is_table = name.endswith("rot_embd.weight")
            if block_of(name) == index and name not in self.used and not is_table:
                raise self._unknown(name)

    def _unknown(self, name: str) -> UnsupportedError:
        """Return the error for a tensor that would change the result, and that is not used."""
        return unsupported(
            self.file,
            f"zinc does not know what the tensor {name} does in this architecture",
            "use another conversion of the model, or a newer zinc",
        )

    def has(self, name: str, suffix: str = "weight", *, varies: bool = False) -> bool:
        """Return whether the file has an optional tensor; with suffix "", one without suffix.

        varies: the layers need not agree.
        """
        full = f"{name}.{suffix}" if suffix else name
        found = f"{self.prefix}{full}" in self.file.tensors
        if not varies:
            self.looked_for.setdefault(full, {})[self.prefix] = found
        return found

    def stacks(self, name: str, rows: int) -> bool:
        """Return whether the file has a matrix with `rows` rows."""
        tensor = self.file.tensors.get(f"{self.prefix}{name}.weight")
        return tensor is not None and tensor.shape[0] == rows

    def refuse(self, name: str, suffix: str) -> None:
        """Raise UnsupportedError if the file has a tensor that zinc would have to split."""
        if self.has(name, suffix):
            raise unsupported(
                self.file,
                f"zinc does not split the tensor {self.prefix}{name}.{suffix}",
                "use a conversion that keeps its parts apart",
            )

    def matrix(self, name: str, rows: int, cols: int, planes: int | None = None) -> Weight:
        """Return a required matrix [rows, cols], or with `planes` [planes, rows, cols]."""
        shape = (rows, cols) if planes is None else (planes, rows, cols)
        return self._get(f"{self.prefix}{name}.weight", shape)

    def rows(self, name: str, shape: tuple[int, ...], first: int, n: int) -> Weight:
        """Return rows first to first + n of a required matrix of `shape`, of each plane if any."""
        whole = self._get(f"{self.prefix}{name}.weight", shape)
        part = range(first, first + n)
        name = f"{whole.name}[{part.start}:{part.stop}]"
        return Weight(name, whole.type, whole.shape, part, source=whole.name)

    def flat(self, name: str, shape: tuple[int, ...], suffix: str = "weight") -> Weight:
        """Return a required float32 tensor of `shape` as a vector, the last dimension fastest.

        suffix "": its name has none. The file may lack leading dimensions of 1, which quantisers
        drop.
        """
        full = f"{self.prefix}{name}.{suffix}" if suffix else self.prefix + name
        tensor = self.file.tensors.get(full)
        n_dropped = 0 if tensor is None else max(0, len(shape) - len(tensor.shape))
        if set(shape[:n_dropped]) == {1}:
            shape = shape[n_dropped:]
        whole = self._get(full, shape)
        return Weight(whole.name, whole.type, (math.prod(shape),))

    def plane_biases(self, name: str, planes: int, cols: int) -> Weight:
        """Return the required biases [planes, cols] of `name` as one flat vector."""
        whole = self._get(f"{self.prefix}{name}.bias", (planes, cols))
        return Weight(whole.name, whole.type, (planes * cols,))

    def pick(self, name: str, shape: tuple[int, int], rows: tuple[int, ...], part: str) -> Weight:
        """Return some rows of a required matrix of `shape`; `part` becomes part of its name."""
        whole = self._get(f"{self.prefix}{name}.weight", shape)
        return Weight(f"{whole.name}[{part}]", whole.type, shape, rows, source=whole.name)

    def transposed(
        self, name: str, shape: tuple[int, int], rows: tuple[int, ...], planes: int
    ) -> Weight:
        """Return some rows of a required matrix of `shape`, as planes that are transposed each.

        The copy is made at load, block formats as float16, which has 11 bits of precision.
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
        """Return a required matrix of one row, which some files store as a vector."""
        full = f"{self.prefix}{name}.weight"
        tensor = self.file.tensors.get(full)
        is_vector = tensor is not None and len(tensor.shape) == 1
        whole = self._get(full, (cols,) if is_vector else (1, cols))
        return Weight(whole.name, whole.type, (1, cols))

    def require(self, *names: str) -> None:
        """Raise ModelError unless the file has the named tensors (`attn_q.bias`)."""
        for name in names:
            if f"{self.prefix}{name}" not in self.file.tensors:
                raise incomplete(self.file, f"the tensor {self.prefix}{name} is missing")

    def scalar(self, name: str) -> float:
        """Return the finite number in a required tensor of one element."""
        weight = self.vector(name, 1)
        value = float(self.file.tensors[weight.name].to_float32()[0])
        if not math.isfinite(value):
            raise damaged(
                self.file, f"the tensor {weight.name} is {value}, and it must be a finite number"
            )
        return value

    def vector(self, name: str, cols: int, suffix: str = "weight") -> Weight:
        """Return the vector `name`. Raises an error if the file lacks it."""
        return self._get(f"{self.prefix}{name}.{suffix}", (cols,))

    def norm(self, name: str, cols: int) -> Weight:
        """Return the weight of a norm, whose name some files write without suffix."""
        full = f"{self.prefix}{name}"
        is_bare = full in self.file.tensors and f"{full}.weight" not in self.file.tensors
        return self.bare_vector(name, cols) if is_bare else self.vector(name, cols)

    def bare_vector(self, name: str, cols: int) -> Weight:
        """Return a required vector whose name has no suffix such as `.weight`."""
        return self._get(f"{self.prefix}{name}", (cols,))

    def optional_vector(self, name: str, cols: int, suffix: str = "weight") -> Weight | None:
        """Return a vector, or None if the file lacks it."""
        return self.vector(name, cols, suffix) if self.has(name, suffix) else None

    def bias(self, name: str, cols: int) -> Weight | None:
        """Return a bias, or None if the file lacks it."""
        return self.optional_vector(name, cols, "bias")

    def bias_part(self, name: str, cols: int, first: int, n: int) -> Weight | None:
        """Return elements first to first + n of a bias of `cols` elements, or None without one."""
        whole = self.bias(name, cols)
        if whole is None:
            return None
        part = range(first, first + n)
        name = f"{whole.name}[{part.start}:{part.stop}]"
        return Weight(name, whole.type, (n,), part, source=whole.name)

    def _get(self, name: str, shape: tuple[int, ...]) -> Weight:
        """Return a required tensor by its full name. Raises ModelError for another shape.

        Some files store a vector as a matrix of one row.
        """
        tensor = self.file.tensors.get(name)
        if tensor is None:
            raise incomplete(self.file, f"the tensor {name} of shape {list(shape)} is missing")
        is_one_row = len(shape) == 1 and tuple(tensor.shape) == (1, *shape)
        if tuple(tensor.shape) != shape and not is_one_row:
            raise damaged(
                self.file,
                f"the tensor {name} has shape {list(tensor.shape)}, "
                f"but the metadata implies {list(shape)}",
            )
        self.used.add(name)
        return Weight(name, tensor.type, shape)
