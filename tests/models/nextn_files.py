"""Model files with a random NextN block, made from fixtures."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from models.harness import FIXTURES, rewrite

from zinc.formats.gguf import GGUFArray, GGUFFile

Tensors = dict[str, np.ndarray | None]
# One for each family, and for each way to store latent attention and to choose experts.
FAMILIES = ("qwen35", "qwen35moe", "qwen3next", "glm4moe", "deepseek2v2", "deepseek2v3")
FAMILIES += ("hyv3", "bailingmoe2", "mimo2", "exaonemoe", "deepseek32", "glmdsa")
FAMILIES += ("step35", "bailingmoe3")
# Families whose block has a plain MLP, though layers have experts.
DENSE = ("mimo2", "exaonemoe", "step35")
# Families that have the final norm of the block under another name.
RENAMED = ("bailingmoe2", "bailingmoe3")
LIKE = {"step35": 1}  # the layer that the block is like, if it is not the last
MLP = ("ffn_gate.weight", "ffn_up.weight", "ffn_down.weight")


CONVERTED = FIXTURES.parent / "nextn"  # files of blocks that llama.cpp's converter wrote
CONVERTED_NAMES = sorted(path.stem for path in CONVERTED.glob("*.gguf"))


def model_with_blocks(name: str, folder: Path) -> Path:
    """Copy a fixture into `folder`, and the converted file of its blocks beside it."""
    shutil.copy(CONVERTED / f"{name}.gguf", folder / f"mtp-{name}-f16.gguf")
    return Path(shutil.copy(FIXTURES / f"{name}.gguf", folder / "model.gguf"))


def with_nextn(name: str, target: Path, *, shared: bool = True, mlp: bool = True) -> Path:
    """Write a fixture with one NextN block, whose tensors and metadata are like those of a layer.

    shared: the block uses the embedding, final norm and head of the model. mlp: it has an MLP.
    """
    rng = np.random.default_rng(5)
    source = FIXTURES / f"{name}.gguf"
    with GGUFFile.open(source) as file:
        arch = file.str("general.architecture")
        known = file.int(f"{arch}.nextn_predict_layers", default=0)
        block = file.int(f"{arch}.block_count") - known
        like = LIKE.get(name, block - 1)
        its = f"blk.{like}."
        shapes = {n.replace(its, ""): t.shape for n, t in file.tensors.items() if its in n}
        arrays = {
            key: [*value.to_list(), value.to_list()[like]]
            for key, value in file.metadata.items()
            if key.startswith(arch) and isinstance(value, GGUFArray) and len(value) == block
        }
        vocab, hidden = file.tensors["token_embd.weight"].shape
        if name in DENSE:
            shapes = {n: s for n, s in shapes.items() if "exp" not in n and "inp" not in n}
            shapes |= {n: file.tensors[f"blk.0.{n}"].shape for n in MLP}
    shapes |= {
        "nextn.eh_proj.weight": (hidden, 2 * hidden),
        "nextn.enorm.weight": (hidden,),
        "nextn.hnorm.weight": (hidden,),
    }
    if not shared:
        shapes |= {
            "nextn.shared_head_norm.weight": (hidden,),
            "nextn.shared_head_head.weight": (vocab, hidden),
            "nextn.embed_tokens.weight": (vocab, hidden),
        }
    if name in RENAMED:
        shapes.pop("nextn.shared_head_norm.weight", None)
        shapes["layer_output_norm.weight"] = (hidden,)
    tensors: Tensors = {}
    if known:
        with GGUFFile.open(source) as file:
            tensors = {n: None for n in file.tensors if n.startswith(f"blk.{block}.nextn")}
    for n, shape in shapes.items():
        if mlp or not n.startswith("ffn_") or n == "ffn_norm.weight":
            tensors[f"blk.{block}.{n}"] = _random(rng, n, shape)
    if name == "step35":
        arrays["step35.swiglu_clamp_shexp"][block] = 0.25
    keys = {f"{arch}.block_count": block + 1, f"{arch}.nextn_predict_layers": 1}
    return rewrite(source, target, metadata=keys | arrays, tensors=tensors)


def _random(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    noise = rng.standard_normal(shape).astype(np.float32)
    if name.endswith("norm.weight"):
        return 1 + np.float32(0.3) * noise
    if len(shape) == 1:
        return np.float32(0.2) * noise
    return noise / np.float32(np.sqrt(shape[-1]))
