"""Create fixtures with llama.cpp's converter: random weights, and the logits of transformers.

    python -m venv /tmp/oracle && /tmp/oracle/bin/pip install torch transformers gguf
    /tmp/oracle/bin/python tests/data/make_converted_fixtures.py LLAMA_CPP [NAME...]

LLAMA_CPP is a source tree of llama.cpp. Every parameter is random, norms, biases and the biases of
routers included, so that none can be skipped unnoticed. Weights are float16 numbers, which the
file stores without loss in half the space.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

FOLDER = Path(__file__).parent / "fixtures"
VOCAB, TOKENS, WINDOW, HEAD_DIM = 96, 40, 16, 16
SLIDING, FULL = "sliding_attention", "full_attention"
PLAIN: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0}
# For families whose heads have hidden_size / num_attention_heads dimensions.
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1}
# With the tokenizer of another fixture.
LARGE: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 160,
    "head_dim": 32,
    "num_hidden_layers": 4,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
GEMMA4: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 160,
    "head_dim": 32,
    "global_head_dim": 64,
    "sliding_window": WINDOW,
    "final_logit_softcapping": 30.0,
    "max_position_embeddings": 4096,
}
SCALES = {
    "embedding_multiplier": 6.0,
    "residual_multiplier": 0.4,
    "attention_multiplier": 0.1,
    "logits_scaling": 3.0,
    "rms_norm_eps": 0.01,  # so large that it matters that it is divided by a scale
}
LONG = PLAIN | {
    "rope_type": "longrope",
    "original_max_position_embeddings": 64,
    "short_factor": [1.0, 1.1, 1.3, 1.6, 2.0, 2.5, 3.1, 3.8],
    "long_factor": [1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0],
    "short_mscale": 1.243163121016122,
    "long_mscale": 1.243163121016122,
}
SHORT_CONV: dict[str, Any] = {
    "head_dim": None,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "layer_types": ["conv", "conv", FULL, "conv"],
    "block_auto_adjust_ff_dim": False,
}
LINEAR = "linear_attention"
LATENT: dict[str, Any] = {
    "head_dim": None,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
}
KIMI_LINEAR: dict[str, Any] = LATENT | {
    "num_key_value_heads": 4,
    "layer_types": [LINEAR, FULL, LINEAR],
    "linear_head_dim": 16,
    "linear_num_heads": 4,
    "moe_intermediate_size": 32,
    "num_local_experts": 3,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "tie_word_embeddings": False,
}
BAILING3: dict[str, Any] = LATENT | {
    "num_key_value_heads": 4,
    "head_dim": 16,
    "layer_group_size": 3,
    "q_lora_rank": 16,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 32,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "tie_word_embeddings": False,
}
LAGUNA_ROPE: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 50000.0,
    "partial_rotary_factor": 0.5,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 8.0,
    "beta_slow": 1.0,
    "attention_factor": 1.05,
}
STEP35: dict[str, Any] = {
    "layer_types": [FULL, SLIDING, FULL],
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "num_sliding_attention_heads": 6,
    "sliding_window": WINDOW,
    "rope_theta": [50000.0, 10000.0, 50000.0],
    "partial_rotary_factors": [0.5, 1.0, 0.5],
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 2.0,
        "original_max_position_embeddings": 32,
        "low_freq_factor": 1.0,
        "high_freq_factor": 8.0,
    },
    "moe_intermediate_size": 32,
    "share_expert_dim": 32,
    "n_routed_experts": 3,
    "num_local_experts": 3,
    "num_experts_per_tok": 2,
    "moe_router_scaling_factor": 3.0,
    "swiglu_limits": [None, None, 0.3],
    "swiglu_limits_shared": [0.3, None, 0.2],
    "tie_word_embeddings": False,
}
# Without the sizes of attention.
MAMBA: dict[str, Any] = {
    "num_hidden_layers": 2,
    "state_size": 16,
    "time_step_rank": 16,
    "layer_norm_epsilon": 0.01,
    "head_dim": None,
    "num_attention_heads": None,
    "num_key_value_heads": None,
    "intermediate_size": None,
    "max_position_embeddings": None,
    "attn_implementation": None,
}
MAMBA2: dict[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": ["mamba", "attention", "mamba", "mamba"],
    "num_local_experts": 0,
    "num_experts_per_tok": 0,
    "shared_intermediate_size": 32,
    "mamba_n_heads": 4,
    "mamba_n_groups": 1,
    "mamba_d_state": 16,
    "mamba_d_head": 16,
    "mamba_chunk_size": 16,
    **HEADS,
}
FALCON_H1: dict[str, Any] = {
    "num_hidden_layers": 2,
    "tie_word_embeddings": False,
    "mamba_d_ssm": 64,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "mamba_chunk_size": 16,
    # Powers of two, by which float16 weights can be multiplied without loss.
    "lm_head_multiplier": 0.5,
    "embedding_multiplier": 2.0,
    "mlp_multipliers": [0.5, 2.0],
    "key_multiplier": 0.5,
    "attention_out_multiplier": 0.25,
    "attention_in_multiplier": 2.0,
    "ssm_multipliers": [0.5, 0.25, 2.0, 4.0, 0.5],
    "ssm_in_multiplier": 2.0,
    "ssm_out_multiplier": 0.5,
}
NEMOTRON_H: dict[str, Any] = {
    "num_hidden_layers": None,
    "ssm_state_size": 16,
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "chunk_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
NEMOTRON_MOE: dict[str, Any] = NEMOTRON_H | {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 48,
    "routed_scaling_factor": 2.5,
}
# Queries grow at every eighth position.
MINISTRAL = PLAIN | {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
MINISTRAL |= {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3}
MINISTRAL |= {"beta_fast": 32.0, "beta_slow": 1.0}
# Tokens of images are the last ones of the vocabulary. Texts do not have them.
VISION_TOKENS = ("vision_start", "vision_end", "image", "video")
VISION_TOWER = {"hidden_size": 32, "intermediate_size": 32, "out_hidden_size": 32}
VISION_TOWER |= {"num_position_embeddings": 4, "deepstack_visual_indexes": [0]}
# Sparse latent attention: an indexer selects 8 of the positions before each token.
SPARSE: dict[str, Any] = {
    "head_dim": None,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "q_lora_rank": 16,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "rms_norm_eps": 1e-6,  # that of the norms of latents
    "index_n_heads": 8,
    "index_head_dim": 32,
    "index_topk": 8,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 16,
    "n_shared_experts": 1,
    "scoring_func": "sigmoid",
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "tie_word_embeddings": False,
}
YARN = PLAIN | {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "head_dim": HEAD_DIM,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "attn_implementation": "eager",
    "tie_word_embeddings": True,
}


def model(family: str, **config: Any) -> torch.nn.Module:
    """Return a random model of class {family}ForCausalLM.

    `config` overrides sizes; None leaves one out.
    """
    text = "Text" if family in ("Gemma3n", "Gemma4", "Llama4") else ""
    kind = getattr(transformers, f"{family}{text}Config")
    last = "LMHeadModel" if family == "GPT2" else "ForCausalLM"
    given = {key: value for key, value in (SIZES | config).items() if value is not None}
    made = getattr(transformers, f"{family}{last}")(kind(**given)).eval().float()
    randomise(made)
    return made


def qwen_vl(family: str, vision: dict[str, Any], **config: Any) -> torch.nn.Module:
    """Return a random model of class {family}ForConditionalGeneration, with a vision tower.

    vision: the sizes of the tower that it does not share with the text model.
    """
    sizes = SIZES | {"tie_word_embeddings": False} | config
    tower = {"depth": 1, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 1} | vision
    kind = getattr(transformers, f"{family}Config")
    made = getattr(transformers, f"{family}ForConditionalGeneration")(
        kind(
            text_config=sizes,
            vision_config=tower,
            tie_word_embeddings=False,
            attn_implementation="eager",
            **{f"{name}_token_id": 90 + i for i, name in enumerate(VISION_TOKENS)},
        )
    )
    randomise(made.eval().float())
    return made


def ernie_without_bias() -> torch.nn.Module:
    """Return a random ERNIE 4.5 with experts in every layer and no bias for their choice."""
    made = model(
        "Ernie4_5_Moe",
        num_hidden_layers=2,
        intermediate_size=64,
        moe_intermediate_size=32,
        moe_num_experts=4,
        moe_k=2,
        moe_num_shared_experts=1,
        moe_layer_start_index=0,
        moe_layer_end_index=1,
        tie_word_embeddings=False,
    )
    for layer in made.model.layers:
        layer.mlp.gate.moe_statics.e_score_correction_bias.data.zero_()
    return made


def muse_glimmer(**config: Any) -> torch.nn.Module:
    """Return a random Muse Glimmer, whose only class has a vision tower too."""
    sizes = SIZES | config
    tower = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32}
    tower |= {"num_attention_heads": 2, "pos_emb_height": 4, "pos_emb_width": 4}
    made = transformers.MuseGlimmerForConditionalGeneration(
        transformers.MuseGlimmerConfig(
            text_config=sizes,
            vision_config=tower,
            out_hidden_size=32,
            projector_hidden_size=32,
            tie_word_embeddings=True,
            attn_implementation="eager",
        )
    )
    randomise(made.eval().float())
    return made


def step35() -> torch.nn.Module:
    """Return a random Step 3.5, whose only class has a vision tower too."""
    tower = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    tower |= {"num_attention_heads": 2, "image_size": 28, "patch_size": 14}
    tower["max_position_embeddings"] = 4
    made = transformers.Step3p7ForConditionalGeneration(
        transformers.Step3p7Config(
            text_config=SIZES | STEP35,
            vision_config=tower,
            image_token_id=90,
            tie_word_embeddings=False,
            attn_implementation="eager",
        )
    )
    randomise(made.eval().float())
    return made


def laguna(**config: Any) -> torch.nn.Module:
    """Return a random Laguna, by default with experts after a dense layer."""
    return model(
        "Laguna",
        moe_intermediate_size=32,
        shared_expert_intermediate_size=48,
        num_experts=4,
        num_experts_per_tok=2,
        moe_routed_scaling_factor=2.5,
        tie_word_embeddings=False,
        **config,
    )


def randomise(model: torch.nn.Module) -> None:
    """Fill all parameters, and the buffers that a file stores, with random float16 numbers."""
    generator = torch.Generator().manual_seed(1)
    is_unscaled = type(model).__name__.startswith(("Gemma3n", "Gemma4"))
    filled = set()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.data_ptr() in filled:
                continue  # a tied head
            filled.add(tensor.data_ptr())
            noise = torch.randn(tensor.shape, generator=generator)
            if name.endswith(("layer_scalar", "scale")) or (
                ("norm" in name or ".ln_" in name) and "weight" in name
            ):
                noise = 1.0 + 0.3 * noise
            elif tensor.dim() < 2:
                noise = 0.3 * noise
            else:
                noise = noise * (0.5 if "embed" in name else 1 / math.sqrt(tensor.shape[-1]))
            if is_unscaled and name.endswith(("q_norm.weight", "k_norm.weight")):
                noise = 0.5 * noise  # scores are not divided by the size of heads
            tensor.copy_(noise.half())


FAMILIES: dict[str, Callable[[], torch.nn.Module]] = {
    "afmoe": lambda: model(
        "Afmoe",
        num_hidden_layers=4,
        sliding_window=WINDOW,
        layer_types=[SLIDING, SLIDING, SLIDING, FULL],
        moe_intermediate_size=32,
        num_experts=4,
        num_experts_per_tok=2,
        num_shared_experts=1,
        num_dense_layers=2,
        route_scale=2.5,
        route_norm=True,
        score_func="sigmoid",
        mup_enabled=True,
    ),
    "arcee": lambda: model("Arcee", num_hidden_layers=2, **HEADS),
    "bailingmoe": lambda: ernie_without_bias(),
    "bailingmoe2": lambda: model(
        "Glm4Moe",
        use_qk_norm=True,
        rope_parameters=PLAIN | {"partial_rotary_factor": 0.5},
        moe_intermediate_size=32,
        n_routed_experts=6,
        num_experts_per_tok=2,
        n_shared_experts=1,
        first_k_dense_replace=1,
        n_group=3,
        topk_group=2,
        routed_scaling_factor=2.5,
        tie_word_embeddings=False,
    ),
    "bailingmoe3": lambda: model("BailingHybrid", **BAILING3),
    "cohere2": lambda: model("Cohere2", num_hidden_layers=4, sliding_window=WINDOW, **HEADS),
    "commandr": lambda: model(
        "Cohere", num_hidden_layers=2, use_qk_norm=True, model_max_length=256, **HEADS
    ),
    "deepseek32": lambda: model(
        "DeepseekV32",
        **SPARSE,
        n_routed_experts=6,
        num_experts_per_tok=3,
        n_group=3,
        topk_group=2,
        rope_parameters=YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
    ),
    "dots1": lambda: model(
        "Dots1",
        moe_intermediate_size=32,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_shared_experts=1,
        scoring_func="sigmoid",
        first_k_dense_replace=1,
        n_group=1,
        topk_group=1,
        norm_topk_prob=True,
        routed_scaling_factor=2.5,
    ),
    "ernie4_5": lambda: model("Ernie4_5", num_hidden_layers=2),
    "ernie4_5moe": lambda: model(
        "Ernie4_5_Moe",
        intermediate_size=64,  # the converter assumes shared experts of half this width
        moe_intermediate_size=32,
        moe_num_experts=4,
        moe_k=2,
        moe_num_shared_experts=1,
        moe_layer_start_index=1,
        moe_layer_end_index=2,
    ),
    "exaone": lambda: model("Llama", num_hidden_layers=2, **HEADS),
    "exaone4": lambda: model(
        "Exaone4", num_hidden_layers=4, sliding_window=WINDOW, sliding_window_pattern=4
    ),
    "exaonemoe": lambda: model(
        "ExaoneMoe",
        num_hidden_layers=4,
        sliding_window=WINDOW,
        sliding_window_pattern=4,
        moe_intermediate_size=32,
        num_experts=4,
        num_experts_per_tok=2,
        num_shared_experts=1,
        scoring_func="sigmoid",
        first_k_dense_replace=2,
        n_group=1,
        topk_group=1,
        routed_scaling_factor=2.5,
    ),
    "falcon": lambda: model("Falcon", num_hidden_layers=2, num_kv_heads=1, head_dim=None, **HEADS),
    "falcon40b": lambda: model(
        "Falcon",
        num_hidden_layers=2,
        new_decoder_architecture=True,
        num_kv_heads=1,
        head_dim=None,
        **HEADS,
    ),
    "falconh1": lambda: model("FalconH1", **FALCON_H1),
    "gemma3n": lambda: model(
        "Gemma3n",
        num_hidden_layers=5,
        layer_types=[SLIDING, FULL, SLIDING, SLIDING, FULL],
        sliding_window=WINDOW,
        num_kv_shared_layers=2,
        vocab_size_per_layer_input=VOCAB,
        hidden_size_per_layer_input=16,
        altup_active_idx=1,
        **HEADS,
        laurel_rank=8,
        activation_sparsity_pattern=[0.7, 0.7, 0.0, 0.0, 0.0],
        final_logit_softcapping=20.0,
    ),
    "gemma4e": lambda: model(
        "Gemma4",
        **GEMMA4,
        num_hidden_layers=12,
        layer_types=([SLIDING] * 5 + [FULL]) * 2,
        num_kv_shared_layers=4,
        hidden_size_per_layer_input=32,
        vocab_size_per_layer_input=512,
    ),
    "gemma4moe": lambda: model(
        "Gemma4",
        **GEMMA4,
        num_hidden_layers=6,
        layer_types=[SLIDING] * 5 + [FULL],
        num_kv_shared_layers=0,
        hidden_size_per_layer_input=0,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        enable_moe_block=True,
        num_experts=4,
        top_k_experts=2,
        moe_intermediate_size=64,
    ),
    "glmdsa": lambda: model(
        "GlmMoeDsa",
        **SPARSE,
        n_routed_experts=4,
        num_experts_per_tok=2,
        indexer_types=["full", "shared", "full"],
        rope_parameters=PLAIN,
    ),
    "gpt2": lambda: model(
        "GPT2",
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=None,
        n_positions=64,
        n_ctx=64,
    ),
    "gptneox": lambda: model("GPTNeoX", num_hidden_layers=2, intermediate_size=48, **HEADS),
    "granite": lambda: model("Granite", num_hidden_layers=2, **HEADS, **SCALES),
    "graniteswa": lambda: model(
        "GraniteSWA",
        sliding_window=WINDOW,
        layer_types=[FULL, SLIDING, SLIDING],
        layer_rope_theta=[10000.0, 0, 10000.0],
        **HEADS,
        **SCALES,
    ),
    "granitemoe": lambda: model(
        "GraniteMoeShared",
        num_hidden_layers=2,
        shared_intermediate_size=32,
        num_local_experts=4,
        num_experts_per_tok=2,
        **HEADS,
        **SCALES,
    ),
    "granitehybrid": lambda: model("GraniteMoeHybrid", **MAMBA2, **SCALES),
    "granitehybridmoe": lambda: model(
        "GraniteMoeHybrid",
        **MAMBA2
        | {"num_hidden_layers": 2, "layer_types": ["mamba", "attention"]}
        | {"num_local_experts": 4, "num_experts_per_tok": 2, "mamba_n_groups": 2},
    ),
    "hunyuan": lambda: model("HunYuanDenseV1", num_hidden_layers=2),
    "hunyuanmoe": lambda: model(
        "HunYuanMoEV1",
        num_hidden_layers=2,
        num_experts=4,
        moe_topk=[2, 2],
        moe_intermediate_size=[32, 32],
        num_shared_expert=[1, 1],
    ),
    "hyv3": lambda: model(
        "HYV3",
        moe_intermediate_size=32,
        num_experts=4,
        num_experts_per_tok=2,
        num_shared_experts=1,
        router_scaling_factor=2.0,
    ),
    "internlm2": lambda: model("Llama", num_hidden_layers=2, tie_word_embeddings=False, **HEADS),
    "kimilinear": lambda: model("KimiLinear", **KIMI_LINEAR),
    "laguna": lambda: laguna(
        num_hidden_layers=3,
        layer_types=[FULL, SLIDING, SLIDING],
        num_attention_heads_per_layer=[4, 6, 6],
        sliding_window=WINDOW,
        rope_parameters={FULL: LAGUNA_ROPE, SLIDING: PLAIN | {"partial_rotary_factor": 1.0}},
    ),
    "lagunacols": lambda: laguna(
        num_hidden_layers=2,
        gating="per-element",
        mlp_layer_types=["sparse", "sparse"],
        num_key_value_heads=1,
        rope_parameters={FULL: PLAIN | {"rope_theta": 50000.0, "partial_rotary_factor": 0.5}},
    ),
    "lfm2": lambda: model("Lfm2", num_hidden_layers=4, **SHORT_CONV),
    "lfm2moe": lambda: model(
        "Lfm2Moe",
        num_hidden_layers=4,
        num_dense_layers=2,
        moe_intermediate_size=32,
        num_experts=4,
        num_experts_per_tok=2,
        **SHORT_CONV,
    ),
    "llama4": lambda: model(
        "Llama4",
        num_hidden_layers=4,
        intermediate_size_mlp=48,
        num_local_experts=4,
        num_experts_per_tok=1,
        interleave_moe_layer_step=2,
        attention_chunk_size=WINDOW,
        floor_scale=8,
        attn_scale=0.3,
        rms_norm_eps=0.01,
    ),
    "maincoder": lambda: model("HunYuanDenseV1", num_hidden_layers=2),
    "mamba": lambda: model("Mamba", **MAMBA),
    "falconmamba": lambda: model("FalconMamba", mixer_rms_eps=0.01, **MAMBA),
    "jamba": lambda: model(
        "Jamba",
        num_hidden_layers=2,
        head_dim=None,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_experts=4,
        num_experts_per_tok=2,
        expert_layer_period=2,
        expert_layer_offset=1,
        attn_layer_period=2,
        attn_layer_offset=1,
        mamba_d_state=16,
        mamba_dt_rank=16,
    ),
    "mamba2": lambda: model(
        "Mamba2",
        num_hidden_layers=2,
        num_heads=4,
        head_dim=16,
        state_size=16,
        n_groups=2,
        chunk_size=16,
        num_attention_heads=None,
        num_key_value_heads=None,
        intermediate_size=None,
        max_position_embeddings=None,
        attn_implementation=None,
    ),
    "mellum": lambda: model(
        "Mellum",
        num_hidden_layers=2,
        sliding_window=WINDOW,
        layer_types=[SLIDING, FULL],
        rope_parameters={SLIDING: PLAIN, FULL: YARN},
        moe_intermediate_size=32,
        num_experts=4,
        num_experts_per_tok=2,
        norm_topk_prob=True,
    ),
    "mimo2": lambda: model(
        "MiMoV2Flash",
        v_head_dim=32,
        sliding_window=WINDOW,
        layer_types=[FULL, SLIDING, SLIDING],
        rope_parameters={
            FULL: PLAIN | {"rope_theta": 50000.0, "partial_rotary_factor": 0.5},
            SLIDING: PLAIN | {"partial_rotary_factor": 0.5},
        },
        num_key_value_heads=1,
        moe_intermediate_size=32,
        n_routed_experts=4,
        num_experts_per_tok=2,
        attention_value_scale=0.7,
    ),
    "minicpm": lambda: model(
        "Granite", num_hidden_layers=2, **HEADS, **SCALES | {"attention_multiplier": HEAD_DIM**-0.5}
    ),
    "minimaxm2": lambda: model(
        "MiniMaxM2",
        num_hidden_layers=2,
        rotary_dim=8,
        rope_parameters=PLAIN | {"partial_rotary_factor": 0.5},
        num_local_experts=4,
        num_experts_per_tok=2,
    ),
    "mistral3": lambda: model(
        "Ministral3", num_hidden_layers=2, rope_parameters=MINISTRAL, **HEADS
    ),
    "mistral4": lambda: model(
        "Mistral4",
        num_hidden_layers=2,
        head_dim=None,
        num_key_value_heads=4,
        q_lora_rank=24,
        kv_lora_rank=32,
        qk_nope_head_dim=16,
        qk_rope_head_dim=16,
        v_head_dim=16,
        rope_parameters=MINISTRAL,
        moe_intermediate_size=32,
        n_routed_experts=4,
        num_experts_per_tok=2,
    ),
    "museglimmer": lambda: muse_glimmer(
        num_hidden_layers=4,
        sliding_window=WINDOW,
        layer_types=[SLIDING, SLIDING, SLIDING, FULL],
        rms_norm_eps=0.01,  # far from that of the norms after attention and MLP
        final_logit_softcapping=5.0,
        output_multiplier=0.5,
        qk_scale_factor=1.5,
    ),
    "nemotronh": lambda: model(
        "NemotronH",
        layers_block_type=["linear_attention", "mlp", "full_attention", "linear_attention"],
        **NEMOTRON_H,
    ),
    "nemotronhlatent": lambda: model(
        "NemotronH",
        layers_block_type=["moe", "full_attention", "linear_attention", "moe"],
        moe_latent_size=16,
        **NEMOTRON_MOE,
    ),
    "olmo2": lambda: model("Olmo2", **HEADS),
    "olmo3": lambda: model(
        "Olmo3",
        **HEADS,
        sliding_window=WINDOW,
        layer_types=[SLIDING, SLIDING, FULL],
        rope_parameters={SLIDING: PLAIN | {"rope_theta": 20000.0}, FULL: YARN},
    ),
    "olmoe": lambda: model(
        "Olmoe", num_hidden_layers=2, num_experts=4, num_experts_per_tok=2, **HEADS
    ),
    "phi2": lambda: model(
        "Phi", num_hidden_layers=2, intermediate_size=128, **HEADS | {"num_key_value_heads": 2}
    ),
    "phimoe": lambda: model(
        "Phimoe",
        num_hidden_layers=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        attention_bias=True,
        lm_head_bias=True,
        sliding_window=WINDOW,
        rope_parameters=LONG,
        **HEADS,
    ),
    "qwen2moe": lambda: model(
        "Qwen2Moe",
        **LARGE | {"head_dim": None, "num_attention_heads": 1, "num_key_value_heads": 1},
        moe_intermediate_size=64,
        shared_expert_intermediate_size=64,
        num_experts=4,
        num_experts_per_tok=2,
        decoder_sparse_step=1,
        norm_topk_prob=False,
        mlp_only_layers=[],
    ),
    "qwen2vl": lambda: qwen_vl(
        "Qwen2VL",
        {"embed_dim": 32, "hidden_size": 32},
        num_hidden_layers=2,
        head_dim=None,
        rope_parameters=PLAIN | {"mrope_section": [2, 3, 3]},
        **HEADS,
    ),
    "qwen3vl": lambda: qwen_vl(
        "Qwen3VL",
        VISION_TOWER,
        num_hidden_layers=2,
        rope_parameters=PLAIN | {"mrope_section": [3, 3, 2], "mrope_interleaved": True},
        **HEADS,
    ),
    "qwen3vlmoe": lambda: qwen_vl(
        "Qwen3VLMoe",
        VISION_TOWER,
        num_hidden_layers=2,
        rope_parameters=PLAIN | {"mrope_section": [3, 3, 2], "mrope_interleaved": True},
        moe_intermediate_size=32,
        num_experts=4,
        num_experts_per_tok=2,
        **HEADS,
    ),
    "seedoss": lambda: model("SeedOss", num_hidden_layers=2),
    "smollm3": lambda: model("SmolLM3", num_hidden_layers=4, no_rope_layer_interval=4, **HEADS),
    "stablelm": lambda: model(
        "StableLm", num_hidden_layers=2, intermediate_size=48, use_qkv_bias=True, **HEADS
    ),
    "stablelm12b": lambda: model(
        "StableLm", num_hidden_layers=2, use_parallel_residual=True, qk_layernorm=True, **HEADS
    ),
    "step35": lambda: step35(),
    "starcoder2": lambda: model("Starcoder2", num_hidden_layers=2, sliding_window=WINDOW, **HEADS),
}

# Seeds of prompts in which no two index scores are so close that keys in float16 swap them.
PROMPTS = {"deepseek32": 440, "glmdsa": 1233}


def logits(model: torch.nn.Module, ids: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        out = model(torch.from_numpy(ids.astype(np.int64))[None], use_cache=False)
    return out.logits[0].float().numpy()


State = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Published:
    """How a family is published, if transformers has other code that computes the same.

    config: keys of config.json to set, or to remove if None. rename: maps the tensors of
    transformers to the names of the published files.
    """

    config: dict[str, Any]
    rename: Callable[[State], State] = dict

    def changed(self, config: dict[str, Any]) -> dict[str, Any]:
        return {key: x for key, x in (config | self.config).items() if x is not None}

    def write(self, folder: Path) -> None:
        """Rewrite a saved model in `folder`."""
        path = folder / "config.json"
        path.write_text(json.dumps(self.changed(json.loads(path.read_text()))))
        path = folder / "model.safetensors"
        save_file(self.rename(load_file(path)), path)


def renamed(state: State, names: dict[str, str]) -> State:
    """Return tensors with parts of their names replaced."""
    found = {}
    for name, tensor in state.items():
        for old, new in names.items():
            name = name.replace(old, new)
        found[name] = tensor
    return found


def bailing(state: State) -> State:
    names = {
        "embed_tokens": "word_embeddings",
        "self_attn.o_proj": "attention.dense",
        "self_attn.q_norm": "attention.query_layernorm",
        "self_attn.k_norm": "attention.key_layernorm",
        "gate.e_score_correction_bias": "gate.expert_bias",
    }
    return renamed(stacked(state, "attention.query_key_value", _in_order), names)


def bailing_from_ernie(state: State) -> State:
    """Pair the halves of query and key heads, where ERNIE pairs neighbours."""
    state = {key: t for key, t in state.items() if "moe_statics" not in key}
    return bailing(reordered(state, lambda rows: rows.unflatten(0, (-1, 2)).transpose(0, 1)))


def maincoder(state: State) -> State:
    """Pair neighbours in query and key heads, where Hunyuan pairs halves."""
    names = {"query_layernorm": "q_norm", "key_layernorm": "k_norm"}
    pairs = reordered(state, lambda rows: rows.unflatten(0, (2, -1)).transpose(0, 1))
    return renamed(pairs, names)


def reordered(state: State, order: Callable[[torch.Tensor], torch.Tensor]) -> State:
    """Return tensors with the rows of each query and key head, and its norm, in another order."""
    found = dict(state)
    for name, t in state.items():
        if name.endswith((*QKV[:2], "query_layernorm.weight", "key_layernorm.weight")):
            heads = t.unflatten(0, (-1, HEAD_DIM))
            found[name] = torch.stack([order(h).flatten(0, 1) for h in heads]).flatten(0, 1)
    return found


def exaone(state: State) -> State:
    names = {
        "model.embed_tokens": "transformer.wte",
        "model.layers": "transformer.h",
        "model.norm": "transformer.ln_f",
        "self_attn.o_proj": "attn.attention.out_proj",
        "self_attn": "attn.attention",
        "mlp.gate_proj": "mlp.c_fc_0",
        "mlp.up_proj": "mlp.c_fc_1",
        "mlp.down_proj": "mlp.c_proj",
        "input_layernorm": "ln_1",
        "post_attention_layernorm": "ln_2",
    }
    return renamed(state, names)


def qwen3vlmoe(state: State) -> State:
    """Transpose the experts' matrices, which are published as [experts, columns, rows]."""
    experts = {key: t.mT.contiguous() for key, t in state.items() if ".experts." in key}
    return state | experts


def internlm2(state: State) -> State:
    names = {
        "model.embed_tokens": "model.tok_embeddings",
        "self_attn.o_proj": "attention.wo",
        "mlp.gate_proj": "feed_forward.w1",
        "mlp.up_proj": "feed_forward.w3",
        "mlp.down_proj": "feed_forward.w2",
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "ffn_norm",
        "lm_head": "output",
    }
    return renamed(stacked(state, "attention.wqkv", _by_group), names)


def stacked(state: State, name: str, stack: Callable[..., torch.Tensor]) -> State:
    """Return tensors with q, k and v of each layer in one, called `name`."""
    rest = {key: t for key, t in state.items() if not key.endswith(QKV)}
    for q_name in (key for key in state if key.endswith(QKV[0])):
        layer = q_name.removesuffix(QKV[0])
        stack_name = f"{layer.removesuffix('self_attn.')}{name}.weight"
        rest[stack_name] = stack(*(state[layer + part] for part in QKV))
    return rest


def _in_order(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.cat([q, k, v])


def _by_group(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Stack the query heads of a KV head, its key head and its value head, and so on."""
    groups = [t.reshape(-1, HEAD_DIM, t.shape[1]) for t in (k, v)]
    queries = q.reshape(len(groups[0]), -1, HEAD_DIM, q.shape[1])
    together = torch.cat([queries, *(t[:, None] for t in groups)], dim=1)
    return together.reshape(-1, q.shape[1])


QKV = ("q_proj.weight", "k_proj.weight", "v_proj.weight")
MLP = ("gate_proj", "up_proj", "down_proj")
PUBLISHED = {
    "exaone": Published(
        {"architectures": ["ExaoneForCausalLM"], "activation_function": "silu"}, exaone
    ),
    "bailingmoe": Published(
        {
            "architectures": ["BailingMoeForCausalLM"],
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "num_shared_experts": 1,
            "first_k_dense_replace": 0,
            "norm_topk_prob": True,
            "norm_head": False,
        },
        bailing_from_ernie,
    ),
    "bailingmoe2": Published(
        {
            "architectures": ["BailingMoeV2ForCausalLM"],
            "num_experts": 6,
            "num_shared_experts": 1,
            "score_function": "sigmoid",
            "num_nextn_predict_layers": 0,
        },
        bailing,
    ),
    "bailingmoe3": Published(
        {
            "architectures": ["BailingMoeV3ForCausalLM"],
            "no_kda_lora": True,
            "gated_attention_proj_granularity_type": "head_wise",
            "moe_shared_expert_intermediate_size": 32,
            "norm_topk_prob": True,
            "score_function": "sigmoid",
            "n_group": 2,
        }
    ),
    # transformers renamed the kinds of layers.
    "granitehybrid": Published({"layer_types": ["mamba", "attention", "mamba", "mamba"]}),
    "granitehybridmoe": Published({"layer_types": ["mamba", "attention"]}),
    "graniteswa": Published({"no_rope_layers": [1, 0, 1]}),
    "internlm2": Published({"architectures": ["InternLM2ForCausalLM"]}, internlm2),
    "mimo2": Published(
        {
            "hybrid_layer_pattern": [0, 1, 1],
            "swa_num_key_value_heads": 2,
            "swa_num_attention_heads": 4,
            "swa_head_dim": HEAD_DIM,
            "swa_v_head_dim": 32,
            "topk_method": "noaux_tc",
            "rope_parameters": {"rope_theta": 50000.0, "partial_rotary_factor": 0.5},
            "swa_rope_theta": 10000.0,
        },
        lambda state: renamed(state, {"self_attn.sinks": "self_attn.attention_sink_bias"}),
    ),
    "kimilinear": Published(
        {
            "linear_attn_config": {
                "full_attn_layers": [2],  # counted from 1
                "kda_layers": [1, 3],
                "short_conv_kernel_size": 4,
                "head_dim": 16,
                "num_heads": 4,
            },
            "first_k_dense_replace": 1,
            "moe_router_activation_func": "sigmoid",
        },
        # transformers names the MLP of a dense layer like that of the others.
        lambda state: renamed(state, {f"block_sparse_moe.{x}": f"mlp.{x}" for x in MLP}),
    ),
    "lagunacols": Published({"sliding_window": None}),
    "maincoder": Published({"architectures": ["MaincoderForCausalLM"]}, maincoder),
    "mistral4": Published({"architectures": ["Ministral3ForCausalLM"]}),
    "nemotronh": Published(
        {
            "num_experts_per_tok": None,
            "n_routed_experts": None,
            "num_local_experts": None,
            "hybrid_override_pattern": "M-*M",
        }
    ),
    "minicpm": Published(
        {
            "architectures": ["MiniCPMForCausalLM"],
            "scale_emb": SCALES["embedding_multiplier"],
            "scale_depth": SCALES["residual_multiplier"] * 2**0.5,  # divided by sqrt(layers)
            "dim_model_base": 32 / SCALES["logits_scaling"],
        }
    ),
    "qwen3vlmoe": Published({}, qwen3vlmoe),
    # Older models state the text's configuration at the top, under other names.
    "step35": Published(
        {
            "architectures": ["Step3p5ForCausalLM"],
            "text_config": None,
            "vision_config": None,
            **SIZES,
            **STEP35,
            "num_attention_groups": 2,
            "attention_other_setting": {"num_attention_heads": 6, "num_attention_groups": 2},
            "moe_num_experts": 3,
            "moe_top_k": 2,
            "moe_layers_enum": "1,2",
            "norm_expert_weight": True,
        },
        lambda state: {key: t for key, t in state.items() if not key.startswith("vi")},
    ),
}


def set_vocab(converter: Any) -> None:
    """Copy the tokenizer of another fixture if it fits; otherwise the file gets none."""
    import gguf

    if converter.hf_arch == "Starcoder2ForCausalLM":  # whose converter leaves the window out
        converter.gguf_writer.add_sliding_window(converter.hparams["sliding_window"])
    if converter.hparams.get("model_type") == "mistral4":  # whose converter leaves the growth out
        growth = converter.rope_parameters["llama_4_scaling_beta"]
        converter.gguf_writer.add_attn_temperature_scale(growth)
    if converter.hf_arch == "Llama4ForCausalLM":  # whose files do not state what all have
        converter.gguf_writer.add_sliding_window(converter.hparams["attention_chunk_size"])
        converter.gguf_writer.add_attn_temperature_scale(converter.hparams["attn_scale"])
        converter.gguf_writer.add_attn_temperature_length(converter.hparams["floor_scale"])
    fields = gguf.GGUFReader(FOLDER / "llama.gguf").fields
    if len(fields["tokenizer.ggml.tokens"].data) != converter.hparams["vocab_size"]:
        return
    for name, field in fields.items():
        if name.startswith("tokenizer."):
            kinds = [*field.types, None]
            converter.gguf_writer.add_key_value(name, field.contents(), kinds[0], kinds[1])


def with_stacked_norms(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return `tensors` with those of a norm for each head, `norms.{head}`, stacked in one.

    The converter should do that itself and fails.
    """
    found, stacks = dict(tensors), {}
    for name in tensors:
        if ".norms." in name:
            stacks.setdefault(name.split(".norms.")[0] + ".weight", []).append(found.pop(name))
    return found | {name: torch.stack(parts) for name, parts in stacks.items()}


def convert(model: torch.nn.Module, target: Path, blocks: str = "none") -> None:
    """Write `model` to a GGUF file.

    blocks: what becomes of its NextN blocks; "none": left out, "too": written with the layers,
    "only": without them.
    """
    from conversion import ModelBase, get_model_class  # of llama.cpp
    from gguf import LlamaFileType

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, state_dict=with_stacked_norms(model.state_dict()))
        if target.stem in PUBLISHED:
            PUBLISHED[target.stem].write(Path(folder))
        # The converter counts its tokens only.
        tokens = {"vocab": {str(i): i for i in range(model.config.get_text_config().vocab_size)}}
        (Path(folder) / "tokenizer.json").write_text(
            json.dumps({"model": tokens, "added_tokens": []})
        )
        config = ModelBase.load_hparams(Path(folder), False)
        if target.stem in PUBLISHED:  # transformers renames values when it reads the file
            config = PUBLISHED[target.stem].changed(config)
        rope = config.get("rope_parameters") or {}
        config.setdefault("rotary_pct", rope.get("partial_rotary_factor", 1.0))  # an older name
        # transformers renamed the class of Phi 3.5 MoE.
        kind = get_model_class(config["architectures"][0].replace("Phimoe", "PhiMoE"))
        family = type(model).__name__.removesuffix("ForCausalLM")
        kind = getattr(kind, f"{family}Model", kind)  # one of two behind a name
        modes = {"no_mtp": blocks == "none", "mtp_only": blocks == "only"}
        with patch.object(kind, "set_vocab", set_vocab), patch.multiple(kind, **modes):
            kind(
                Path(folder),
                LlamaFileType.MOSTLY_F16,
                target,
                model_name=target.stem,
                hparams=config,
            ).write()


if __name__ == "__main__":
    sys.path[:0] = [sys.argv[1], f"{sys.argv[1]}/gguf-py"]
    for name in sys.argv[2:] or FAMILIES:
        made = FAMILIES[name]()
        ids = (
            np.random.default_rng(PROMPTS.get(name, 5))
            .integers(0, made.config.get_text_config().vocab_size, TOKENS)
            .astype(np.int32)
        )
        convert(made, FOLDER / f"{name}.gguf")
        np.savez_compressed(FOLDER / f"{name}.npz", tokens=ids, logits=logits(made, ids))
