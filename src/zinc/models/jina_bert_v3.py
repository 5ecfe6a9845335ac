"""Jina Embeddings 3: an encoder with RoPE, an MLP without gate, and biases everywhere.

The model file has no task; each task is a LoRA adapter in a file of its own.
"""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.encoder import encoder, encoder_spec
from zinc.models.parts.metadata import Metadata
from zinc.models.parts.spec import ModelSpec
from zinc.ops.values import ActivationFn

ARCH = "jina-bert-v3"


def spec(file: GGUFFile) -> ModelSpec:
    Metadata(file, ARCH).require("rope.freq_base")
    base = encoder_spec(file, ARCH)
    return replace(base, activation=ActivationFn.GELU_ERF, gated_mlp=False)


build = encoder
