"""Create files of NextN blocks with llama.cpp's converter, and their logits with transformers.

    /tmp/oracle/bin/python tests/data/make_nextn_fixtures.py LLAMA_CPP [NAME...]

The environment is that of make_converted_fixtures.py, whose models the blocks extend: `{name}.gguf`
is what the converter writes with `--mtp`, to lie beside the fixture of that name. transformers
computes the layer of a block; the rest of a block is a few lines here, and so is what each of
several blocks reads (zinc/models/parts/nextn.py).
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import make_converted_fixtures as trunks
import numpy as np
import torch
from make_converted_fixtures import BAILING3, FULL, LINEAR, QKV, SLIDING, STEP35, VOCAB, State

FOLDER = Path(__file__).parent / "nextn"
TOKENS, HIDDEN, N_LAYERS = 24, 32, 3


class Skipped(torch.nn.Module):
    """A layer that does nothing."""

    def forward(self, hidden_states: torch.Tensor, **_: Any) -> torch.Tensor:
        return hidden_states


@dataclass(frozen=True)
class Family:
    """How the blocks of a family are made and published.

    model: makes the model with a further layer for each of `n_blocks` blocks. config: of the
    published model. names: of the parts of a block; "" for one that is not published. raw: rows are
    those before the norms. chained: each block after the first reads the rows of the one before.
    """

    model: Callable[[], torch.nn.Module]
    n_blocks: int
    config: dict[str, Any]
    names: dict[str, str]
    raw: bool = False
    chained: bool = False
    publish: Callable[[State], State] = dict


STEP: dict[str, Any] = STEP35 | {
    "num_hidden_layers": 5,
    "layer_types": [*STEP35["layer_types"], SLIDING, FULL],
    "mlp_layer_types": [*STEP35["mlp_layer_types"], "dense", "dense"],
    "rope_theta": [*STEP35["rope_theta"], 10000.0, 50000.0],
    "partial_rotary_factors": [*STEP35["partial_rotary_factors"], 1.0, 0.5],
    "swiglu_limits": [*STEP35["swiglu_limits"], None, None],
    "swiglu_limits_shared": [*STEP35["swiglu_limits_shared"], 0.25, None],
}
LING: dict[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": [LINEAR, LINEAR, FULL, FULL],
}


def step35() -> torch.nn.Module:
    with patch.object(trunks, "STEP35", STEP):
        return trunks.step35()


def mimo2() -> torch.nn.Module:
    """Return a MiMo V2 whose further layers are dense and have sliding windows."""
    more = {
        "num_hidden_layers": 6,
        "layer_types": [FULL, *[SLIDING] * 5],
        "mlp_layer_types": ["dense", "sparse", "sparse", "dense", "dense", "dense"],
    }
    model = trunks.model
    with patch.object(trunks, "model", lambda family, **given: model(family, **given | more)):
        return trunks.FAMILIES["mimo2"]()


def mimo2_published(state: State) -> State:
    """Stack the projections of blocks, and name them as published."""
    names = {"post_attention_layernorm": "pre_mlp_layernorm"}
    found = {}
    for name, tensor in state.items():
        found[name] = tensor
        for i in range(N_LAYERS, N_LAYERS + 3):
            if name.startswith(own := f"model.layers.{i}."):
                part = name.removeprefix(own)
                for old, new in names.items():
                    part = part.replace(old, new)
                found[f"model.mtp.layers.{i - N_LAYERS}.{part}"] = found.pop(name)
    for i in range(3):
        parts = [found.pop(f"model.mtp.layers.{i}.self_attn.{part}") for part in QKV]
        found[f"model.mtp.layers.{i}.self_attn.qkv_proj.weight"] = torch.cat(parts)
    return found


PARTS = {"enorm": "enorm", "hnorm": "hnorm", "eh_proj": "eh_proj"}
FAMILIES = {
    "bailingmoe3": Family(
        lambda: trunks.model("BailingHybrid", **BAILING3 | LING),
        1,
        {"num_nextn_predict_layers": 1},
        PARTS | {"norm": "final_layernorm", "head": ""},
    ),
    "mimo2": Family(
        mimo2, 3, {}, PARTS | {"norm": "final_layernorm", "head": ""}, publish=mimo2_published
    ),
    "step35": Family(
        step35,
        2,
        STEP | {"num_nextn_predict_layers": 2, "num_hidden_layers": N_LAYERS},
        PARTS | {"norm": "transformer.shared_head.norm", "head": "transformer.shared_head.output"},
        raw=True,
        chained=True,
    ),
}


def main() -> None:
    for name in sys.argv[2:] or FAMILIES:
        family, trunk = FAMILIES[name], trunks.FAMILIES[name]()
        model = family.model()
        with torch.no_grad():
            model.load_state_dict(model.state_dict() | trunk.state_dict())
        blocks = [random_block(model, i) for i in range(family.n_blocks)]
        ids = np.random.default_rng(7).integers(0, VOCAB, TOKENS).astype(np.int32)
        logits = logits_of_blocks(family, model, trunk, blocks, torch.from_numpy(ids).long())
        write(name, family, model, blocks)
        np.savez_compressed(FOLDER / f"{name}.npz", tokens=ids, logits=logits)


def random_block(model: torch.nn.Module, index: int) -> dict[str, torch.nn.Module]:
    """Return the parts of block `index` that are no layer, with random float16 numbers."""
    generator = torch.Generator().manual_seed(100 + index)
    kind = type(model.get_decoder().norm)
    eps = model.config.get_text_config().rms_norm_eps
    parts: dict[str, torch.nn.Module] = {
        part: kind(HIDDEN, eps=eps) for part in ("enorm", "hnorm", "norm")
    }
    parts["eh_proj"] = torch.nn.Linear(2 * HIDDEN, HIDDEN, bias=False)
    parts["head"] = torch.nn.Linear(HIDDEN, VOCAB, bias=False)
    for part in parts.values():
        for tensor in part.parameters():
            noise = torch.randn(tensor.shape, generator=generator)
            scale = 0.3 if tensor.dim() == 1 else tensor.shape[-1] ** -0.5
            tensor.data = (scale * noise + float(tensor.dim() == 1)).half().float()
    return parts


def logits_of_blocks(
    family: Family,
    model: torch.nn.Module,
    trunk: torch.nn.Module,
    blocks: list[dict[str, torch.nn.Module]],
    ids: torch.Tensor,
) -> np.ndarray:
    """Return the logits of each block for a text, [blocks, tokens, vocab].

    The first position has a row of zeros for the hidden row before it.
    """
    decoder = trunk.get_decoder()
    with torch.no_grad():
        e = model.get_input_embeddings()(ids)
        norm, decoder.norm = decoder.norm, Skipped()
        rows = decoder(ids[None], use_cache=False).last_hidden_state[0]
        decoder.norm = norm
        rows = rows if family.raw else norm(rows)
        own_head = bool(family.names["head"])
        found = []
        for i, parts in enumerate(blocks):
            rows = torch.cat([torch.zeros(1, HIDDEN), rows[:-1]])
            pair = torch.cat([parts["enorm"](e), parts["hnorm"](rows)], dim=1)
            out = layer(model, N_LAYERS + i, parts["eh_proj"](pair))
            normed = parts["norm"](out)
            found.append((parts["head"] if own_head else model.lm_head)(normed))
            if family.chained:
                rows = out if family.raw else normed
    return torch.stack(found).numpy()


def layer(model: torch.nn.Module, index: int, x: torch.Tensor) -> torch.Tensor:
    """Return rows x [tokens, hidden] after one layer of `model` alone."""
    decoder = model.get_decoder()
    layers, norm = decoder.layers, decoder.norm
    only = [each if i == index else Skipped() for i, each in enumerate(layers)]
    decoder.layers, decoder.norm = torch.nn.ModuleList(only), Skipped()
    try:
        return decoder(inputs_embeds=x[None], use_cache=False).last_hidden_state[0]
    finally:
        decoder.layers, decoder.norm = layers, norm


def write(
    name: str, family: Family, model: torch.nn.Module, blocks: list[dict[str, torch.nn.Module]]
) -> None:
    """Convert the published model with its blocks, and check that the layers are the fixture's."""
    published = trunks.PUBLISHED[name]

    def rename(state: State) -> State:
        state = family.publish(published.rename(state))
        stem = "model.mtp.layers.{}." if name == "mimo2" else "model.layers.{}."
        first = 0 if name == "mimo2" else N_LAYERS
        for i, parts in enumerate(blocks):
            for part, its in family.names.items():
                if its:
                    weight = parts[part].weight.detach().contiguous()
                    state[f"{stem.format(first + i)}{its}.weight"] = weight
        return state

    sizes = {"num_hidden_layers": N_LAYERS}
    changed = replace(published, config=published.config | sizes | family.config, rename=rename)
    with tempfile.TemporaryDirectory() as folder, patch.dict(trunks.PUBLISHED, {name: changed}):
        whole = Path(folder) / f"{name}.gguf"
        trunks.convert(model, whole, blocks="too")
        check_layers(whole, trunks.FOLDER / f"{name}.gguf")
        trunks.convert(model, FOLDER / f"{name}.gguf", blocks="only")


def check_layers(whole: Path, fixture: Path) -> None:
    import gguf

    tensors = {t.name: t.data for t in gguf.GGUFReader(whole).tensors}
    for tensor in gguf.GGUFReader(fixture).tensors:
        assert np.array_equal(tensors[tensor.name], tensor.data), tensor.name


if __name__ == "__main__":
    sys.path[:0] = [sys.argv[1], f"{sys.argv[1]}/gguf-py"]
    main()
