"""Encoders of fixtures that transformers lacks, made of its BERT and Nomic BERT.

They also have the tensors that published models have, for llama.cpp's converter.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import nn
from torch.nn import functional


class GatedLinear(nn.Module):
    """The MLP of Jina BERT 2 before its last matrix: gelu(gate) * up, from one matrix."""

    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.gated_layers = nn.Linear(hidden, 2 * ffn, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gated_layers(x).chunk(2, dim=-1)
        return functional.gelu(gate) * up


class JinaBert(nn.Module):
    """Jina BERT 2 (jinaai/jina-bert-implementation): BERT with ALiBi in place of positions."""

    def __init__(self, sizes: dict[str, Any]) -> None:
        super().__init__()
        self.config = transformers.BertConfig(**sizes)
        self.bert = transformers.BertModel(self.config, add_pooling_layer=False)
        for layer in self.bert.encoder.layer:
            layer.intermediate = GatedLinear(sizes["hidden_size"], sizes["intermediate_size"])

    def forward(self, ids: torch.Tensor) -> Any:
        with torch.no_grad():
            self.bert.embeddings.position_embeddings.weight.zero_()
        at = torch.arange(ids.shape[1])
        distance = (at[:, None] - at[None, :]).abs()
        slopes = torch.tensor(self.slopes(self.config.num_attention_heads))
        return self.bert(ids, attention_mask=-slopes[None, :, None, None] * distance)

    @classmethod
    def slopes(cls, n: int) -> list[float]:
        """Return the slopes of n heads, for other than powers of two as the paper's authors do."""
        if n & (n - 1) == 0:
            return [2 ** (-8 / n * (i + 1)) for i in range(n)]
        below = 2 ** (n.bit_length() - 1)
        return cls.slopes(below) + cls.slopes(2 * below)[0::2][: n - below]

    def published_tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors under their published names."""
        tensors = {}
        for name, tensor in self.bert.state_dict().items():
            if "position" in name:
                continue
            if "attention" not in name:
                name = name.replace("intermediate", "mlp").replace("output.dense", "mlp.wo")
                name = name.replace("output.LayerNorm", "mlp.layernorm")
            tensors[name] = tensor
        return tensors


class NeoBertLayer(nn.Module):
    """RMS norms before attention and SwiGLU; q, k and v of a head are neighbours."""

    def __init__(self, hidden: int, ffn: int, n_heads: int) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(hidden, 1e-6), nn.RMSNorm(hidden, 1e-6)
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.wo = nn.Linear(hidden, hidden, bias=False)
        self.ffn = nn.ModuleDict(
            {
                "w12": nn.Linear(hidden, 2 * ffn, bias=False),
                "w3": nn.Linear(ffn, hidden, bias=False),
            }
        )
        self.n_heads = n_heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, hidden = x.shape
        heads = self.qkv(self.attention_norm(x)).view(n, self.n_heads, -1).transpose(0, 1)
        q, k, v = heads.chunk(3, dim=-1)
        mixed = functional.scaled_dot_product_attention(self.turned(q), self.turned(k), v)
        x = x + self.wo(mixed.transpose(0, 1).reshape(n, hidden))
        gate, up = self.ffn["w12"](self.ffn_norm(x)).chunk(2, dim=-1)
        return x + self.ffn["w3"](functional.silu(gate) * up)

    @staticmethod
    def turned(x: torch.Tensor) -> torch.Tensor:
        """Rotate neighbouring dimensions of heads x [heads, tokens, dim] by their positions."""
        _, n, dim = x.shape
        angles = torch.outer(torch.arange(n), 10000.0 ** (-torch.arange(0, dim, 2) / dim))
        z = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(z * torch.polar(torch.ones_like(angles), angles)).flatten(2)


class NeoBert(nn.Module):
    """NeoBERT (Le Breton et al. 2025, chandar-lab/NeoBERT)."""

    def __init__(self, sizes: dict[str, Any]) -> None:
        super().__init__()
        self.sizes = sizes
        hidden, ffn = sizes["hidden_size"], sizes["intermediate_size"] * 2 // 3
        self.encoder = nn.Embedding(sizes["vocab_size"], hidden)
        layers = [NeoBertLayer(hidden, ffn, sizes["num_attention_heads"]) for _ in range(2)]
        self.transformer_encoder = nn.ModuleList(layers)
        self.layer_norm = nn.RMSNorm(hidden, 1e-6)

    def forward(self, ids: torch.Tensor) -> Any:
        x = self.encoder(ids[0])
        for layer in self.transformer_encoder:
            x = layer(x)
        return transformers.modeling_outputs.BaseModelOutput(self.layer_norm(x)[None])

    def published_tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors under their published names."""
        return {f"model.{name}": tensor for name, tensor in self.state_dict().items()}


class PlainMlp(nn.Module):
    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(hidden, ffn), nn.Linear(ffn, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(functional.gelu(self.fc1(x)))


class RoutedMlp(nn.Module):
    """Experts without gate and bias; the best `top_k` count with their softmax over all."""

    def __init__(self, hidden: int, ffn: int, count: int, top_k: int) -> None:
        super().__init__()
        self.router = nn.Linear(hidden, count, bias=False)
        self.w1 = nn.Parameter(torch.empty(count, ffn, hidden))
        self.w2 = nn.Parameter(torch.empty(count, ffn, hidden))
        self.top_k = top_k

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.router(x).softmax(dim=-1)
        kept, chosen = weights.topk(self.top_k, dim=-1)
        y = torch.zeros_like(x)
        for k in range(self.top_k):
            w1, w2 = self.w1[chosen[..., k]], self.w2[chosen[..., k]]
            h = functional.gelu(torch.einsum("btfh,bth->btf", w1, x))
            y += kept[..., k, None] * torch.einsum("btfh,btf->bth", w2, h)
        return y


class NomicBertMoe(nn.Module):
    """Nomic BERT with biases, and experts in every second layer (nomic-embed-text-v2-moe)."""

    EXPERTS, TOP_K = 8, 2

    def __init__(self, sizes: dict[str, Any]) -> None:
        super().__init__()
        self.config = transformers.NomicBertConfig(**sizes)
        self.model = transformers.NomicBertModel(self.config, add_pooling_layer=False)
        hidden, ffn = sizes["hidden_size"], sizes["intermediate_size"]
        for i, layer in enumerate(self.model.layers):
            for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
                setattr(layer.self_attn, name, nn.Linear(hidden, hidden))
            if i % 2 == 1:
                layer.mlp = RoutedMlp(hidden, ffn, self.EXPERTS, self.TOP_K)
            else:
                layer.mlp = PlainMlp(hidden, ffn)

    def forward(self, ids: torch.Tensor) -> Any:
        return self.model(ids)

    def published_config(self) -> dict[str, Any]:
        """Return what the configuration of published models has beside that of Nomic BERT."""
        return {
            "activation_function": "gelu",
            "n_positions": 2048,
            "moe_every_n_layers": 2,
            "moe_top_k": self.TOP_K,
            "num_experts": self.EXPERTS,
            **dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"), True),
        }

    def published_tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors under their published names."""
        own = self.model.state_dict()
        tensors = {}
        names = {
            "self_attn.o_proj": "attn.out_proj",
            "post_attention_layernorm": "norm1",
            "post_mlp_layernorm": "norm2",
            "mlp.router": "mlp.router.layer",
            "mlp.w": "mlp.experts.mlp.w",
            "embeddings.LayerNorm": "emb_ln",
        }
        for name, tensor in own.items():
            if "q_proj" in name:
                parts = [own[name.replace("q_proj", f"{x}_proj")] for x in "qkv"]
                name, tensor = name.replace("self_attn.q_proj", "attn.Wqkv"), torch.cat(parts)
            elif "k_proj" in name or "v_proj" in name:
                continue
            for a, b in names.items():
                name = name.replace(a, b)
            if ".mlp.w" in name:
                tensor = tensor.reshape(-1, tensor.shape[-1])
            prefix = "encoder." if name.startswith("layers.") else ""
            tensors[prefix + name] = tensor
        return tensors
