"""Create the fixtures of encoders with llama.cpp's converter: random weights, and what they give.

    python -m venv /tmp/oracle && /tmp/oracle/bin/pip install torch transformers gguf
    /tmp/oracle/bin/python tests/data/make_encoder_fixtures.py LLAMA_CPP [NAME...]

LLAMA_CPP is a source tree of llama.cpp. A fixture is a GGUF file with a WordPiece tokenizer, and an
.npz file with the token ids and the pooled, normalised embeddings of `TEXTS` by transformers, and
the hidden rows of the first text. Rerankers have scores of pairs of texts in place of embeddings.
In the folder `tokenizers`, `wordpiece.npz` and `unigram.npz` hold checksums of the ids of random
texts by transformers and by SentencePiece. `unigram.gguf` has a tokenizer only.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parents[1]))

from data.encoder_modules import JinaBert, NeoBert, NomicBertMoe
from data.encoder_texts import DOCUMENTS, LETTERS, QUERY, TEXTS, checksum, random_texts
from data.make_converted_fixtures import randomise

FOLDER = Path(__file__).parent / "encoders"
ADAPTERS = Path(__file__).parent / "adapters"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = "the of and in to a is fox dog river run ##ing ##ed ##er un ##able over quick 你 好 ..."
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 96,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "attn_implementation": "eager",
}
POOLING = {
    "bert": "cls",
    "nomicbert": "mean",
    "reranker": "",
    "eurobert": "mean",
    "modernbert": "cls",
    "modernreranker": "",
    "gemmaembedding": "mean",
    "jinabert2": "mean",
    "jinabert3": "mean",
    "nomicbertmoe": "mean",
    "neobert": "cls",
}
# Those whose published models have other vocabularies.
BORROWED = ("jinabert3", "reranker", "eurobert", "modernbert", "modernreranker", "gemmaembedding")
MODERN: dict[str, Any] = {
    "num_hidden_layers": 4,
    "local_attention": 16,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    "cls_token_id": 2,
    "sep_token_id": 3,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
GEMMA: dict[str, Any] = {
    "num_hidden_layers": 6,  # the last one is global
    "intermediate_size": 32,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "query_pre_attn_scalar": 16,
    "sliding_window": 16,
    "use_bidirectional_attention": True,
    "hidden_activation": "gelu_pytorch_tanh",
    "pad_token_id": 0,
}
JINA3: dict[str, Any] = {"type_vocab_size": 1, "pad_token_id": 0, "max_position_embeddings": 97}
# The first is the adapter that is kept.
TASKS = {"retrieval.query": "Find what answers this: ", "text-matching": ""}
RANK, ALPHA = 4, 2.0
PROJECTED = 24  # width between the matrices after pooling


def vocabulary() -> list[str]:
    """Return the tokens of the fixtures: letters at the start of words and within, some words."""
    letters = [letter for letter in LETTERS if letter not in "你好"]
    found = [*SPECIAL, *letters, *(f"##{letter}" for letter in letters), *WORDS.split()]
    return list(dict.fromkeys(found))


def tokenizer(**options: Any) -> Any:
    vocab = {token: id for id, token in enumerate(vocabulary())}
    return transformers.BertTokenizer(vocab=vocab, **options)


def model(name: str) -> Any:
    sizes = SIZES | {"vocab_size": len(vocabulary())}
    if name == "nomicbert":
        config = transformers.NomicBertConfig(**sizes | {"hidden_act": "silu"})
        made = transformers.NomicBertModel(config, add_pooling_layer=False)
    elif name.startswith("modern"):
        sizes |= MODERN
        if name == "modernreranker":
            sizes |= {"num_hidden_layers": 2, "layer_types": MODERN["layer_types"][:2]}
            sizes["max_position_embeddings"] = 128
        config = transformers.ModernBertConfig(**sizes, num_labels=1)
        config.classifier_pooling = "mean"
        kind = "ModernBertForSequenceClassification" if "ranker" in name else "ModernBertModel"
        made = getattr(transformers, kind)(config)
    elif name == "gemmaembedding":
        made = transformers.Gemma3TextModel(transformers.Gemma3TextConfig(**sizes | GEMMA))
    elif name == "jinabert2":
        made = JinaBert(sizes | {"num_attention_heads": 3, "hidden_size": 48})  # not a power of 2
    elif name == "jinabert3":
        rope = {"rope_type": "default", "rope_theta": 20000.0}
        config = transformers.JinaEmbeddingsV3Config(**sizes | JINA3, rope_parameters=rope)
        made = transformers.JinaEmbeddingsV3Model(config, add_pooling_layer=False)
    elif name == "nomicbertmoe":
        made = NomicBertMoe(sizes | {"hidden_act": "gelu"})
    elif name == "neobert":
        made = NeoBert(sizes)
    elif name == "eurobert":
        heads = {"num_key_value_heads": 1, "rope_theta": 10000.0, "pad_token_id": 0}
        config = transformers.EuroBertConfig(**sizes | heads | {"hidden_act": "silu"})
        made = transformers.EuroBertModel(config)
    elif name == "reranker":
        labels = {"num_labels": 1, "pad_token_id": 0, "type_vocab_size": 1}
        labels["max_position_embeddings"] = 129  # one is before the first token
        config = transformers.XLMRobertaConfig(**sizes | labels)
        made = transformers.XLMRobertaForSequenceClassification(config)
    else:
        made = transformers.BertModel(transformers.BertConfig(**sizes), add_pooling_layer=False)
    randomise(made.eval().float())
    if name == "reranker":  # sharper attention, so that scores of documents differ
        with torch.no_grad():
            for layer in made.roberta.encoder.layer:
                layer.attention.self.query.weight *= 8
    if name == "gemmaembedding":
        with torch.no_grad():
            for key, weight in made.named_parameters():
                if "norm" in key:  # a norm multiplies by 1 + weight
                    weight -= 1
    return made


def published(name: str, made: Any) -> dict[str, Any]:
    """Return the configuration of `made` as published models have it, for the converter."""
    if name == "neobert":
        return made.sizes | {"architectures": ["NeoBERT"], "norm_eps": 1e-6}
    config: dict[str, Any] = made.config.to_dict()
    if name == "jinabert2":
        return config | {"architectures": ["JinaBertModel"]}
    if name == "jinabert3":
        return config | {
            "architectures": ["XLMRobertaModel"],
            "lora_adaptations": [*TASKS],
            "lora_rank": RANK,
            "lora_alpha": ALPHA,
            "task_instructions": TASKS,
            "rope_parameters": None,
            "rotary_emb_base": config["rope_parameters"]["rope_theta"],
        }
    if name == "reranker":
        return config | {"architectures": ["XLMRobertaForSequenceClassification"]}
    if name.startswith("modern"):
        kind = "ForSequenceClassification" if name == "modernreranker" else "Model"
        return config | {
            "architectures": [f"ModernBert{kind}"],
            "global_attn_every_n_layers": 3,
            "layer_norm_eps": config["norm_eps"],
        }
    if name == "gemmaembedding":
        return config | {"architectures": ["Gemma3TextModel"]}
    if name == "eurobert":
        del config["classifier_pooling"]  # there is no classifier
        return config | {"architectures": ["EuroBertModel"]}
    if not name.startswith("nomicbert"):
        return config | {"architectures": ["BertModel"]}
    return {
        **config,
        "architectures": ["NomicBertModel"],
        "n_positions": 8192,
        "max_trained_positions": 2048,
        "n_embd": config["hidden_size"],
        "n_inner": config["intermediate_size"],
        "n_head": config["num_attention_heads"],
        "n_layer": config["num_hidden_layers"],
        "layer_norm_epsilon": config["layer_norm_eps"],
        "activation_function": "swiglu",
        "causal": False,
        "qkv_proj_bias": False,
        "mlp_fc1_bias": False,
        "mlp_fc2_bias": False,
        "prenorm": False,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
        "rotary_emb_base": 1000.0,
        **(made.published_config() if name == "nomicbertmoe" else {}),
    }


def convert(name: str, made: Any) -> None:
    """Write the fixture `name`."""
    from conversion import get_model_class  # of llama.cpp
    from gguf import LlamaFileType

    with tempfile.TemporaryDirectory() as folder:
        if isinstance(made, JinaBert | NeoBert | NomicBertMoe):
            save_file(made.published_tensors(), f"{folder}/model.safetensors")
        elif name == "jinabert3":
            save_file(jina3_tensors(made), f"{folder}/model.safetensors")
        else:
            made.save_pretrained(folder)
        tokenizer().save_pretrained(folder)
        config = published(name, made)
        (Path(folder) / "config.json").write_text(json.dumps(config))
        if POOLING[name]:
            (Path(folder) / "1_Pooling").mkdir()
            mode = {"pooling_mode": POOLING[name]}
            (Path(folder) / "1_Pooling" / "config.json").write_text(json.dumps(mode))
            pooling = {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}
            modules = [pooling, *(save_dense(folder) if name == "gemmaembedding" else [])]
            (Path(folder) / "modules.json").write_text(json.dumps(modules))
        writer = get_model_class(config["architectures"][0])
        writer.get_vocab_base_pre = lambda self, tokenizer: "default"
        if name in BORROWED:
            writer.set_vocab = get_model_class("BertModel").set_vocab
        writer(
            Path(folder),
            LlamaFileType.MOSTLY_F16,
            FOLDER / f"{name}.gguf",
            model_name=name,
            hparams=config,
            sentence_transformers_dense_modules=name == "gemmaembedding",
        ).write()


def jina3_weights(made: Any) -> dict[str, torch.Tensor]:
    """Return the tensors of Jina Embeddings 3 under their published names."""
    names = {
        "embeddings.LayerNorm": "emb_ln",
        "layers.": "encoder.layers.",
        "self_attn.o_proj": "mixer.out_proj",
        "post_attention_layernorm": "norm1",
        "post_mlp_layernorm": "norm2",
    }
    found, stacks = {}, {}
    for name, tensor in made.state_dict().items():
        for old, new in names.items():
            name = name.replace(old, new)
        if "self_attn" in name:
            layer, kind = name.split("self_attn")[0], name.rsplit(".", 1)[1]
            stacks.setdefault(f"{layer}mixer.Wqkv.{kind}", []).append(tensor)
        else:
            found[name] = tensor
    return found | {name: torch.cat(parts) for name, parts in stacks.items()}


def jina3_factors(made: Any) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return random factors a and b of each matrix, for all tasks."""
    generator, n = torch.Generator().manual_seed(3), len(TASKS)
    found = {}
    for name, weight in jina3_weights(made).items():
        if weight.dim() == 2:
            out, cols = weight.shape
            is_table = name.startswith("embeddings")
            shapes = (
                ((n, out, RANK), (n, RANK, cols)) if is_table else ((n, RANK, cols), (n, out, RANK))
            )
            a, b = (0.3 * torch.randn(shape, generator=generator) for shape in shapes)
            found[name] = (a.half().float(), b.half().float())
    return found


def jina3_tensors(made: Any) -> dict[str, torch.Tensor]:
    """Return the tensors of a published model: matrices beside the factors of its tasks."""
    found = jina3_weights(made)
    for name, (a, b) in jina3_factors(made).items():
        stem = name.removesuffix(".weight") + ".parametrizations.weight"
        found[f"{stem}.original"] = found.pop(name)
        found |= {f"{stem}.0.lora_A": a, f"{stem}.0.lora_B": b}
    return {name: tensor.contiguous() for name, tensor in found.items()}


def merge_task(made: Any) -> None:
    """Add the change of the first task to the weights of Jina Embeddings 3."""
    with torch.no_grad():
        for name, (a, b) in jina3_factors(made).items():
            change = ALPHA / RANK * (a[0] @ b[0] if name.startswith("embeddings") else b[0] @ a[0])
            if name.startswith("embeddings"):
                getattr(made.embeddings, name.split(".")[1]).weight += change
                continue
            layer = made.layers[int(name.split(".")[2])]
            attention, parts = layer.self_attn, change.chunk(3)
            if "Wqkv" in name:
                for matrix, part in zip("qkv", parts, strict=True):
                    getattr(attention, f"{matrix}_proj").weight += part
            elif "out_proj" in name:
                attention.o_proj.weight += change
            else:
                getattr(layer.mlp, name.split(".")[4]).weight += change


def dense() -> list[torch.Tensor]:
    """Return the matrices after pooling."""
    generator = torch.Generator().manual_seed(2)
    shapes = ((PROJECTED, SIZES["hidden_size"]), (SIZES["hidden_size"], PROJECTED))
    return [torch.randn(shape, generator=generator).half().float() for shape in shapes]


def save_dense(folder: str) -> list[dict[str, str]]:
    """Write the matrices after pooling as sentence-transformers does; return their modules."""
    modules = []
    for matrix, path in zip(dense(), ("2_Dense", "3_Dense"), strict=True):
        (Path(folder) / path).mkdir()
        save_file({"linear.weight": matrix}, f"{folder}/{path}/model.safetensors")
        sizes = {"in_features": matrix.shape[1], "out_features": matrix.shape[0]}
        (Path(folder) / path / "config.json").write_text(json.dumps(sizes))
        modules.append({"type": "sentence_transformers.models.Dense", "path": path})
    return modules


def hidden(made: Any, ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        return made(torch.tensor([ids])).last_hidden_state[0].numpy()


def pooled(name: str, rows: np.ndarray) -> np.ndarray:
    row = rows[0] if POOLING[name] == "cls" else rows.mean(axis=0)
    if name == "gemmaembedding":
        for matrix in dense():
            row = matrix.numpy() @ row
    return row / np.linalg.norm(row)


def write_unigram() -> None:
    """Train a Unigram vocabulary with a small table of replacements, and store what it gives."""
    import sentencepiece
    from conversion import get_model_class
    from gguf import GGUFWriter

    rules = {0xFF01: "!", 0xE9: "e", 0xFB01: "fi", 0x3000: " ", 0x9: " ", 0xA0: " ", 0x200B: ""}
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "rules.tsv"
        table.write_text(
            "".join(
                f"{code:X}\t{' '.join(f'{ord(c):X}' for c in text)}\n"
                for code, text in rules.items()
            )
        )
        words = [text for text in random_texts(600) if text.isascii()]
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([*TEXTS[:4] * 9, *words]),
            model_prefix=f"{folder}/sentencepiece.bpe",
            model_type="unigram",
            vocab_size=200,
            character_coverage=1.0,
            normalization_rule_tsv=str(table),
            minloglevel=2,
        )
        trained = sentencepiece.SentencePieceProcessor(f"{folder}/sentencepiece.bpe.model")
        config = {"vocab_size": trained.vocab_size() + 2}
        marks = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "sep": "</s>", "pad": "<pad>"}
        names = {f"{role}_token": mark for role, mark in marks.items()}
        (Path(folder) / "config.json").write_text(json.dumps(config))
        (Path(folder) / "tokenizer_config.json").write_text(json.dumps(names))
        writer = GGUFWriter(FOLDER / "tokenizers" / "unigram.gguf", "bert")
        kind = get_model_class("XLMRobertaModel")
        converter = kind.__new__(kind)
        converter.dir_model, converter.hparams = Path(folder), config
        converter.gguf_writer, converter.model_arch = writer, None
        converter._xlmroberta_set_vocab()
        for role, id in {"bos": 0, "eos": 2, "unk": 3, "sep": 2, "pad": 1}.items():
            getattr(writer, f"add_{role}_token_id")(id)
        for add in (writer.add_add_bos_token, writer.add_add_eos_token, writer.add_add_sep_token):
            add(True)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()

    def ids(text: str) -> list[int]:
        # XLM-RoBERTa: <s>, <pad>, </s>, <unk>, then the tokens from the fourth on.
        return [3 if id == 0 else id + 1 for id in trained.encode(text)]

    np.savez_compressed(
        FOLDER / "tokenizers" / "unigram.npz", ids=[checksum(ids(text)) for text in random_texts()]
    )


def scores(made: Any) -> dict[str, np.ndarray]:
    """Return what a reranker gives for each of `DOCUMENTS` with `QUERY`."""
    ids = [tokenizer().encode(QUERY, text) for text in DOCUMENTS]
    with torch.no_grad():
        found = [made(torch.tensor([each])).logits[0, 0].item() for each in ids]
    lengths = np.array([len(each) for each in ids], np.int32)
    return {
        "tokens": np.concatenate(ids).astype(np.int32),
        "lengths": lengths,
        "scores": np.array(found, np.float32),
        "hidden": hidden(made.base_model, ids[0]),
    }


if __name__ == "__main__":
    sys.path[:0] = [sys.argv[1], f"{sys.argv[1]}/gguf-py"]
    (FOLDER / "tokenizers").mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:] or [*POOLING, "unigram"]:
        if name == "unigram":
            write_unigram()
            continue
        made = model(name)
        if not POOLING[name]:
            convert(name, made)
            np.savez_compressed(FOLDER / f"{name}.npz", **scores(made))
            continue
        ids = [tokenizer().encode(text) for text in TEXTS]
        rows = [hidden(made, each) for each in ids]
        convert(name, made)
        np.savez_compressed(
            FOLDER / f"{name}.npz",
            tokens=np.concatenate(ids).astype(np.int32),
            lengths=np.array([len(each) for each in ids], np.int32),
            hidden=rows[0],
            embeddings=np.array([pooled(name, each) for each in rows], np.float32),
        )
        if name == "jinabert3":
            kept, *others = (FOLDER / f"lora-{task}-{name}.gguf" for task in TASKS)
            kept.rename(ADAPTERS / f"{name}.gguf")
            for each in others:
                each.unlink()
            merge_task(made)
            embeddings = [pooled(name, hidden(made, each)) for each in ids]
            np.savez_compressed(
                ADAPTERS / f"{name}.npz", embeddings=np.array(embeddings, np.float32)
            )
    cased = tokenizer(do_lower_case=False)
    np.savez_compressed(
        FOLDER / "tokenizers" / "wordpiece.npz",
        uncased=[checksum(tokenizer().encode(text)) for text in random_texts()],
        cased=[checksum(cased.encode(text)) for text in random_texts()],
    )
