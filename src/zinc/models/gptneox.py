"""GPT-NeoX, Pythia and models built like them: layer norms, partial RoPE, an MLP without gate.

Attention and MLP normalise the same rows separately, unless the file has them follow each other.
"""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.spec import ModelSpec, Norm
from zinc.ops.values import ActivationFn


def spec(file: GGUFFile) -> ModelSpec:
    base = dense_spec(file, "gptneox", neox=True, norm=Norm.LAYER_WITH_BIAS)
    parallel = file.bool("gptneox.use_parallel_residual", default=True)
    return replace(base, parallel=parallel, activation=ActivationFn.GELU_ERF, gated_mlp=False)


build = decoder
