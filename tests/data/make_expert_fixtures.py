"""Create the fixtures of expert models: random weights, and the logits of transformers.

    python -m venv /tmp/oracle && /tmp/oracle/bin/pip install torch transformers gguf
    /tmp/oracle/bin/python tests/data/make_expert_fixtures.py

deepseek2v2: queries without a low rank, keys and values in one tensor (attn_kv_b), softmax router
over the groups with the largest scores, YaRN with a temperature. deepseek2v3: low-rank queries,
sigmoid router with a choice bias over the groups with the largest sums, two shared experts, YaRN.
glm4moe: partial RoPE, norms on q and k, and a NextN block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import (
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
)

FOLDER = Path(__file__).parent / "fixtures"
VOCAB, TOKENS = 128, 48

NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
}
GLOBAL_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}

Tensors = Iterator[tuple[str, np.ndarray]]


def randomise(model: torch.nn.Module) -> None:
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        named = [*model.named_parameters(), *model.named_buffers()]
        for name, tensor in named:
            noise = torch.randn(tensor.shape, generator=generator)
            if "norm" in name:
                tensor.copy_(1.0 + 0.3 * noise)
            elif "embed" in name:
                tensor.copy_(0.5 * noise)
            elif tensor.dim() >= 2:
                tensor.copy_(noise / math.sqrt(tensor.shape[-1]))
            elif name.endswith(("bias", "e_score_correction_bias")):
                tensor.copy_(0.2 * noise)


def tensors(model: torch.nn.Module, post_norm: str, *, split_kv: bool) -> Tensors:
    """Yield tensors with their names in GGUF."""
    c = model.config
    names = {**NAMES, "post_attention_layernorm": post_norm}
    for name, tensor in model.state_dict().items():
        values = tensor.float().numpy()
        if name in GLOBAL_NAMES:
            yield GLOBAL_NAMES[name], values
            continue
        _, _, index, rest = name.split(".", 3)
        stem, _, suffix = rest.rpartition(".")
        block = f"blk.{index}"
        if rest == "mlp.experts.gate_up_proj":
            gate, up = np.split(values, 2, axis=1)
            yield f"{block}.ffn_gate_exps.weight", gate
            yield f"{block}.ffn_up_exps.weight", up
        elif rest == "mlp.experts.down_proj":
            yield f"{block}.ffn_down_exps.weight", values
        elif suffix == "e_score_correction_bias":
            yield f"{block}.exp_probs_b.bias", values
        elif stem != "self_attn.kv_b_proj":
            yield f"{block}.{names[stem]}.{suffix}", values
        elif not split_kv:
            yield f"{block}.attn_kv_b.weight", values
        else:
            heads = values.reshape(c.num_attention_heads, -1, c.kv_lora_rank)
            keys, rest_of_heads = np.split(heads, [c.qk_nope_head_dim], axis=1)
            yield f"{block}.attn_k_b.weight", keys.transpose(0, 2, 1)
            yield f"{block}.attn_v_b.weight", rest_of_heads


def logits(model: torch.nn.Module, ids: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        out = model(torch.from_numpy(ids.astype(np.int64))[None], use_cache=False)
    return out.logits[0].float().numpy()


def header(name: str, arch: str, model: torch.nn.Module) -> gguf.GGUFWriter:
    """Return a writer with the keys that all expert fixtures have."""
    c = model.config
    writer = gguf.GGUFWriter(FOLDER / f"{name}.gguf", arch)
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_head_count(c.num_attention_heads)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_rope_freq_base(c.rope_parameters["rope_theta"])
    writer.add_leading_dense_block_count(c.first_k_dense_replace)
    writer.add_expert_count(c.n_routed_experts)
    writer.add_expert_used_count(c.num_experts_per_tok)
    writer.add_expert_feed_forward_length(c.moe_intermediate_size)
    writer.add_expert_shared_count(c.n_shared_experts)
    writer.add_expert_group_count(c.n_group)
    writer.add_expert_group_used_count(c.topk_group)
    writer.add_expert_weights_scale(c.routed_scaling_factor)
    writer.add_expert_weights_norm(bool(c.norm_topk_prob))
    return writer


def save(name: str, writer: gguf.GGUFWriter, model: torch.nn.Module, named: Tensors) -> None:
    for tensor, values in named:
        writer.add_tensor(tensor, np.ascontiguousarray(values.astype(np.float32)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    ids = np.random.default_rng(11).integers(0, VOCAB, TOKENS).astype(np.int32)
    np.savez_compressed(FOLDER / f"{name}.npz", tokens=ids, logits=logits(model, ids))


def yarn(mscale: float) -> dict[str, object]:
    return {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "mscale": mscale,
        "mscale_all_dim": mscale,
    }


def add_yarn(writer: gguf.GGUFWriter, mscale: float) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(4.0)
    writer.add_rope_scaling_orig_ctx_len(64)
    writer.add_rope_scaling_yarn_log_mul(0.1 * mscale)


DEEPSEEK = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_routed_experts": 12,
    "n_group": 4,
    "topk_group": 2,
    "num_experts_per_tok": 4,
    "first_k_dense_replace": 1,
    "qk_rope_head_dim": 16,
    "max_position_embeddings": 256,
    "attn_implementation": "eager",
}


def deepseek2v2() -> None:
    config = DeepseekV2Config(
        **DEEPSEEK,
        n_shared_experts=1,
        topk_method="group_limited_greedy",
        routed_scaling_factor=3.0,
        norm_topk_prob=False,
        q_lora_rank=None,
        kv_lora_rank=32,
        qk_nope_head_dim=32,
        v_head_dim=16,
        rope_parameters=yarn(0.707),
    )
    model = DeepseekV2ForCausalLM(config).eval()
    randomise(model)
    writer = header("deepseek2v2", "deepseek2", model)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count_kv(config.num_attention_heads)
    writer.add_key_length(config.qk_nope_head_dim + config.qk_rope_head_dim)
    writer.add_value_length(config.v_head_dim)
    writer.add_kv_lora_rank(config.kv_lora_rank)
    writer.add_rope_dimension_count(config.qk_rope_head_dim)
    add_yarn(writer, 0.707)
    save("deepseek2v2", writer, model, tensors(model, "ffn_norm", split_kv=False))


def deepseek2v3() -> None:
    config = DeepseekV3Config(
        **DEEPSEEK,
        n_shared_experts=2,
        routed_scaling_factor=2.5,
        norm_topk_prob=True,
        q_lora_rank=32,
        kv_lora_rank=48,
        qk_nope_head_dim=16,
        v_head_dim=32,
        rope_parameters=yarn(1.0),
        num_mtp_layers=0,
    )
    model = DeepseekV3ForCausalLM(config).eval()
    randomise(model)
    writer = header("deepseek2v3", "deepseek2", model)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count_kv(1)
    writer.add_key_length(config.kv_lora_rank + config.qk_rope_head_dim)
    writer.add_value_length(config.kv_lora_rank)
    writer.add_key_length_mla(config.qk_nope_head_dim + config.qk_rope_head_dim)
    writer.add_value_length_mla(config.v_head_dim)
    writer.add_q_lora_rank(config.q_lora_rank)
    writer.add_kv_lora_rank(config.kv_lora_rank)
    writer.add_rope_dimension_count(config.qk_rope_head_dim)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    add_yarn(writer, 1.0)
    save("deepseek2v3", writer, model, tensors(model, "ffn_norm", split_kv=True))


def glm4moe() -> None:
    config = Glm4MoeConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        moe_intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        n_routed_experts=8,
        num_experts_per_tok=3,
        n_shared_experts=1,
        routed_scaling_factor=1.5,
        norm_topk_prob=True,
        first_k_dense_replace=1,
        use_qk_norm=True,
        attention_bias=True,
        max_position_embeddings=256,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
        },
        num_mtp_layers=0,
        attn_implementation="eager",
    )
    model = Glm4MoeForCausalLM(config).eval()
    randomise(model)
    writer = header("glm4moe", "glm4moe", model)
    writer.add_block_count(config.num_hidden_layers + 1)
    writer.add_nextn_predict_layers(1)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim // 2)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    trunk = dict(tensors(model, "post_attention_norm", split_kv=False))
    # transformers runs the trunk only; the block after it need not make sense, but must be there.
    last = {n.replace("blk.2.", "blk.3."): v for n, v in trunk.items() if n.startswith("blk.2.")}
    rng = np.random.default_rng(1)
    nextn = {
        "blk.3.nextn.eh_proj.weight": rng.standard_normal((64, 128)),
        "blk.3.nextn.enorm.weight": rng.standard_normal(64),
        "blk.3.nextn.hnorm.weight": rng.standard_normal(64),
        "blk.3.nextn.shared_head_norm.weight": rng.standard_normal(64),
    }
    save("glm4moe", writer, model, iter({**trunk, **last, **nextn}.items()))


if __name__ == "__main__":
    deepseek2v2()
    deepseek2v3()
    glm4moe()
