"""InternLM 2 and 2.5: a Llama with other names in the published files."""

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.spec import ModelSpec


def spec(file: GGUFFile) -> ModelSpec:
    return dense_spec(file, "internlm2", neox=False)


build = decoder
