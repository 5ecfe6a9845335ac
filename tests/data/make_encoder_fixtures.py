"""Create the fixtures of encoders with llama.cpp's converter: random weights, and what they give.

    python -m venv /tmp/oracle && /tmp/oracle/bin/pip install torch transformers gguf
    /tmp/oracle/bin/python tests/data/make_encoder_fixtures.py LLAMA_CPP [NAME...]

LLAMA_CPP is a source tree of llama.cpp. A fixture is a GGUF file with a WordPiece tokenizer, and an
.npz file with the token ids and the pooled, normalised embeddings of `TEXTS` by transformers, and
the hidden rows of the first text. `reranker` has scores of pairs of texts in place of embeddings.
`wordpiece.npz` holds checksums of the ids of random texts.
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

sys.path.insert(0, str(Path(__file__).parents[1]))

from data.encoder_texts import DOCUMENTS, LETTERS, QUERY, TEXTS, checksum, random_texts
from data.make_converted_fixtures import randomise

FOLDER = Path(__file__).parent / "encoders"
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
POOLING = {"bert": "cls", "nomicbert": "mean", "reranker": ""}


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
    return made


def published(name: str, made: Any) -> dict[str, Any]:
    """Return the configuration of `made` as published models have it, for the converter."""
    config: dict[str, Any] = made.config.to_dict()
    if name == "reranker":
        return config | {"architectures": ["XLMRobertaForSequenceClassification"]}
    if name != "nomicbert":
        return config | {"architectures": ["BertModel"]}
    return config | {
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
    }


def convert(name: str, made: Any) -> None:
    """Write the fixture `name`."""
    from conversion import get_model_class  # of llama.cpp
    from gguf import LlamaFileType

    with tempfile.TemporaryDirectory() as folder:
        made.save_pretrained(folder)
        tokenizer().save_pretrained(folder)
        config = published(name, made)
        (Path(folder) / "config.json").write_text(json.dumps(config))
        if POOLING[name]:
            (Path(folder) / "1_Pooling").mkdir()
            mode = {"pooling_mode": POOLING[name]}
            (Path(folder) / "1_Pooling" / "config.json").write_text(json.dumps(mode))
            pooling = {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}
            (Path(folder) / "modules.json").write_text(json.dumps([pooling]))
        writer = get_model_class(config["architectures"][0])
        writer.get_vocab_base_pre = lambda self, tokenizer: "default"
        if name == "reranker":  # published ones have SentencePiece vocabularies
            writer.set_vocab = get_model_class("BertModel").set_vocab
        writer(
            Path(folder),
            LlamaFileType.MOSTLY_F16,
            FOLDER / f"{name}.gguf",
            model_name=name,
            hparams=config,
        ).write()


def hidden(made: Any, ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        return made(torch.tensor([ids])).last_hidden_state[0].numpy()


def pooled(rows: np.ndarray, how: str) -> np.ndarray:
    row = rows[0] if how == "cls" else rows.mean(axis=0)
    return row / np.linalg.norm(row)


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
        "hidden": hidden(made.roberta, ids[0]),
    }


if __name__ == "__main__":
    sys.path[:0] = [sys.argv[1], f"{sys.argv[1]}/gguf-py"]
    FOLDER.mkdir(exist_ok=True)
    for name in sys.argv[2:] or POOLING:
        made = model(name)
        if name == "reranker":
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
            embeddings=np.array([pooled(each, POOLING[name]) for each in rows], np.float32),
        )
    cased = tokenizer(do_lower_case=False)
    np.savez_compressed(
        FOLDER / "wordpiece.npz",
        uncased=[checksum(tokenizer().encode(text)) for text in random_texts()],
        cased=[checksum(cased.encode(text)) for text in random_texts()],
    )
