"""Facts about a model file that several APIs report."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from zinc.chat.formats import detect
from zinc.core.dataclass import dataclass
from zinc.formats.gguf import GGUFFile
from zinc.hub.variants import label_of
from zinc.models import is_encoder
from zinc.models.parts.ranking import is_reranker
from zinc.quant.blocks import GGMLType
from zinc.server.runtime.entry import Entry


@dataclass(frozen=True, slots=True)
class FileFacts:
    """Facts about a model file.

    quantization: the label in the file's name, else the type of most of its weights. context: the
    context length in tokens that the model was trained for, 0 if the file does not say. digest: of
    the metadata and of the names, types and shapes of the tensors, because hashing all weights
    takes seconds per gigabyte. generates: the model generates text. ranks: it is a
    reranker.
    """

    architecture: str
    publisher: str
    quantization: str
    n_parameters: int
    context: int
    digest: str
    generates: bool
    ranks: bool
    has_tools: bool
    has_thinking: bool
    has_fill: bool


def facts_of(entry: Entry) -> FileFacts:
    """Return the facts about the file of a model. Raises FormatError."""
    return _facts(entry.path, entry.path.stat().st_mtime_ns)


@lru_cache(maxsize=64)
def _facts(path: Path, mtime_ns: int) -> FileFacts:
    """Read a model file; `mtime_ns`, its modification time, makes a changed file be read again."""
    with GGUFFile.open(path) as file:
        metadata = dict(file.metadata)
        sha = hashlib.sha256(repr(sorted((k, str(v)[:4096]) for k, v in metadata.items())).encode())
        n_bytes: dict[str, int] = {}
        n_elements = 0
        for name, tensor in file.tensors.items():
            sha.update(repr((name, tensor.type, tensor.shape)).encode())
            n_elements += tensor.n_elements
            type_name = GGMLType(tensor.type).name
            n_bytes[type_name] = n_bytes.get(type_name, 0) + tensor.n_bytes
        architecture = str(metadata.get("general.architecture", ""))
        ranks = is_reranker(file, architecture)
        embeds = is_encoder(file)
    context = metadata.get(f"{architecture}.context_length", 0)
    tools, thinking = _chat_features(metadata)
    return FileFacts(
        architecture=architecture,
        publisher=str(metadata.get("general.organization", "")),
        quantization=label_of(path.name) or max(n_bytes, key=lambda t: n_bytes[t], default=""),
        n_parameters=n_elements,
        context=context if isinstance(context, int) else 0,
        digest=sha.hexdigest(),
        generates=not (ranks or embeds),
        ranks=ranks,
        has_tools=tools,
        has_thinking=thinking,
        has_fill="tokenizer.ggml.fim_pre_token_id" in metadata,
    )


def _chat_features(metadata: Mapping[str, Any]) -> tuple[bool, bool]:
    """Return whether the chat template knows tools, and whether it marks reasoning."""
    source = metadata.get("tokenizer.chat_template")
    if not isinstance(source, str):
        return False, False
    found = detect(source)
    return "tools" in source and found.has_calls, found.thinking is not None
