"""`zinc inspect`: the contents of a model file, without loading it.

It also works on a file that zinc cannot run, and reports the reason.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from zinc.cli import parsed, summary, usage
from zinc.cli.text import plain, size, table
from zinc.core.errors import ZincError

if TYPE_CHECKING:
    from zinc.engine.load.fit import FitReport
    from zinc.formats.gguf import GGUFFile, MetadataValue
    from zinc.models.parts.spec import ModelSpec
    from zinc.ops.graph import Graph

SHOWN_ELEMENTS = 4
SHOWN_CHARACTERS = 72


def add_arguments(parser: argparse.ArgumentParser) -> None:
    usage.add_model(parser)
    usage.add_json(parser)


def run(args: argparse.Namespace) -> int:
    from zinc.formats.gguf import GGUFFile

    with GGUFFile.open(parsed.model_path(args)) as file:
        if args.json:
            json.dump(describe(file), sys.stdout, indent=2)
            print()
        else:
            print(report(file))
    return 0


def describe(file: GGUFFile) -> dict[str, Any]:
    """Return the report as JSON values; long arrays are abbreviated."""
    from zinc.cli import fit_text

    loaded = _load(file)
    fit = {} if isinstance(loaded, ZincError) else fit_text.as_json(_fit(file))
    return {
        "path": str(file.path),
        "version": file.version,
        "bytes": file.n_bytes,
        "metadata": {key: _json_value(value) for key, value in file.metadata.items()},
        "tensors": [
            {
                "name": tensor.name,
                "type": tensor.type.name,
                "shape": list(tensor.shape),
                "bytes": tensor.n_bytes,
            }
            for tensor in file.tensors.values()
        ],
        "types": {name: {"tensors": n, "bytes": size} for name, n, size in types(file)},
        "parameters": sum(tensor.n_elements for tensor in file.tensors.values()),
        "memory": {**_memory(file, loaded), **fit},
    }


def report(file: GGUFFile) -> str:
    """Return the report as text."""
    n_parameters = sum(tensor.n_elements for tensor in file.tensors.values())
    parts = f" in {len(file.paths)} files" if len(file.paths) > 1 else ""
    loaded = _load(file)
    lines = [
        f"{file.path}: GGUF {file.version}, {size(file.n_bytes)}{parts}, "
        f"{n_parameters:,} parameters",
        *summary.lines(file, loaded if isinstance(loaded, ZincError) else loaded[0], types(file)),
        "",
        "metadata",
    ]
    width = max((len(key) for key in file.metadata), default=0)
    lines += [
        f"  {plain(key, 100).ljust(width)}  {_text_value(value)}"
        for key, value in file.metadata.items()
    ]
    tensors = [
        (
            plain(tensor.name, 60),
            tensor.type.name,
            " x ".join(map(str, tensor.shape)),
            size(tensor.n_bytes),
        )
        for tensor in file.tensors.values()
    ]
    by_type = [(name, n, size(n_bytes)) for name, n, n_bytes in types(file)]
    lines += ["", table(("tensor", "type", "shape", "size |"), tensors)]
    lines += ["", table(("type", "tensors |", "size |"), by_type)]
    memory = _memory(file, loaded)
    if "error" in memory:  # the summary shows the error
        return "\n".join(lines)
    from zinc.cli import fit_text

    fit = _fit(file)
    lines += ["", "memory"]
    context = memory["context_tokens"]
    lines += [
        f"  weights   {size(memory['weights_bytes'])}",
        f"  KV cache  {size(memory['kv_f16_bytes'])} as f16, "
        f"{size(memory['kv_q8_0_bytes'])} as q8_0, for {context:,} tokens",
    ]
    if memory["state_bytes"]:
        lines.append(f"  recurrent state  {size(memory['state_bytes'])} a sequence")
    if memory["nextn_blocks"]:
        lines.append(f"  kept for speculation, not loaded: {nextn_text(memory)}")
    lines += [f"  {line}" for line in fit_text.verdict(fit).splitlines()]
    return "\n".join(lines)


def nextn_text(memory: dict[str, Any]) -> str:
    """Return the names and size of the NextN blocks, as text."""
    blocks = ", ".join(memory["nextn_blocks"])
    return f"{blocks} (NextN), {size(memory['nextn_bytes'])}"


def nextn_memory(file: GGUFFile, spec: ModelSpec) -> dict[str, Any]:
    """Return the blocks in the file that predict further tokens, and their bytes."""
    from zinc.models.parts.nextn import nextn_tensors

    tensors = nextn_tensors(file, spec)
    blocks = dict.fromkeys(".".join(tensor.name.split(".")[:2]) for tensor in tensors)
    return {"nextn_blocks": list(blocks), "nextn_bytes": sum(t.n_bytes for t in tensors)}


def types(file: GGUFFile) -> list[tuple[str, int, int]]:
    """Return (type, tensors, bytes), the largest first."""
    n_bytes: Counter[str] = Counter()
    n_tensors: Counter[str] = Counter()
    for tensor in file.tensors.values():
        n_bytes[tensor.type.name] += tensor.n_bytes
        n_tensors[tensor.type.name] += 1
    return [(name, n_tensors[name], total) for name, total in n_bytes.most_common()]


def _load(file: GGUFFile) -> tuple[ModelSpec, Graph] | ZincError:
    """Return the spec and graph of the model, or the error if zinc cannot run it."""
    from zinc import models

    try:
        return models.load(file)
    except ZincError as error:
        return error


def _memory(file: GGUFFile, loaded: tuple[ModelSpec, Graph] | ZincError) -> dict[str, Any]:
    """Return the bytes that a run takes, without padding of the backend, or only an error."""
    from zinc.engine.cache_layout import context_bytes, state_bytes_per_sequence
    from zinc.engine.load.options import BATCH_TOKENS
    from zinc.ops.values import KVState, RecurrentState, Weight

    if isinstance(loaded, ZincError):
        return {"error": loaded.in_options()}
    spec, graph = loaded
    inputs = [x for node in graph.nodes for x in node.inputs]
    states = tuple(dict.fromkeys(x for x in inputs if isinstance(x, (KVState, RecurrentState))))
    weights = {x.tensor for x in inputs if isinstance(x, Weight)}
    tensors = (tensor for name, tensor in file.tensors.items() if name in weights)
    return {
        "weights_bytes": sum(tensor.n_bytes for tensor in tensors),
        "context_tokens": spec.context,
        "kv_f16_bytes": context_bytes(states, spec.context, "f16", BATCH_TOKENS),
        "kv_q8_0_bytes": context_bytes(states, spec.context, "q8_0", BATCH_TOKENS),
        "state_bytes": state_bytes_per_sequence(states),
        **nextn_memory(file, spec),
    }


def _fit(file: GGUFFile) -> FitReport:
    """Return what a run with the default options takes of the memory."""
    from zinc.cli import fit_text
    from zinc.engine.load.options import LoadOptions
    from zinc.engine.load.planning import plan_model

    with plan_model(LoadOptions(path=file.path)) as planned:
        return fit_text.report_of(planned, planned.spec.context)


def _json_value(value: MetadataValue) -> Any:
    from zinc.formats.gguf import GGUFArray

    if not isinstance(value, GGUFArray):
        return _finite(value)
    if len(value) <= SHOWN_ELEMENTS:
        return [_json_value(element) for element in value]
    return {
        "array_of": value.element_type.name.lower(),
        "count": len(value),
        "first": [_json_value(value[i]) for i in range(SHOWN_ELEMENTS)],
    }


def _finite(value: MetadataValue) -> MetadataValue:
    """Return `value`, as text if it is NaN or infinite, which JSON lacks."""
    if isinstance(value, float) and value - value != 0:
        return str(value)
    return value


def _text_value(value: MetadataValue) -> str:
    from zinc.formats.gguf import GGUFArray

    if isinstance(value, str):
        return plain(value, SHOWN_CHARACTERS)
    if not isinstance(value, GGUFArray):
        return f"{value:.6g}" if isinstance(value, float) else str(value).lower()
    first = ", ".join(_element(value[i]) for i in range(min(len(value), SHOWN_ELEMENTS)))
    more = ", ..." if len(value) > SHOWN_ELEMENTS else ""
    return plain(f"[{len(value):,}] {value.element_type.name.lower()}: {first}{more}", 100)


def _element(value: object) -> str:
    return repr(value)
