"""ERNIE 4.5, dense: a Llama whose RoPE pairs adjacent dimensions without permuted rows."""

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.spec import ModelSpec


def spec(file: GGUFFile) -> ModelSpec:
    return dense_spec(file, "ernie4_5", neox=False)


build = decoder
