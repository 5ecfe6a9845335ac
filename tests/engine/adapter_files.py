"""LoRA adapters for tests, and models with the same change merged into their weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from zinc.formats.gguf import GGUFFile
from zinc.formats.gguf_writer import GGUFWriter
from zinc.quant.blocks import GGMLType
from zinc.quant.encode import encode

Floats = npt.NDArray[np.float32]
Pairs = dict[str, tuple[Floats, Floats]]
PROJECTIONS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
EMBEDDING = "token_embd.weight"


def random_pairs(
    model: Path, names: Iterable[str] = PROJECTIONS, rank: int = 4, seed: int = 0
) -> Pairs:
    """Return random factors for each tensor of `model` whose name has one of `names`."""
    rng = np.random.default_rng(seed)
    pairs: Pairs = {}
    with GGUFFile.open(model) as file:
        for name, tensor in file.tensors.items():
            if len(tensor.shape) == 2 and any(f"{each}.weight" in f".{name}" for each in names):
                out, cols = tensor.shape
                if name == EMBEDDING:
                    out, cols = cols, out
                a = rng.standard_normal((rank, cols)) * cols**-0.5
                b = rng.standard_normal((out, rank)) * 0.1
                a = a.T if name == EMBEDDING else a
                # zinc stores factors as float16.
                a, b = (each.astype(np.float16).astype(np.float32) for each in (a, b))
                pairs[name] = a, b
    assert pairs
    return pairs


def write_adapter(
    path: Path,
    pairs: Pairs,
    arch: str,
    alpha: float | None = 8.0,
    changes: Mapping[str, Any] | None = None,
    type: GGMLType = GGMLType.F32,
) -> Path:
    """Write an adapter as llama.cpp's converter does, with `changes` of its metadata."""
    metadata = {
        "general.architecture": arch,
        "general.type": "adapter",
        "adapter.type": "lora",
        **({} if alpha is None else {"adapter.lora.alpha": alpha}),
        **(changes or {}),
    }
    with GGUFWriter(path) as writer:
        for key, value in metadata.items():
            if value is not None:
                writer.add(key, value)
        for name, factors in pairs.items():
            for suffix, factor in zip("ab", factors, strict=True):
                writer.add_tensor(f"{name}.lora_{suffix}", encode(factor, type), type, factor.shape)
    return path


def write_merged(path: Path, model: Path, uses: Iterable[tuple[Pairs, float]]) -> Path:
    """Write `model` with `scale * b @ a` of each adapter added to its weights, in float32."""
    with GGUFFile.open(model) as file, GGUFWriter(path) as writer:
        for key, value in file.metadata.items():
            writer.add(key, value)
        for name, tensor in file.tensors.items():
            data = tensor.to_float32().astype(np.float64)
            for pairs, scale in uses:
                if name in pairs:
                    a, b = (factor.astype(np.float64) for factor in pairs[name])
                    data = data + scale * ((a @ b.T) if name == EMBEDDING else (b @ a))
            floats = data.astype(np.float32)
            writer.add_tensor(name, encode(floats, GGMLType.F32), GGMLType.F32, tensor.shape)
    return path
