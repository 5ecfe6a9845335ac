"""NextN blocks computed in float64 from their definition, without zinc's graphs and ops.

Attention, rotation and experts follow the model code that the families published: latent attention
projects keys and values per head here, where zinc absorbs these matrices into queries and outputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from zinc.formats.gguf import GGUFArray, GGUFFile

Rows = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Block:
    """Block `index` of a file; `rows` computes it for all positions of a text."""

    file: GGUFFile
    index: int

    def rows(self, ids: npt.NDArray[np.int32], hidden: Rows) -> tuple[Rows, Rows]:
        """Return logits and own hidden rows for token ids and the hidden rows before them.

        Step 3.5 does not normalise the hidden rows.
        """
        table = self.own("nextn.embed_tokens.weight")
        e = (self.shared("token_embd.weight") if table is None else table)[ids]
        parts = [self.norm(e, "nextn.enorm"), self.norm(hidden, "nextn.hnorm")]
        x = np.concatenate(parts, axis=1) @ self.get("nextn.eh_proj.weight").T
        attend = self.latent_attention if self.is_latent else self.attention
        x = x + attend(self.norm(x, "attn_norm"))
        if self.has("ffn_down.weight") or self.has("ffn_down_exps.weight"):
            second = "ffn_norm" if self.has("ffn_norm.weight") else "post_attention_norm"
            x = x + self.mlp(self.norm(x, second))
        is_renamed = self.has("layer_output_norm.weight")
        final = "layer_output_norm" if is_renamed else "nextn.shared_head_norm"
        weight = self.own(f"{final}.weight")
        h = self.rms(x, self.shared("output_norm.weight") if weight is None else weight)
        head = self.own("nextn.shared_head_head.weight")
        if head is None:
            has_output = "output.weight" in self.file.tensors
            head = self.shared("output.weight" if has_output else "token_embd.weight")
        return h @ head.T, (x if self.arch == "step35" else h)

    # -- tensors and metadata ---------------------------------------------------------------------

    @property
    def arch(self) -> str:
        return self.file.str("general.architecture")

    @property
    def is_latent(self) -> bool:
        """Whether the attention of the block is latent. It is dense, even if layers are sparse."""
        return self.arch in ("deepseek2", "deepseek32", "glm-dsa", "bailingmoe3")

    @property
    def slides(self) -> bool:
        """Whether the attention of the block has a sliding window."""
        if self.arch == "step35":
            return bool(self.key("attention.sliding_window_pattern"))
        return self.arch in ("mimo2", "exaone-moe")

    def key(self, name: str, default: Any = 0) -> Any:
        """Return a value of the metadata; of an array, that of the block."""
        value = self.file.metadata.get(f"{self.arch}.{name}", default)
        return value.to_list()[self.index] if isinstance(value, GGUFArray) else value

    def has(self, name: str) -> bool:
        return f"blk.{self.index}.{name}" in self.file.tensors

    def shared(self, name: str) -> Rows:
        return self.file.tensors[name].to_float32().astype(np.float64)

    def get(self, name: str) -> Rows:
        return self.shared(f"blk.{self.index}.{name}")

    def own(self, name: str) -> Rows | None:
        return self.get(name) if self.has(name) else None

    def rms(self, x: Rows, weight: Rows) -> Rows:
        eps = self.key("attention.layer_norm_rms_epsilon")
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight

    def norm(self, x: Rows, name: str) -> Rows:
        return self.rms(x, self.get(f"{name}.weight"))

    def linear(self, x: Rows, name: str) -> Rows:
        bias = self.own(f"{name}.bias")
        y = x @ self.get(f"{name}.weight").T
        return y if bias is None else y + bias

    # -- attention --------------------------------------------------------------------------------

    def attention(self, x: Rows) -> Rows:
        n, heads, dim = len(x), self.key("attention.head_count"), self.key("attention.key_length")
        if self.has("attn_qkv.weight"):
            ends = np.cumsum([heads, self.key("attention.head_count_kv")]) * dim
            q, k, v = np.split(self.linear(x, "attn_qkv"), ends, axis=1)
        else:
            q, k, v = (self.linear(x, f"attn_{part}") for part in "qkv")
        q = q.reshape(n, heads, -1)
        gate = q[..., dim:]  # empty for families without a gate
        if self.has("attn_gate.weight"):
            gate = self.linear(x, "attn_gate")[..., None]
        q, k = q[..., :dim], k.reshape(n, -1, dim)
        v = v.reshape(n, k.shape[1], -1)
        if self.has("attn_q_norm.weight"):
            q, k = self.norm(q, "attn_q_norm"), self.norm(k, "attn_k_norm")
        q, k = self.turned(q, halves=True), self.turned(k, halves=True)
        share = heads // k.shape[1]
        v = v * self.key("attention.value_scale", 1.0)
        window = self.key("attention.sliding_window") if self.slides else 0
        sinks = self.own("attn_sinks.weight")
        k, v = k.repeat(share, axis=1), v.repeat(share, axis=1)
        o = attend(q, k, v, dim**-0.5, window, sinks)
        if gate.size:
            o = o / (1 + np.exp(-gate))
        return self.linear(o.reshape(n, -1), "attn_output")

    def latent_attention(self, x: Rows) -> Rows:
        n, heads = len(x), self.key("attention.head_count")
        rank, rope = self.key("attention.kv_lora_rank"), self.key("rope.dimension_count")
        width = self.key("attention.key_length_mla") or self.key("attention.key_length")
        nope = width - rope
        q = self.linear(x, "attn_q") if self.has("attn_q.weight") else None
        if q is None:
            q = self.linear(self.norm(self.linear(x, "attn_q_a"), "attn_q_a_norm"), "attn_q_b")
        q = q.reshape(n, heads, width)
        kv = self.linear(x, "attn_kv_a_mqa")
        latent, k_rope = self.norm(kv[:, :rank], "attn_kv_a_norm"), kv[:, rank:]
        if self.has("attn_kv_b.weight"):
            both = (latent @ self.get("attn_kv_b.weight").T).reshape(n, heads, -1)
            k_nope, v = both[..., :nope], both[..., nope:]
        else:
            k_nope = np.einsum("tr,hrn->thn", latent, self.get("attn_k_b.weight"))
            v = np.einsum("tr,hvr->thv", latent, self.get("attn_v_b.weight"))
        q = np.concatenate([q[..., :nope], self.turned(q[..., nope:])], axis=-1)
        k_rope = np.broadcast_to(self.turned(k_rope[:, None]), (n, heads, rope))
        scale = width**-0.5
        if self.key("rope.scaling.type", "") == "yarn":
            stretch = math.log(self.key("rope.scaling.factor"))
            scale *= (1 + self.key("rope.scaling.yarn_log_multiplier") * stretch) ** 2
        o = attend(q, np.concatenate([k_nope, k_rope], axis=-1), v, scale)
        if self.has("attn_gate.weight"):
            o = o / (1 + np.exp(-self.linear(x, "attn_gate")))[..., None]
        return self.linear(o.reshape(n, -1), "attn_output")

    def turned(self, x: Rows, *, halves: bool = False) -> Rows:
        """Rotate the first dimensions of heads x [tokens, heads, dim] by their positions.

        halves: pairs are dimensions i and i + dims / 2, else 2i and 2i + 1.
        """
        dims = self.key("rope.dimension_count") or x.shape[-1]
        if self.arch == "step35" and not self.slides:
            dims //= 2
        angles = np.arange(len(x))[:, None, None] * self.frequencies(dims)
        part = x[..., :dims]
        pairs = np.split(part, 2, axis=-1) if halves else [part[..., ::2], part[..., 1::2]]
        z = (pairs[0] + 1j * pairs[1]) * np.exp(1j * angles)
        turned = np.empty_like(part)
        if halves:
            turned[..., : dims // 2], turned[..., dims // 2 :] = z.real, z.imag
        else:
            turned[..., ::2], turned[..., 1::2] = z.real, z.imag
        return np.concatenate([turned, x[..., dims:]], axis=-1)

    def frequencies(self, dims: int) -> Rows:
        base = self.key("rope.freq_base")
        base = self.key("rope.freq_base_swa", base) if self.slides else base
        plain = base ** (-2.0 * np.arange(dims // 2) / dims)
        if "rope_freqs.weight" in self.file.tensors and not self.slides:
            plain = plain / self.shared("rope_freqs.weight")[: dims // 2]
        if self.key("rope.scaling.type", "") != "yarn":
            return plain
        original = self.key("rope.scaling.original_context_length")

        def dimension(turns: float) -> float:
            return dims * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

        low, high = max(math.floor(dimension(32)), 0), min(math.ceil(dimension(1)), dims - 1)
        ramp = np.clip((np.arange(dims // 2) - low) / max(high - low, 1e-3), 0, 1)
        return plain / self.key("rope.scaling.factor") * ramp + plain * (1 - ramp)

    # -- feed-forward -----------------------------------------------------------------------------

    def mlp(self, x: Rows) -> Rows:
        limit = self.key("swiglu_clamp_shexp") or math.inf
        if not self.has("ffn_gate_inp.weight"):
            whole = (self.get(f"ffn_{part}.weight") for part in ("gate", "up", "down"))
            return glu(x, *whole, limit)
        parts = [self.get(f"ffn_{part}_exps.weight") for part in ("gate", "up", "down")]
        chosen = self.routes(x @ self.get("ffn_gate_inp.weight").T)
        most = self.key("swiglu_clamp_exp") or math.inf
        routed = np.stack([
            sum(w * glu(row, *(part[e] for part in parts), most) for e, w in experts)
            for row, experts in zip(x, chosen, strict=True)
        ])  # fmt: skip
        shared_parts = (self.get(f"ffn_{part}_shexp.weight") for part in ("gate", "up", "down"))
        shared = glu(x, *shared_parts, limit)
        if self.has("ffn_gate_inp_shexp.weight"):
            gate = x @ self.get("ffn_gate_inp_shexp.weight").reshape(-1)
            shared = shared / (1 + np.exp(-gate))[:, None]
        return routed + shared

    def routes(self, logits: Rows) -> list[list[tuple[int, float]]]:
        """Return the experts of each row with their weights."""
        is_qwen = self.arch.startswith("qwen")
        bias = self.own("exp_probs_b.bias" if self.has("exp_probs_b.bias") else "exp_probs_b")
        gating = self.key("expert_gating_func") or (2 if bias is not None else 1)
        sigmoid = not is_qwen and gating == 2
        exp = np.exp(logits - logits.max(axis=1, keepdims=True))
        scores = 1 / (1 + np.exp(-logits)) if sigmoid else exp / exp.sum(axis=1, keepdims=True)
        ranking = scores if bias is None else scores + bias
        found = []
        for score, rank in zip(scores, ranking, strict=True):
            groups = rank.reshape(max(1, self.key("expert_group_count")), -1)
            best = np.sort(groups, axis=1)[:, -2:] if sigmoid else groups.max(axis=1)[:, None]
            order = np.argsort(-best.sum(axis=1), kind="stable")
            kept = order[: max(1, self.key("expert_group_used_count"))]
            masked = np.full_like(groups, -np.inf)
            masked[kept] = groups[kept]
            top = np.argsort(-masked.reshape(-1), kind="stable")[: self.key("expert_used_count")]
            weights = score[top]
            if is_qwen or self.key("expert_weights_norm", False):
                weights = weights / weights.sum()
            weights = weights * (self.key("expert_weights_scale", 1.0) or 1.0)
            found.append(list(zip(top.tolist(), weights.tolist(), strict=True)))
        return found


def attend(
    q: Rows, k: Rows, v: Rows, scale: float, window: int = 0, sinks: Rows | None = None
) -> Rows:
    """Return causal attention of heads, all [tokens, heads, dim], over `window` tokens (0: all)."""
    scores = np.einsum("qhd,khd->hqk", q, k) * scale
    seen = np.tril(np.ones(scores.shape[1:], bool))
    if window:
        seen &= ~np.tril(seen, -window)
    p = np.exp(np.where(seen, scores, -np.inf))
    total = p.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks)[:, None, None]
    return np.einsum("hqk,khd->qhd", p / total, v)


def glu(x: Rows, gate: Rows, up: Rows, down: Rows, limit: float = math.inf) -> Rows:
    """Return a gated MLP of rows x, whose activations and inputs end at `limit`."""
    g = x @ gate.T
    g = np.minimum(g / (1 + np.exp(-g)), limit)
    return (g * np.clip(x @ up.T, -limit, limit)) @ down.T
