"""Create the fixture of RWKV-7: random weights, and the logits of the published code.

    python -m venv /tmp/oracle && /tmp/oracle/bin/pip install rwkv torch safetensors gguf
    /tmp/oracle/bin/python tests/data/make_rwkv_fixtures.py LLAMA_CPP

LLAMA_CPP is a source tree of llama.cpp, whose converter writes the file. The vocabulary is the
start of that of RWKV World. Every parameter is random and a float16 number, so that none can be
skipped unnoticed.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

os.environ["RWKV_V7_ON"] = "1"
import rwkv.model

FOLDER = Path(__file__).parent / "fixtures"
TOKENS, VOCAB, HIDDEN, HEAD, FFN, LAYERS = 40, 272, 32, 16, 64, 3
RANKS = {"w": 16, "a": 32, "v": 8, "g": 24}
NAMES = {
    "emb.": "model.embeddings.",
    "ln_out.": "model.ln_out.",
    "blocks.0.ln0.": "model.pre_ln.",
    "blocks.": "model.layers.",
    ".att.": ".attention.",
    ".ffn.": ".feed_forward.",
}


def shapes() -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor, by the name that the published code reads."""
    c = HIDDEN
    found: dict[str, tuple[int, ...]] = {"emb.weight": (VOCAB, c), "head.weight": (VOCAB, c)}
    norms = ["blocks.0.ln0", "ln_out"]
    for i in range(LAYERS):
        att, ffn = f"blocks.{i}.att", f"blocks.{i}.ffn"
        norms += [f"blocks.{i}.ln1", f"blocks.{i}.ln2", f"{att}.ln_x"]
        found |= {f"{att}.x_{x}": (1, 1, c) for x in "rwkvag"}
        for name, rank in RANKS.items():
            found |= {f"{att}.{name}1": (c, rank), f"{att}.{name}2": (rank, c)}
            if name != "g":
                found[f"{att}.{name}0"] = (1, 1, c)
        found |= {f"{att}.k_k": (1, 1, c), f"{att}.k_a": (1, 1, c)}
        found[f"{att}.r_k"] = (c // HEAD, HEAD)
        found |= {f"{att}.{x}.weight": (c, c) for x in ("receptance", "key", "value", "output")}
        found |= {f"{ffn}.x_k": (1, 1, c), f"{ffn}.key.weight": (FFN, c)}
        found[f"{ffn}.value.weight"] = (c, FFN)
    for name in norms:
        found |= {f"{name}.weight": (c,), f"{name}.bias": (c,)}
    return found


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    found = {}
    for name, shape in shapes().items():
        noise = torch.randn(shape, generator=generator)
        if "ln" in name:
            noise = 0.3 * noise + (1.0 if name.endswith("weight") else 0.0)
        elif ".x_" in name:
            noise = torch.rand(shape, generator=generator)
        elif name.endswith(("weight", "1", "2")):
            fan_in = shape[0] if name.endswith(("1", "2")) else shape[-1]
            noise = noise if "emb" in name else noise / math.sqrt(fan_in)
        found[name] = noise.half().float()
    return found


def logits(state: dict[str, torch.Tensor], ids: np.ndarray) -> np.ndarray:
    with tempfile.TemporaryDirectory() as folder:
        torch.save(state, f"{folder}/model.pth")
        model = rwkv.model.RWKV_x070(f"{folder}/model", "cpu fp32")
        out, _ = model.forward(ids.tolist(), None, full_output=True)
    return out.numpy()


def convert(state: dict[str, torch.Tensor], target: Path) -> None:
    """Write the model to a GGUF file."""
    from conversion import get_model_class  # of llama.cpp
    from gguf import LlamaFileType

    config = {
        "architectures": ["RWKV7ForCausalLM"],
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "head_dim": HEAD,
        "norm_eps": 1e-5,
        "num_hidden_layers": LAYERS,
        "intermediate_size": FFN,
        "decay_low_rank_dim": RANKS["w"],
        "a_low_rank_dim": RANKS["a"],
        "v_low_rank_dim": RANKS["v"],
        "gate_low_rank_dim": RANKS["g"],
    }
    renamed = {}
    for name, tensor in state.items():
        for old, new in NAMES.items():
            name = name.replace(old, new)
        renamed[name] = tensor.contiguous()
    vocabulary = Path(rwkv.model.__file__).parent / "rwkv_vocab_v20230424.txt"
    with tempfile.TemporaryDirectory() as folder, open(vocabulary, encoding="utf-8") as lines:
        save_file(renamed, f"{folder}/model.safetensors")
        Path(folder, "config.json").write_text(json.dumps(config))
        Path(folder, "tokenizer_config.json").write_text('{"chat_template": "rwkv-world"}')
        Path(folder, vocabulary.name).write_text("".join(islice(lines, VOCAB - 3)), "utf-8")
        get_model_class(config["architectures"][0])(
            Path(folder),
            LlamaFileType.MOSTLY_F16,
            target,
            model_name=target.stem,
            hparams=config,
        ).write()


if __name__ == "__main__":
    sys.path[:0] = [sys.argv[1], f"{sys.argv[1]}/gguf-py"]
    made = tensors()
    ids = np.random.default_rng(5).integers(0, VOCAB, TOKENS).astype(np.int32)
    convert(made, FOLDER / "rwkv7.gguf")
    np.savez_compressed(FOLDER / "rwkv7.npz", tokens=ids, logits=logits(made, ids))
