"""Create LoRA adapters with PEFT and llama.cpp's converter, and the logits of PEFT.

    python -m venv /tmp/oracle && /tmp/oracle/bin/pip install torch transformers gguf peft
    /tmp/oracle/bin/python tests/data/make_adapter_fixtures.py LLAMA_CPP [NAME...]

LLAMA_CPP is a source tree of llama.cpp. The models are those of make_converted_fixtures.py. Factors
are float16 numbers, which the file stores without loss.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import make_converted_fixtures as converted
import numpy as np
import torch
from peft import LoraConfig, get_peft_model

FOLDER = Path(__file__).parent / "adapters"
RANK, ALPHA = 4, 8
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
DENSE = [*ATTENTION, "gate_proj", "up_proj", "down_proj"]
# The modules that the adapter of each model changes.
TARGETS = {
    "granite": [*DENSE, "embed_tokens"],
    "olmo2": DENSE,
    "smollm3": ATTENTION,
}


def randomise(model: torch.nn.Module) -> None:
    """Fill the factors of all adapters with random float16 numbers."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if "lora_" in name:
                noise = torch.randn(tensor.shape, generator=generator) * 0.1
                tensor.copy_(noise.half().float())


def make(name: str, source: Path) -> None:
    """Write the adapter of the model `name`, and the logits of the model with it."""
    model = converted.FAMILIES[name]()
    known = np.load(converted.FOLDER / f"{name}.npz")
    assert np.allclose(converted.logits(model, known["tokens"]), known["logits"], atol=1e-4)
    config = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=TARGETS[name])
    adapted = get_peft_model(model, config).eval()
    randomise(adapted)
    target = FOLDER / f"{name}.gguf"
    with tempfile.TemporaryDirectory() as folder:
        base, adapter = Path(folder, "base"), Path(folder, "adapter")
        converted.FAMILIES[name]().save_pretrained(base)
        adapted.save_pretrained(adapter, save_embedding_layers=False)
        script = [sys.executable, str(source / "convert_lora_to_gguf.py"), "--base", str(base)]
        options = ["--outtype", "f16", "--outfile", str(target), str(adapter)]
        subprocess.run([*script, *options], check=True)
    found = converted.logits(adapted, known["tokens"])
    np.savez_compressed(FOLDER / f"{name}.npz", logits=found)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for each in sys.argv[2:] or TARGETS:
        make(each, Path(sys.argv[1]))
