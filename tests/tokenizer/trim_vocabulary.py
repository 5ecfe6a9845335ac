"""Create tests/data/vocab/*.json: vocabularies trimmed to the texts below, with llama.cpp's ids.

A trimmed vocabulary keeps every token that is a substring of a text, so each text has the same
merges as with the whole one. The ids come from llama.cpp on the trimmed vocabulary
(llama-cpp-python), so the tests compare with another implementation. Run it again only to change
texts or pre-tokenizers:

    python tests/tokenizer/trim_vocabulary.py FOLDER_OF_LLAMA_CPP/models
"""

from __future__ import annotations

import ctypes
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import gguf
import llama_cpp

from zinc.formats.gguf import GGUFFile
from zinc.tokenizer import Tokenizer
from zinc.tokenizer.bytes import BYTE_OF
from zinc.tokenizer.pretokenizers import pretokenizer_names

DATA = Path(__file__).parents[1] / "data" / "vocab"
TEXTS = [
    "",
    " ",
    "   ",
    "\n",
    "\n\n\n",
    "\t\t x\r\n\r\n y \n",
    "Hello, world!",
    " Hello  World's they'LL I'VE we're DON'T 'tis",
    "camelCaseWord HTTPServer x86_64 __init__ ÄäÜ Éé ДаНет ǅ",
    "1 22 333 4444 1234567890 3.14 0x1F ½ ² Ⅷ ٣٤ १२",
    "def f(x):\n    if x <= 10:\n\treturn {'a': [x, -1]}  # ok\n\n",
    "a/b//c\\d ~/x.py?q=1&r=2#z $5 + 3^2 = |x| `y` <b>@</b> *** --- ... !?!",
    "naïve café e\u0301 a\u0308o \u0301x ñ",
    "我想在apple工作1314151天～，。、「漢字」ひらがなカタカナ 한국어 가나",
    "नमस्ते ไทย كيف مرحبا עברית কলকাতা",
    "🚀 😶\u200d🌫️ 👨\u200d👩\u200d👧 🏳️\u200d🌈 ✅",
    "a\u00a0b\u3000c\u2028d\u0085e\u2003 f\u200bg\ufeffh",
    "\x00 \x00\x00 \x1c\x7f \x0b\x0c\ue000\uffff\U0010ffff",
    "İı ſ 'ſ K's ﬁ ŉ",
    "<s> </s> <|endoftext|> <|im_start|>user\n<|im_end|> <unk> <|user|>  x<|end|>\n ▁▁ <0x0A> Ġ",
]
# The kind of tokenizer, the vocabulary that it is cut from, and the pre-tokenizers to try on it.
VOCABULARIES: dict[str, list[str]] = {
    "qwen2": pretokenizer_names(),
    "falcon": ["falcon"],
    "llama-bpe": ["llama-bpe"],
    "command-r": ["command-r"],
    "gemma-4": ["gemma4"],
    "llama-spm": [""],
    "phi-3": [""],
}
KEPT_KEYS = (
    "general.name",
    "tokenizer.ggml.model",
    "tokenizer.ggml.add_bos_token",
    "tokenizer.ggml.add_eos_token",
    "tokenizer.ggml.add_space_prefix",
)
ID_KEYS = ("bos", "eos", "eot", "unknown", "padding")


def substrings_of(texts: list[str], byte_level: bool) -> set[str]:
    """Return every substring of a text, in the spelling of the vocabulary."""
    spelling = {byte: char for char, byte in BYTE_OF.items()}
    found = set()
    for text in texts:
        spelled = " " + text
        if byte_level:
            spelled = "".join(spelling[byte] for byte in spelled.encode())
        else:
            spelled = spelled.replace(" ", "▁")
        for begin in range(len(spelled)):
            for end in range(begin + 1, min(begin + 40, len(spelled)) + 1):
                found.add(spelled[begin:end])
    return found


def trim(metadata: dict[str, Any]) -> dict[str, Any]:
    tokens = list(metadata["tokenizer.ggml.tokens"])
    types = list(metadata["tokenizer.ggml.token_type"])
    byte_level = metadata["tokenizer.ggml.model"] == "gpt2"
    wanted = substrings_of(TEXTS, byte_level)
    ids = {key: metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ID_KEYS}
    kept = [
        id
        for id, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if token in wanted
        or (byte_level and len(token) == 1)
        or kind == gguf.TokenType.BYTE
        or (kind != gguf.TokenType.NORMAL and any(token in text for text in TEXTS))
        or id in ids.values()
    ]
    names = {tokens[id] for id in kept}
    result = {key: metadata[key] for key in KEPT_KEYS if key in metadata}
    result["tokenizer.ggml.tokens"] = [tokens[id] for id in kept]
    result["tokenizer.ggml.token_type"] = [int(types[id]) for id in kept]
    if "tokenizer.ggml.scores" in metadata and not byte_level:
        scores = list(metadata["tokenizer.ggml.scores"])
        result["tokenizer.ggml.scores"] = [float(scores[id]) for id in kept]
    if "tokenizer.ggml.merges" in metadata:
        pairs = [merge.partition(" ") for merge in metadata["tokenizer.ggml.merges"]]
        result["tokenizer.ggml.merges"] = [
            f"{left} {right}"
            for left, _, right in pairs
            if left in names and right in names and left + right in names
        ]
    for key, id in ids.items():
        if id is not None:
            result[f"tokenizer.ggml.{key}_token_id"] = kept.index(id)
    return result


def write(path: Path, metadata: dict[str, Any], pre: str) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    writer.add_string("tokenizer.ggml.pre", pre)
    for key in ("context_length", "embedding_length", "block_count", "feed_forward_length"):
        writer.add_uint32(f"llama.{key}", 1)
    writer.add_uint32("llama.attention.head_count", 1)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


class Reference:
    """The tokenizer of llama.cpp for one file."""

    def __init__(self, path: Path) -> None:
        parameters = llama_cpp.llama_model_default_params()
        parameters.vocab_only = True
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
        assert self.model, f"llama.cpp does not load {path}"
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)

    def encode(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        data = text.encode()
        room = len(data) + 8
        ids = (ctypes.c_int32 * room)()
        n = llama_cpp.llama_tokenize(
            self.vocab, data, len(data), ids, room, add_special, parse_special
        )
        assert n >= 0
        return list(ids[:n])

    def end_of_generation(self) -> list[int]:
        n = llama_cpp.llama_vocab_n_tokens(self.vocab)
        return [id for id in range(n) if llama_cpp.llama_vocab_is_eog(self.vocab, id)]


def main(models: Path) -> None:
    DATA.mkdir(exist_ok=True)
    (DATA / "texts.json").write_text(json.dumps(TEXTS, indent=1) + "\n")
    for name, pretokenizers in VOCABULARIES.items():
        with GGUFFile.open(models / f"ggml-vocab-{name}.gguf") as file:
            whole = dict(file.metadata)
            metadata = trim(whole)
            full = Tokenizer.from_metadata(whole, name)
        expected: dict[str, Any] = {}
        for pre in pretokenizers:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "vocab.gguf"
                write(path, metadata, pre)
                reference = Reference(path)
            plain = [reference.encode(text, True, False) for text in TEXTS]
            parsed = [reference.encode(text, False, True) for text in TEXTS]
            found = {"plain": plain, "parsed": parsed, "eog": reference.end_of_generation()}
            # Pre-tokenizers that cut alike share one entry.
            same = next((key for key, value in expected.items() if value == found), None)
            if same is not None:
                expected[f"{same} {pre}"] = expected.pop(same)
            else:
                expected[pre] = found
            if pre == whole.get("tokenizer.ggml.pre", ""):
                tokens = metadata["tokenizer.ggml.tokens"]
                for text, ids in zip(TEXTS, plain, strict=True):
                    assert [full.text_of(id) for id in full.encode(text)] == [
                        tokens[id] for id in ids
                    ], (name, text)
        data = {"metadata": metadata, "expected": expected}
        text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
        (DATA / f"{name}.json").write_text(text + "\n")
        print(name, len(metadata["tokenizer.ggml.tokens"]), "tokens", len(text), "bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
