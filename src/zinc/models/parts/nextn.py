"""NextN blocks (multi-token prediction), which follow the layers of a model in its file.

They predict further tokens for speculation (DeepSeek-AI 2024, arXiv:2412.19437, 2.2). A block reads
a token and the hidden row of the position before it, and its logits are those of the next token:

    x = eh_proj [enorm(embedding of token p) | hnorm(h[p - 1])]
    x = one layer of the model, with keys and values of its own
    h' = shared_head_norm(x),  logits of token p + 1 = head(h')

h[p - 1] is the row after the final norm of the model. To predict another token, the block runs
again on its own h' and the token it predicted. In some families (`ModelSpec.raw_nextn`), rows are
those before these norms.

Other files have a block for each further token, with keys and values of its own. The row of block d
at position p reads token p and (`ModelSpec.nextn_input`)

    PREVIOUS   the row of block d - 1 at position p - 1
    MODEL      the model's row of position p - 1 - d

The model's graph never reads the blocks. In some files they are missing although the metadata
counts them. They may lie in a file of their own, whose metadata counts the layers of the model too.
"""

from __future__ import annotations

from dataclasses import replace

from zinc.core.dataclass import dataclass
from zinc.core.errors import ModelError
from zinc.formats.gguf import GGUFArray, GGUFFile, MetadataValue, Tensor
from zinc.models.parts.attention import attention
from zinc.models.parts.decoder import Mixer, project
from zinc.models.parts.decoder import block as decoder_block
from zinc.models.parts.errors import damaged, incomplete, unsupported
from zinc.models.parts.layer import Layer, RopeTables
from zinc.models.parts.mlp import mlp
from zinc.models.parts.selection import keep_hidden, select_early
from zinc.models.parts.spec import ModelSpec, NextNInput
from zinc.models.parts.weights import Weights, block_of
from zinc.ops.graph import Graph

# Every NextN block has this tensor and no layer does. It joins embedding and hidden state.
MARK = "nextn.eh_proj.weight"
_SPECIAL = (3, 4)  # control and user-defined tokens, as in the GGUF specification
_REQUIRED = (MARK, "nextn.enorm.weight", "nextn.hnorm.weight")


@dataclass(frozen=True, slots=True)
class NextNBlock:
    """The NextN block that drafts after `depth` other drafted tokens.

    tokens: rows of the head to keep; () for all. feeds_next: another block reads its rows.
    """

    depth: int = 0
    tokens: tuple[int, ...] = ()
    feeds_next: bool = False


def nextn_depths(file: GGUFFile, spec: ModelSpec) -> int:
    """Return how many NextN blocks draft tokens: 1 if the first one drafts all of them."""
    if spec.nextn_input is NextNInput.OWN:
        return 1
    marks = (f"blk.{spec.n_layers + i}.{MARK}" in file.tensors for i in range(spec.n_nextn))
    return max(1, sum(marks))


def nextn_tensors(file: GGUFFile, spec: ModelSpec) -> list[Tensor]:
    """Return the tensors of NextN blocks, in the order of the file."""
    blocks = range(spec.n_layers, spec.n_layers + spec.n_nextn)
    return [tensor for name, tensor in file.tensors.items() if block_of(name) in blocks]


def check_nextn(file: GGUFFile, spec: ModelSpec) -> None:
    """Raise ModelError if the metadata counts a NextN block as a layer, or a layer as a block.

    Raises UnsupportedError if the file has NextN blocks only.
    """
    for name in file.tensors:
        if ".nextn." in name and (block := block_of(name)) is not None and block < spec.n_layers:
            raise damaged(
                file,
                f"its metadata says that block {block} is a layer, and it has the tensor {name}",
            )
    if not spec.n_nextn:
        return
    blocks = {block_of(name) for name in file.tensors} - {None}
    if 0 not in blocks:
        raise unsupported(
            file,
            "it has only the NextN blocks of a model, which predict further tokens",
            "name the file of the model itself",
        )
    for block in range(spec.n_layers, spec.n_layers + spec.n_nextn):
        if block in blocks and f"blk.{block}.{MARK}" not in file.tensors:
            raise damaged(
                file,
                f"its metadata says that block {block} predicts further tokens, "
                f"and it has no tensor blk.{block}.{MARK}",
            )


def join_nextn(file: GGUFFile, other: GGUFFile) -> GGUFFile:
    """Return a view of a model file with the NextN blocks of `other`, a file of these alone.

    Tensors of `other` that a model has too, such as its embedding, are left out. Raises ModelError
    if `other` is not of this model.
    """
    arch = file.str("general.architecture")
    count, own = f"{arch}.block_count", f"{arch}.nextn_predict_layers"
    n_layers = file.int(count) - file.int(own, default=0)
    n_nextn = other.int(own, default=0)
    if other.str("general.architecture") != arch or not n_nextn:
        raise _other_model(other, file, f"it has no NextN block of the architecture {arch!r}")
    if other.int(count) != n_layers + n_nextn:
        raise _other_model(
            other,
            file,
            f"it is of a model with {other.int(count) - n_nextn} layers, not {n_layers}",
        )
    width = f"{arch}.embedding_length"
    if file.int(width) != other.int(width):
        raise _other_model(
            other, file, f"its rows have {other.int(width)} columns, not {file.int(width)}"
        )
    names = {n for n in other.tensors if (block_of(n) or 0) >= n_layers}
    changes = {count: n_layers + n_nextn, own: n_nextn}
    return file.joined(other, names, changes | _by_layer(file, other, n_layers, n_nextn))


def _by_layer(
    file: GGUFFile, other: GGUFFile, n_layers: int, n_nextn: int
) -> dict[str, MetadataValue]:
    """Return the arrays of `other` that extend arrays of `file`, per layer, by the NextN blocks."""
    return {
        key: value
        for key, value in other.metadata.items()
        if isinstance(value, GGUFArray)
        and isinstance(known := file.metadata.get(key), GGUFArray)
        and (len(known), len(value)) == (n_layers, n_layers + n_nextn)
    }


def _other_model(other: GGUFFile, file: GGUFFile, why: str) -> ModelError:
    return ModelError(
        f"the NextN blocks of {other.path} are not of {file.path}",
        why,
        "put the file that was made with the model beside it",
    )


def frequent_tokens(file: GGUFFile, spec: ModelSpec, count: int) -> tuple[int, ...]:
    """Return the tokens that a trimmed head drafts: `count` frequent ones and the special ones.

    BPE vocabularies list tokens in merge order, so low ids are the most frequent ones. Returns (),
    which selects the whole vocabulary, for other tokenizers, or if the head would keep most of it.
    """
    kinds = file.metadata.get("tokenizer.ggml.token_type")
    is_bpe = file.metadata.get("tokenizer.ggml.model") == "gpt2"
    if not is_bpe or not isinstance(kinds, GGUFArray) or 2 * count > spec.vocab:
        return ()
    special = (i for i, kind in enumerate(kinds.to_list()) if count <= i and kind in _SPECIAL)
    return (*range(count), *special)


def draft_decoder(
    g: Graph,
    spec: ModelSpec,
    w: Weights,
    block: NextNBlock,
    *,
    mixer: Mixer = attention,
    like: int = -1,
) -> None:
    """Add the graph of a NextN block: its logits, and its hidden rows if those are read.

    Hidden rows are [outputs, hidden], or [tokens, hidden] if another block reads them. The host
    gives the row before each token. Embedding, final norm and head are those of the model, unless
    the block has its own. mixer: the attention of the family. like: the layer whose kind of
    attention the block has. A block without a router has a plain MLP.
    """
    index = spec.n_layers + block.depth
    own = replace(spec, attention=(*spec.attention, *[spec.attention[like]] * (block.depth + 1)))
    if f"blk.{index}.ffn_gate_inp.weight" not in w.file.tensors:
        own = replace(own, experts=None)
    layer = Layer(g, own, index, w.layer(index), RopeTables())
    _require(layer.w)
    hidden = spec.hidden
    g.at("embed")
    table, name = _own_or_shared(layer.w, "nextn.embed_tokens", w, "token_embd")
    e = g.embed(table.matrix(name, spec.vocab, hidden), scale=spec.embed_scale)
    g.at(layer.name)
    before = layer.norm(g.given_rows(hidden), "nextn.hnorm")
    x = g.concat_heads(layer.norm(e, "nextn.enorm"), before, n_heads=1)
    x = layer.linear(x, "nextn.eh_proj", hidden, 2 * hidden)
    has_mlp = any(name.startswith(f"{layer.w.prefix}ffn_") for name in w.file.tensors)
    if not has_mlp:
        layer.w.ignore(spec.mlp_norm)
    x = decoder_block(layer, x, mixer=mixer, mlp=mlp if has_mlp else None)
    g.at("head")
    final = "layer_output_norm" if layer.w.has("layer_output_norm") else "nextn.shared_head_norm"
    norm, name = _own_or_shared(layer.w, final, w, "output_norm")
    selected = g.select_rows(x)
    normed = g.rms_norm(selected, norm.vector(name, hidden), eps=spec.eps)
    g.hidden = selected if spec.raw_nextn else normed
    head, name = _own_or_shared(layer.w, "nextn.shared_head_head", w, "output", "token_embd")
    project(g, spec, head, name, normed, block.tokens)
    if block.feeds_next:
        keep_hidden(g, raw=spec.raw_nextn)
    else:
        if spec.nextn_input is not NextNInput.OWN:
            g.hidden = None
        select_early(g)
    w.check_block(index)


def _own_or_shared(
    own: Weights, name: str, shared: Weights, *shared_names: str
) -> tuple[Weights, str]:
    """Return the weights and the name of a tensor of a block, or of the model if it lacks it.

    name: in the block's `own` weights. shared_names: in the model's; the first that exists, else
    the last.
    """
    if own.has(name):
        return own, name
    return shared, next((x for x in shared_names[:-1] if shared.has(x)), shared_names[-1])


def sliding_draft_decoder(g: Graph, spec: ModelSpec, w: Weights, block: NextNBlock) -> None:
    """Add the graph of a NextN block that has the attention of the sliding layers."""
    sliding = [i for i, a in enumerate(spec.attention) if a.window]
    draft_decoder(g, spec, w, block, like=sliding[-1] if sliding else -1)


def _require(w: Weights) -> None:
    """Raise ModelError with the names of all missing tensors that make a NextN block."""
    missing = [w.prefix + name for name in _REQUIRED if w.prefix + name not in w.file.tensors]
    if missing:
        tensors = "tensors" if len(missing) > 1 else "tensor"
        raise incomplete(w.file, f"its NextN block lacks the {tensors} {', '.join(missing)}")
