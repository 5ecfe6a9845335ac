"""Write the hidden states of two fixtures after the final norm, computed by transformers.

    python -m venv /tmp/oracle && /tmp/oracle/bin/pip install torch transformers gguf
    /tmp/oracle/bin/python tests/data/oracle/make_hidden.py

hidden.npz: float32 [tokens, hidden] for each fixture, for the tokens of its logits. The logits of
the same pass are first compared with the fixture's; gemma2 caps its logits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

HERE = Path(__file__).parent
FIXTURES = HERE.parent / "fixtures"

SHAPE = {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True, "attn_implementation": "eager",
}  # fmt: skip
NAMES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
QWEN_NORMS = {"ffn_norm": "post_attention_layernorm"}
GEMMA_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def weights(name: str, norms: dict[str, str]) -> dict[str, torch.Tensor]:
    """Return tensors by their names in transformers.

    In Gemma files, norm weights include the 1 that transformers adds.
    """
    names = NAMES | norms
    found = {}
    for tensor in gguf.GGUFReader(FIXTURES / f"{name}.gguf").tensors:
        values = torch.from_numpy(np.array(tensor.data, np.float32))
        if name == "gemma2" and "norm" in tensor.name:
            values = values - 1.0
        stem = tensor.name.removesuffix(".weight")
        if stem.startswith("blk."):
            _, index, part = stem.split(".", 2)
            found[f"model.layers.{index}.{names[part]}.weight"] = values
        else:
            part = {"token_embd": "embed_tokens", "output_norm": "norm"}[stem]
            found[f"model.{part}.weight"] = values
    return found


def hidden(name: str, model: Any, norms: dict[str, str]) -> np.ndarray:
    missing, unexpected = model.load_state_dict(weights(name, norms), strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    with np.load(FIXTURES / f"{name}.npz") as data:
        ids, logits = data["tokens"], data["logits"]
    with torch.no_grad():
        ids = torch.from_numpy(ids.astype(np.int64))[None]
        out = model.eval()(ids, output_hidden_states=True, use_cache=False)
    got = out.logits[0].numpy()
    error = np.linalg.norm(got - logits) / np.linalg.norm(logits)
    print(f"{name}: logits differ by {error:.1e}")
    assert error < 1e-5
    return out.hidden_states[-1][0].numpy()


def main() -> None:
    qwen = Qwen3Config(**SHAPE, rope_theta=10000.0)
    gemma = Gemma2Config(
        **SHAPE,
        rope_theta=10000.0,
        sliding_window=16,
        query_pre_attn_scalar=32,
        attn_logit_softcapping=50.0,
        final_logit_softcapping=30.0,
    )
    np.savez_compressed(
        HERE / "hidden.npz",
        qwen3=hidden("qwen3", Qwen3ForCausalLM(qwen), QWEN_NORMS),
        gemma2=hidden("gemma2", Gemma2ForCausalLM(gemma), GEMMA_NORMS),
    )


if __name__ == "__main__":
    main()
