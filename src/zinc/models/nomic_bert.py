"""Nomic BERT: an encoder with RoPE and a gated MLP."""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.encoder import encoder, encoder_spec
from zinc.models.parts.spec import ModelSpec

# Source: the model cards of nomic-embed-text-v1.5 and nomic-embed-text-v2-moe.
TASK_PROMPTS = (
    ("query", "search_query: "),
    ("document", "search_document: "),
    ("classification", "classification: "),
    ("clustering", "clustering: "),
)


def spec(file: GGUFFile) -> ModelSpec:
    return replace(encoder_spec(file, "nomic-bert"), task_prompts=TASK_PROMPTS)


build = encoder
