"""Graphs of architectures without a model file.

A probe stands in for a file: it has small numbers for metadata keys, and a tensor of any shape that
is requested. The graph then comes from the same code as for real models, so `zinc support` can list
the kernels that an architecture needs. An architecture that needs other values has
their keys as `PROBE`, such as a list of the kinds of its layers.
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np

from zinc.core.dataclass import dataclass
from zinc.formats.gguf import GGUFArray, GGUFFile
from zinc.formats.metadata import ValueType
from zinc.models import architecture
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph
from zinc.ops.values import Weight
from zinc.quant.blocks import GGMLType

WIDTH = 256  # a whole number of blocks of every format
# Keys without the architecture's name in front; every feature with a key is turned on.
KEYS: dict[str, int | float | str] = {
    "block_count": 4,
    "context_length": 4096,
    "embedding_length": WIDTH,
    "embedding_length_per_layer_input": WIDTH,
    "feed_forward_length": WIDTH,
    "leading_dense_block_count": 1,
    "full_attention_interval": 2,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.key_length": WIDTH,
    "attention.value_length": WIDTH,
    "attention.key_length_swa": WIDTH,
    "attention.key_length_mla": WIDTH + 64,
    "attention.value_length_mla": WIDTH,
    "attention.kv_lora_rank": WIDTH,
    "attention.q_lora_rank": WIDTH,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "attention.layer_norm_epsilon": 1e-5,
    "attention.sliding_window": 16,
    "attention.value_scale": 0.5,
    "attention.shared_kv_layers": 2,
    "attention.indexer.head_count": 4,
    "attention.indexer.key_length": WIDTH,
    "attention.indexer.top_k": 16,
    "embedding_scale": 2.0,
    "residual_scale": 0.5,
    "logit_scale": 4.0,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "rope.dimension_count": 64,
    "rope.freq_base": 10000.0,
    "rope.scaling.type": "none",
    "moe_latent_size": WIDTH,
    "expert_count": 4,
    "expert_used_count": 2,
    "expert_gating_func": 2,
    "expert_weights_norm": True,
    "expert_weights_scale": 1.0,
    "expert_feed_forward_length": WIDTH,
    "expert_shared_feed_forward_length": WIDTH,
    "shortconv.l_cache": 3,
    "ssm.conv_kernel": 4,
    "ssm.state_size": 64,
    "ssm.group_count": 4,
    "ssm.time_step_rank": 4,
    "ssm.inner_size": WIDTH,
    "wkv.head_size": 64,
    "attention.decay_lora_rank": WIDTH,
    "attention.iclr_lora_rank": WIDTH,
    "attention.value_residual_mix_lora_rank": WIDTH,
    "attention.gate_lora_rank": WIDTH,
    "kda.head_dim": 64,
    "kda.gate_lower_bound": -5.0,
}


class ProbeFile(GGUFFile):
    """A file with the metadata of an architecture, and the only tensor that `spec` reads."""

    def __init__(self, arch: str) -> None:
        self.path = Path(arch)
        self.paths = (self.path,)
        own: dict[str, Any] = getattr(architecture(arch), "PROBE", {})
        own = {key: _array(x) if isinstance(x, list) else x for key, x in own.items()}
        keys = {f"{arch}.{key}": value for key, value in {**KEYS, **own}.items()}
        self.metadata = MappingProxyType({"general.architecture": arch, **keys})
        tensors: dict[str, Any] = {"token_embd.weight": SimpleNamespace(shape=(WIDTH, WIDTH))}
        self.tensors = MappingProxyType(tensors)


def _array(values: list[int] | list[float]) -> GGUFArray:
    """Return an array of metadata with these values."""
    is_float = any(isinstance(x, float) for x in values)
    data = np.array(values, np.float32 if is_float else np.int32).tobytes()
    header: Any = SimpleNamespace(data=data)
    return GGUFArray(header, ValueType.FLOAT32 if is_float else ValueType.INT32, 0, len(values))


@dataclass(frozen=True, slots=True)
class ProbeWeights(Weights):
    """Weights with every required tensor, and with all optional tensors or none.

    Matrices are of `type`.
    """

    type: GGMLType = GGMLType.F32
    optional: bool = False

    def has(self, name: str, suffix: str = "weight", *, varies: bool = False) -> bool:
        return self.optional

    def refuse(self, name: str, suffix: str) -> None:
        pass

    def require(self, *names: str) -> None:
        pass

    def scalar(self, name: str) -> float:
        return 1.0

    def _get(self, name: str, shape: tuple[int, ...]) -> Weight:
        return Weight(name, self.type if len(shape) > 1 else GGMLType.F32, shape)


def graphs(arch: str, type: GGMLType = GGMLType.F32) -> list[Graph]:
    """Return two graphs of an architecture: without optional tensors, and with all of them."""
    model, file = architecture(arch), ProbeFile(arch)
    spec = model.spec(file)
    found = []
    for optional in (False, True):
        graph = Graph()
        model.build(graph, spec, ProbeWeights(file, type=type, optional=optional))
        found.append(graph)
    return found
