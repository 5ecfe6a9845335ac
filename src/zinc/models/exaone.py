"""EXAONE 3 and 3.5, dense: a Llama whose RoPE pairs dimension i with i + dims/2."""

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.spec import ModelSpec


def spec(file: GGUFFile) -> ModelSpec:
    return dense_spec(file, "exaone", neox=True)


build = decoder
