"""The summary of a model file in six lines, at the top of `zinc inspect`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from zinc.cli.text import plain, size
from zinc.core.errors import ZincError

if TYPE_CHECKING:
    from zinc.formats.gguf import GGUFFile
    from zinc.models.parts.spec import ModelSpec

SHOWN_CHARACTERS = 72
_NO_CHAT = {
    "encoder": "none: an encoder, for embeddings",
    "reranker": "none: a reranker, for scores of documents",
}


def lines(
    file: GGUFFile, spec: ModelSpec | ZincError, types: Sequence[tuple[str, int, int]]
) -> list[str]:
    """Return the summary of `file`.

    spec: the error instead if zinc cannot run the model. types: (type, tensors, bytes), the largest
    first.
    """
    supported = "yes" if not isinstance(spec, ZincError) else f"no: {plain(spec.in_options(), 500)}"
    rows = [
        ("name", _name(file)),
        ("model", _shape(file, spec)),
        ("weights", _weights(file, types)),
        ("context", "" if isinstance(spec, ZincError) else f"{spec.context:,} tokens"),
        ("chat", _chat(file, None if isinstance(spec, ZincError) else spec)),
        ("supported", supported),
    ]
    return [f"  {label.ljust(9)}  {text}" for label, text in rows if text]


def _name(file: GGUFFile) -> str:
    name = file.metadata.get("general.name")
    return plain(name, SHOWN_CHARACTERS) if isinstance(name, str) else ""


def _shape(file: GGUFFile, spec: ModelSpec | ZincError) -> str:
    n_parameters = sum(tensor.n_elements for tensor in file.tensors.values())
    arch = plain(str(file.metadata.get("general.architecture", "")), 40)
    shown = f"{arch}, {_count(n_parameters)} parameters"
    if isinstance(spec, ZincError):
        return shown
    if spec.experts is not None:
        shown += f" of which {_count(active_parameters(file, spec))} are active"
    shown += f", {spec.n_layers} layers of width {spec.hidden:,}, vocabulary of {spec.vocab:,}"
    if spec.experts is not None:
        shown += f", {spec.experts.count} experts of which {spec.experts.top_k} run"
    return shown


def active_parameters(file: GGUFFile, spec: ModelSpec) -> int:
    """Return the parameters that a token uses: of stacks of experts, those of the experts that run.

    A stack of experts is a tensor [experts, rows, cols].
    """
    total = sum(tensor.n_elements for tensor in file.tensors.values())
    if spec.experts is None:
        return total
    stacks = (t for t in file.tensors.values() if len(t.shape) == 3)
    experts = sum(t.n_elements for t in stacks if t.shape[0] == spec.experts.count)
    return total - experts + experts * spec.experts.top_k // spec.experts.count


def _weights(file: GGUFFile, types: Sequence[tuple[str, int, int]]) -> str:
    n_elements = sum(tensor.n_elements for tensor in file.tensors.values())
    n_bytes = sum(total for *_, total in types)
    if not n_elements or not n_bytes:
        return ""
    shares = [f"{name} {total / n_bytes:.0%}" for name, _, total in types if total > n_bytes / 200]
    return f"{size(n_bytes)}, {8 * n_bytes / n_elements:.1f} bits each: {', '.join(shares)}"


def _chat(file: GGUFFile, spec: ModelSpec | None) -> str:
    from zinc.chat.formats import detect
    from zinc.cli.answer import has_reasoning

    if spec is not None and (reason := _NO_CHAT.get(spec.kind.value)):
        return reason
    source = file.metadata.get("tokenizer.chat_template")
    if not isinstance(source, str):
        return "no chat template: a base model"
    parts = ["chat template"]
    if has_reasoning(source):
        parts.append("reasoning")
    if "tools" in source and detect(source).has_calls:
        parts.append("tool calls")
    return ", ".join(parts)


def _count(n: int) -> str:
    """Return a number with a unit: 29.4 M, 8.2 B."""
    for unit, scale in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if n >= scale:
            return f"{n / scale:.1f} {unit}"
    return str(n)
