"""EmbeddingGemma: the layers of Gemma 3 without causal mask, and matrices after pooling.

Sliding layers see as far ahead as back.
"""

from dataclasses import replace
from math import sqrt

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.metadata import Metadata
from zinc.models.parts.rope import sliding_rope
from zinc.models.parts.spec import ModelSpec
from zinc.ops.values import ActivationFn

ARCH = "gemma-embedding"
# Source: the model card of embeddinggemma-300m.
TASK_PROMPTS = (
    ("query", "task: search result | query: "),
    ("document", "title: none | text: "),
    ("classification", "task: classification | query: "),
    ("clustering", "task: clustering | query: "),
    ("similarity", "task: sentence similarity | query: "),
)


def spec(file: GGUFFile) -> ModelSpec:
    m = Metadata(file, ARCH)
    m.require("rope.freq_base")
    base = dense_spec(file, ARCH, neox=True, qk_norm=True)
    full = base.attention[0]
    assert full.rope is not None
    rope = sliding_rope(file, ARCH, full.rope.dims, full.head_dim)
    local = replace(full, window=m.symmetric_window(), rope=rope)
    sliding = m.sliding_layers(base.n_layers, period=6)
    return replace(
        base,
        causal=False,
        attention=tuple(local if s else full for s in sliding),
        activation=ActivationFn.GELU,
        embed_scale=sqrt(base.hidden),
        post_norms=True,
        task_prompts=TASK_PROMPTS,
    )


build = decoder
