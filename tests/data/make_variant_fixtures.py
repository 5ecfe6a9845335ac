"""Create the fixtures of variants: random weights, and the logits of transformers.

    python -m venv /tmp/oracle && /tmp/oracle/bin/pip install torch transformers gguf
    /tmp/oracle/bin/python tests/data/make_variant_fixtures.py

phi3long: grouped queries, a window, a tied head, LongRoPE over part of each head. gemma3long:
linear scaling of global layers only, capped logits. gemma4wide: wider MLPs in the layers that share
KV. qwen3yarn: the same weights with plain RoPE (a short and a long prompt) and, as `yarn_` and
`yarn_long_`, the same prompts with YaRN of factor 4. Every parameter is random, norms included, so
that none can be skipped unnoticed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.models.gemma4 import Gemma4ForCausalLM, Gemma4TextConfig

FOLDER = Path(__file__).parent / "fixtures"
VOCAB = 128

BLOCK_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm",
    "layer_scalar": "layer_output_scale",
}
PRE_NORMS = {"post_attention_layernorm": "ffn_norm"}
GEMMA_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
GLOBAL_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.embed_tokens_per_layer": "per_layer_token_embd",
    "model.per_layer_model_projection": "per_layer_model_proj",
    "model.per_layer_projection_norm": "per_layer_proj_norm",
}


def randomise(model: torch.nn.Module) -> None:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            noise = torch.randn(tensor.shape, generator=generator)
            if "norm" in name:
                is_offset = type(model).__name__.startswith("Gemma3")
                tensor.copy_(0.3 * noise + (0.0 if is_offset else 1.0))
            elif name.endswith("layer_scalar"):
                tensor.copy_(1.0 + 0.2 * noise)
            elif tensor.dim() == 2 and "embed" not in name:
                tensor.copy_(noise / math.sqrt(tensor.shape[1]))
            elif tensor.dim() == 2:
                tensor.copy_(0.5 * noise)


def tensors(model: torch.nn.Module, norms: dict[str, str]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield tensors with their names in GGUF.

    Gemma 3 multiplies by 1 + weight, so the 1 is added to norm weights.
    """
    names = {**BLOCK_NAMES, **norms}
    offset = 1.0 if type(model).__name__.startswith("Gemma3") else 0.0
    for name, tensor in model.state_dict().items():
        values = tensor.float().numpy() + (offset if "norm" in name else 0.0)
        stem = name.removesuffix(".weight")
        if stem.startswith("model.layers."):
            _, _, index, rest = stem.split(".", 3)
            yield f"blk.{index}.{names[rest]}.weight", values
        elif stem in GLOBAL_NAMES and not (stem == "lm_head" and model.config.tie_word_embeddings):
            yield f"{GLOBAL_NAMES[stem]}.weight", values


def logits(model: torch.nn.Module, ids: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        out = model(torch.from_numpy(ids.astype(np.int64))[None], use_cache=False)
    return out.logits[0].float().numpy()


def save(
    name: str,
    model: torch.nn.Module,
    norms: dict[str, str],
    metadata: Callable[[gguf.GGUFWriter], None],
    extra: dict[str, np.ndarray],
    lengths: dict[str, int],
    scaled: torch.nn.Module | None = None,
) -> None:
    arch = next(a for a in ("gemma3", "gemma4", "phi3", "qwen3") if name.startswith(a))
    writer = gguf.GGUFWriter(FOLDER / f"{name}.gguf", arch)
    c = model.config
    writer.add_block_count(c.num_hidden_layers)
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    if c.sliding_window is not None:
        writer.add_sliding_window(c.sliding_window)
    metadata(writer)
    for tensor, values in [*tensors(model, norms), *extra.items()]:
        writer.add_tensor(tensor, np.ascontiguousarray(values.astype(np.float32)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    rng = np.random.default_rng(5)
    arrays: dict[str, Any] = {}
    for prefix, length in lengths.items():
        ids = rng.integers(0, VOCAB, length).astype(np.int32)
        arrays[f"{prefix}tokens"], arrays[f"{prefix}logits"] = ids, logits(model, ids)
        if scaled is not None:
            arrays[f"yarn_{prefix}tokens"], arrays[f"yarn_{prefix}logits"] = (
                ids,
                logits(scaled, ids),
            )
    np.savez_compressed(FOLDER / f"{name}.npz", **arrays)


def phi3long() -> None:
    pairs = 12
    short = (1.0 + 0.05 * np.arange(pairs)).tolist()
    long = (1.0 + 0.7 * np.arange(pairs)).tolist()
    config = Phi3Config(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        original_max_position_embeddings=64,
        sliding_window=16,
        tie_word_embeddings=True,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.75,
            "short_factor": short,
            "long_factor": long,
            "original_max_position_embeddings": 64,
        },
        pad_token_id=0,
        attn_implementation="eager",
    )
    model = Phi3ForCausalLM(config).eval()
    randomise(model)

    def metadata(writer: gguf.GGUFWriter) -> None:
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_rope_dimension_count(2 * pairs)
        writer.add_rope_freq_base(10000.0)
        writer.add_rope_scaling_orig_ctx_len(64)
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(512 / 64) / math.log(64)))

    extra = {
        "rope_factors_short.weight": np.array(short),
        "rope_factors_long.weight": np.array(long),
    }
    save("phi3long", model, PRE_NORMS, metadata, extra, {"": 48, "long_": 90})


def gemma3long() -> None:
    config = Gemma3TextConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        query_pre_attn_scalar=16,
        max_position_embeddings=512,
        sliding_window=16,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
        },
        final_logit_softcapping=5.0,
        attn_implementation="eager",
    )
    model = Gemma3ForCausalLM(config).eval()
    randomise(model)

    def metadata(writer: gguf.GGUFWriter) -> None:
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_key_length(16)
        writer.add_value_length(16)
        writer.add_rope_freq_base(1000000.0)
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(8.0)
        writer.add_final_logit_softcapping(5.0)
        writer.add_sliding_window_pattern([True, False, True])

    save("gemma3long", model, GEMMA_NORMS, metadata, {}, {"": 48})


def gemma4wide() -> None:
    kinds = ["sliding_attention", "full_attention"] * 2
    config = Gemma4TextConfig(
        vocab_size=VOCAB,
        vocab_size_per_layer_input=VOCAB,
        hidden_size=64,
        hidden_size_per_layer_input=16,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=16,
        global_head_dim=32,
        max_position_embeddings=512,
        sliding_window=16,
        layer_types=kinds,
        num_kv_shared_layers=2,
        use_double_wide_mlp=True,
        attn_implementation="eager",
    )
    model = Gemma4ForCausalLM(config).eval()
    randomise(model)

    def metadata(writer: gguf.GGUFWriter) -> None:
        writer.add_feed_forward_length([64, 64, 128, 128])
        writer.add_key_length(32)
        writer.add_value_length(32)
        writer.add_key_length_swa(16)
        writer.add_value_length_swa(16)
        writer.add_rope_dimension_count(32)
        writer.add_rope_dimension_count_swa(16)
        writer.add_rope_freq_base(1000000.0)
        writer.add_rope_freq_base_swa(10000.0)
        writer.add_shared_kv_layers(2)
        writer.add_embedding_length_per_layer_input(16)
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in kinds])

    rotated = int(32 * 0.25) // 2
    divisors = np.array([1.0] * rotated + [1e30] * (16 - rotated))
    save("gemma4wide", model, GEMMA_NORMS, metadata, {"rope_freqs.weight": divisors}, {"": 48})


def qwen3yarn() -> None:
    plain = {"rope_type": "default", "rope_theta": 10000.0}
    yarn = {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
    }

    def model(rope: dict[str, Any]) -> torch.nn.Module:
        config = Qwen3Config(
            vocab_size=VOCAB,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=256,
            rope_parameters=rope,
            tie_word_embeddings=True,
            attn_implementation="eager",
        )
        made = Qwen3ForCausalLM(config).eval()
        randomise(made)
        return made

    def metadata(writer: gguf.GGUFWriter) -> None:
        writer.add_feed_forward_length(96)
        writer.add_key_length(32)
        writer.add_value_length(32)
        writer.add_rope_freq_base(10000.0)
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(64)

    lengths = {"": 48, "long_": 90}
    save("qwen3yarn", model(plain), PRE_NORMS, metadata, {}, lengths, scaled=model(yarn))


if __name__ == "__main__":
    phi3long()
    gemma3long()
    gemma4wide()
    qwen3yarn()
