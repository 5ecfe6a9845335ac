"""Phi 3, 3.5 and 4, dense: q, k and v in one tensor, gate and up in one.

Where there is a window, every layer has it. Files for long contexts carry LongRoPE's two sets of
frequency divisors.
"""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.blocks import dense_decoder
from zinc.models.parts.spec import Metadata, ModelSpec, dense_spec
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph


def spec(file: GGUFFile) -> ModelSpec:
    base = dense_spec(file, "phi3", neox=True)
    window = Metadata(file, "phi3").optional_size("attention.sliding_window", 1 << 30)
    window = window if window < base.context else 0
    return replace(base, attention=(replace(base.attention[0], window=window),) * base.n_layers)


def build(g: Graph, spec: ModelSpec, w: Weights) -> None:
    dense_decoder(g, spec, w)
