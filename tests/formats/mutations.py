"""Random changes to model files, from single bits to other shapes, keys and vocabularies.

There are two kinds: damage to the bytes of a file, and valid files with changed contents, which the
reader accepts and later code must refuse. The same seed gives the same file.
"""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from zinc.core.errors import ModelError
from zinc.formats.gguf import GGUFArray, GGUFFile
from zinc.formats.gguf_writer import GGUFWriter
from zinc.quant.blocks import BLOCKS, GGMLType

EXTREME_WORDS = [0, 1, 0x7F, 0xFF, 0xFFFF, 1 << 31, 0xFFFFFFFF, 1 << 32, 1 << 62, 1 << 63]
EXTREME_WORDS += [(1 << 64) - 1, (1 << 64) - 31]
EXTREME_VALUES: list[Any] = [0, 1, 2, 3, 7, -1, 63, 255, 4097, 1 << 20, (1 << 31) - 1, 1 << 31]
EXTREME_VALUES += [(1 << 32) - 1, 1 << 40, (1 << 63) - 1, -(1 << 63), (1 << 64) - 1]
EXTREME_VALUES += [0.0, -0.0, 1e-45, -1.5, 0.5, 1e9, 3e38, math.inf, -math.inf, math.nan]
EXTREME_VALUES += [True, False, "", "x", "none", "yarn", "llama", "\x1b[2J", "é" * 3000]
EXTREME_VALUES += [[], [0], [-1, 5], [1] * 5000, ["a", ""], [1.5, math.nan], [[1], [2, 3]]]


def mutate(seed: str, sources: list[Path], target: Path, *, runs: bool = False) -> str:
    """Write a changed copy of one of `sources` to `target`; return what was changed.

    runs: make only changes that many models survive, so that they load and run.
    """
    rng = random.Random(seed)
    source = rng.choice(sources)
    if runs:
        return f"{source.stem}: {_rewrite(rng, source, target, _CHANGES_THAT_RUN)}"
    change = rng.choice((_damage_bytes, _rewrite, _rewrite))
    return f"{source.stem}: {change(rng, source, target)}"


# -- bytes ----------------------------------------------------------------------------------------


def _damage_bytes(rng: random.Random, source: Path, target: Path) -> str:
    raw = bytearray(source.read_bytes())
    with GGUFFile.open(source) as file:
        header = len(file.parts[0].header.data)
    done = []
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        # Names, counts and shapes stand at both ends of the header, with the vocabulary between.
        at = rng.choice((rng.randrange(200), rng.randrange(header), header - rng.randrange(8000)))
        at = min(max(at, 0), len(raw) - 8)
        match rng.randrange(7):
            case 0:
                raw[at] ^= 1 << rng.randrange(8)
                done.append(f"bit at {at}")
            case 1:
                raw[at] = rng.randrange(256)
                done.append(f"byte at {at}")
            case 2:
                raw[at : at + 8] = struct.pack("<Q", rng.choice(EXTREME_WORDS))
                done.append(f"u64 at {at}")
            case 3:
                raw[at : at + 4] = struct.pack("<I", rng.choice(EXTREME_WORDS) & 0xFFFFFFFF)
                done.append(f"u32 at {at}")
            case 4:
                del raw[at : at + rng.choice((1, 4, 8, 100))]
                done.append(f"cut at {at}")
            case 5:
                raw[at:at] = raw[at : at + rng.choice((1, 4, 8, 100))]
                done.append(f"repeat at {at}")
            case 6:
                del raw[rng.randrange(len(raw)) :]
                raw += bytes(8)
                done.append("end cut off")
    target.write_bytes(raw)
    return ", ".join(done)


# -- contents -------------------------------------------------------------------------------------


class _Contents:
    """Metadata of a file, and (name, shape, type, bytes) of each tensor."""

    def __init__(self, source: Path) -> None:
        with GGUFFile.open(source) as file:
            self.metadata: dict[str, Any] = {
                key: value.to_list() if isinstance(value, GGUFArray) else value
                for key, value in file.metadata.items()
            }
            self.types: dict[str, Any] = {
                key: value.element_type if isinstance(value, GGUFArray) else file.value_types[key]
                for key, value in file.metadata.items()
            }
            self.tensors = [(t.name, t.shape, t.type, t.read()) for t in file.tensors.values()]

    def write(self, target: Path) -> None:
        with GGUFWriter(target) as writer:
            for key, value in self.metadata.items():
                if key == "general.alignment":
                    continue
                try:
                    writer.add(key, value, self.types.get(key))
                except ModelError:
                    writer.add(key, str(value)[:100])
            for name, shape, type, data in self.tensors:
                writer.add_tensor(name, data, type, shape)


def _rewrite(
    rng: random.Random, source: Path, target: Path, changes: list[_Change] | None = None
) -> str:
    contents = _Contents(source)
    done = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        change = rng.choice(changes or _CHANGES)
        done.append(change(rng, contents))
    try:
        contents.write(target)
    except ModelError as error:  # two changes that do not go together
        target.write_bytes(source.read_bytes())
        done.append(f"not written: {error}")
    return ", ".join(done)


def _change_value(rng: random.Random, c: _Contents) -> str:
    keys = [key for key in c.metadata if not key.startswith("tokenizer.")]
    key = rng.choice(keys)
    c.metadata[key] = rng.choice(EXTREME_VALUES)
    if rng.random() < 0.5 or not isinstance(c.metadata[key], int):
        c.types.pop(key, None)
    return f"{key} = {str(c.metadata[key])[:40]!r}"


def _nudge_value(rng: random.Random, c: _Contents) -> str:
    numbers = [k for k, v in c.metadata.items() if isinstance(v, int) and not isinstance(v, bool)]
    key = rng.choice(numbers)
    value = c.metadata[key]
    nudged = rng.choice((value - 1, value + 1, value * 2, value // 2, value * 1000))
    c.metadata[key] = max(0, nudged)
    return f"{key} = {c.metadata[key]}"


def _change_tokenizer(rng: random.Random, c: _Contents) -> str:
    keys = [key for key in c.metadata if key.startswith("tokenizer.")]
    if not keys:
        return "no tokenizer"
    key = rng.choice(keys)
    value = c.metadata[key]
    if not isinstance(value, list) or not value or rng.random() < 0.1:
        c.metadata[key] = rng.choice(EXTREME_VALUES)
        c.types.pop(key, None)
        return f"{key} = {str(c.metadata[key])[:40]!r}"
    match rng.randrange(5):
        case 0:
            c.metadata[key] = value[: rng.randrange(len(value))]
        case 1:
            c.metadata[key] = [*value, *value[: rng.randrange(1, 50)]]
        case 2:
            c.metadata[key] = rng.sample(value, len(value))
        case 3:
            c.metadata[key] = [rng.choice(value)] * len(value)
        case 4:
            odd: list[Any] = ["", "\x00", "a b", " ", "é", "<|x|>"]
            if not isinstance(value[0], str):
                odd = [0, -1, 99, (1 << 31) - 1, 3.5e38, math.nan, math.inf]
            for _ in range(rng.choice((1, 10, 100))):
                value[rng.randrange(len(value))] = rng.choice(odd)
    return f"{key} changed"


def _remove_key(rng: random.Random, c: _Contents) -> str:
    key = rng.choice(list(c.metadata))
    del c.metadata[key]
    return f"no {key}"


def _other_architecture(rng: random.Random, c: _Contents) -> str:
    names = ("llama", "qwen2", "qwen3", "qwen3moe", "gemma3", "gemma4", "deepseek2", "gpt-oss")
    old, new = c.metadata.get("general.architecture"), rng.choice(names)
    c.metadata = {
        key.replace(f"{old}.", f"{new}.", 1) if key.startswith(f"{old}.") else key: value
        for key, value in c.metadata.items()
    }
    c.types = {
        key.replace(f"{old}.", f"{new}.", 1) if key.startswith(f"{old}.") else key: value
        for key, value in c.types.items()
    }
    c.metadata["general.architecture"] = new
    return f"architecture {new}"


def _remove_tensor(rng: random.Random, c: _Contents) -> str:
    name = c.tensors.pop(rng.randrange(len(c.tensors)))[0]
    return f"no tensor {name}"


def _rename_tensor(rng: random.Random, c: _Contents) -> str:
    at = rng.randrange(len(c.tensors))
    name, *rest = c.tensors[at]
    new = rng.choice((name + "x", name.replace("blk.", "blk.9"), "rope_freqs.weight", "x", "v.a"))
    new = new.replace("weight", "bias") if rng.random() < 0.2 else new
    if any(tensor[0] == new for tensor in c.tensors):
        return "no tensor renamed"
    c.tensors[at] = (new, *rest)  # type: ignore[assignment]
    return f"tensor {name} is {new}"


def _swap_tensors(rng: random.Random, c: _Contents) -> str:
    i, j = rng.sample(range(len(c.tensors)), 2)
    first, second = c.tensors[i], c.tensors[j]
    c.tensors[i], c.tensors[j] = (first[0], *second[1:]), (second[0], *first[1:])
    return f"tensors {first[0]} and {second[0]} swapped"


def _swap_alike(rng: random.Random, c: _Contents) -> str:
    """Swap two tensors of the same shape."""
    at = rng.randrange(len(c.tensors))
    alike = [i for i, tensor in enumerate(c.tensors) if tensor[1] == c.tensors[at][1]]
    other = rng.choice(alike)
    first, second = c.tensors[at], c.tensors[other]
    c.tensors[at], c.tensors[other] = (first[0], *second[1:]), (second[0], *first[1:])
    return f"tensors {first[0]} and {second[0]} swapped"


def _flip_data(rng: random.Random, c: _Contents) -> str:
    at = rng.randrange(len(c.tensors))
    name, shape, type, data = c.tensors[at]
    data = data.copy()
    for _ in range(rng.choice((1, 10, 100))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    c.tensors[at] = (name, shape, type, data)
    return f"bits in {name}"


def _reshape_tensor(rng: random.Random, c: _Contents) -> str:
    at = rng.randrange(len(c.tensors))
    name, shape, type, data = c.tensors[at]
    new = list(shape)
    match rng.randrange(5):
        case 0:
            new.reverse()
        case 1:
            new = [math.prod(shape)]
        case 2:
            new.insert(0, 1)
        case 3:
            new[0] = max(1, new[0] + rng.choice((-1, 1, new[0])))
        case 4:
            new, data, type = [], np.zeros(4, np.uint8), GGMLType.F32
    if len(new) > 4 or (new and new[-1] % BLOCKS[type].block_size):
        return "no tensor reshaped"
    size = math.prod(new) // BLOCKS[type].block_size * BLOCKS[type].block_bytes
    c.tensors[at] = (name, tuple(new), type, np.resize(data, size))
    return f"tensor {name} of shape {new}"


def _retype_tensor(rng: random.Random, c: _Contents) -> str:
    at = rng.randrange(len(c.tensors))
    name, shape, _, _ = c.tensors[at]
    type = rng.choice(list(GGMLType))
    layout = BLOCKS[type]
    if shape[-1] % layout.block_size:
        return "no tensor retyped"
    size = math.prod(shape) // layout.block_size * layout.block_bytes
    data = np.frombuffer(rng.randbytes(size), np.uint8)
    c.tensors[at] = (name, shape, type, data)
    return f"tensor {name} is {type.name}"


def _change_data(rng: random.Random, c: _Contents) -> str:
    at = rng.randrange(len(c.tensors))
    name, shape, type, data = c.tensors[at]
    match rng.randrange(3):
        case 0:
            data = np.frombuffer(rng.randbytes(data.nbytes), np.uint8)
        case 1:
            data = np.full_like(data, 0xFF)  # NaN, in most formats
        case 2:
            data = np.zeros_like(data)
    c.tensors[at] = (name, shape, type, data)
    return f"other data in {name}"


_Change: TypeAlias = Callable[[random.Random, _Contents], str]
_CHANGES: list[_Change] = [
    _change_value,
    _change_value,
    _nudge_value,
    _nudge_value,
    _change_tokenizer,
    _change_tokenizer,
    _remove_key,
    _other_architecture,
    _remove_tensor,
    _rename_tensor,
    _swap_tensors,
    _reshape_tensor,
    _retype_tensor,
    _change_data,
    _flip_data,
]
_CHANGES_THAT_RUN: list[_Change] = [
    _change_value,
    _nudge_value,
    _change_tokenizer,
    _retype_tensor,
    _swap_alike,
    _swap_alike,
    _change_data,
    _change_data,
    _flip_data,
    _flip_data,
    _flip_data,
]
