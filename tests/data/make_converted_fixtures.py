"""Create fixtures with llama.cpp's converter: random weights, and the logits of transformers.

    python -m venv /tmp/oracle && /tmp/oracle/bin/pip install torch transformers gguf
    /tmp/oracle/bin/python tests/data/make_converted_fixtures.py LLAMA_CPP [NAME...]

LLAMA_CPP is a source tree of llama.cpp. Every parameter is random, norms, biases and the biases of
routers included, so that none can be skipped unnoticed. Weights are float16 numbers, which the
file stores without loss in half the space.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import transformers

FOLDER = Path(__file__).parent / "fixtures"
VOCAB, TOKENS, WINDOW = 96, 48, 16
SLIDING, FULL = "sliding_attention", "full_attention"
PLAIN: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0}
YARN = PLAIN | {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


def model(family: str, **config: Any) -> torch.nn.Module:
    """Return a random model of class {family}ForCausalLM; `config` overrides sizes."""
    sizes: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "attn_implementation": "eager",
    }
    kind = getattr(transformers, f"{family}Config")
    made = getattr(transformers, f"{family}ForCausalLM")(kind(**sizes | config)).eval()
    randomise(made)
    return made


def randomise(model: torch.nn.Module) -> None:
    """Fill all parameters, and the buffers that a file stores, with random float16 numbers."""
    generator = torch.Generator().manual_seed(1)
    stored = model.state_dict()
    with torch.no_grad():
        for name, tensor in stored.items():
            noise = torch.randn(tensor.shape, generator=generator)
            if "norm" in name and name.endswith("weight"):
                noise = 1.0 + 0.3 * noise
            elif tensor.dim() < 2:
                noise = 0.3 * noise
            else:
                noise = noise * (0.5 if "embed" in name else 1 / math.sqrt(tensor.shape[-1]))
            tensor.copy_(noise.half())


FAMILIES: dict[str, Callable[[], torch.nn.Module]] = {
    "olmo2": lambda: model("Olmo2"),
    "olmo3": lambda: model(
        "Olmo3",
        sliding_window=WINDOW,
        layer_types=[SLIDING, SLIDING, FULL],
        rope_parameters={SLIDING: PLAIN | {"rope_theta": 20000.0}, FULL: YARN},
    ),
}


def logits(model: torch.nn.Module, ids: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        out = model(torch.from_numpy(ids.astype(np.int64))[None], use_cache=False)
    return out.logits[0].float().numpy()


def convert(model: torch.nn.Module, target: Path) -> None:
    """Write `model` to a GGUF file without a tokenizer."""
    from conversion import ModelBase, get_model_class  # of llama.cpp
    from gguf import LlamaFileType

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        config = ModelBase.load_hparams(Path(folder), False)
        kind = get_model_class(config["architectures"][0])
        with patch.object(kind, "set_vocab", lambda self: None):
            kind(Path(folder), LlamaFileType.MOSTLY_F16, target, model_name=target.stem).write()


if __name__ == "__main__":
    sys.path[:0] = [sys.argv[1], f"{sys.argv[1]}/gguf-py"]
    for name in sys.argv[2:] or FAMILIES:
        made = FAMILIES[name]()
        ids = np.random.default_rng(5).integers(0, VOCAB, TOKENS).astype(np.int32)
        convert(made, FOLDER / f"{name}.gguf")
        np.savez_compressed(FOLDER / f"{name}.npz", tokens=ids, logits=logits(made, ids))
