"""Create tests/data/vocab/rwkv.json: RWKV World trimmed to some texts, with the published ids.

The ids come from the tokenizer of PyPI's package `rwkv`, on the trimmed vocabulary:

    python tests/tokenizer/trim_world.py
"""

from __future__ import annotations

import ast
import json
import re
import tempfile
from pathlib import Path

import rwkv
from rwkv.rwkv_tokenizer import TRIE_TOKENIZER

DATA = Path(__file__).parents[1] / "data" / "vocab"
TEXTS = json.loads((DATA / "texts.json").read_text())
BOS = "<s>"


def trimmed(path: Path) -> dict[int, bytes]:
    """Return the single bytes and the tokens that are substrings of a text, by their new ids."""
    kept = []
    for line in path.read_text("utf-8").splitlines():
        token = ast.literal_eval(line.split(" ", 1)[1].rsplit(" ", 1)[0])
        token = token.encode() if isinstance(token, str) else token
        if len(token) == 1 or any(token in text.encode() for text in TEXTS):
            kept.append(token)
    return dict(enumerate(kept, start=1))


def main() -> None:
    folder = Path(rwkv.__file__).parent if rwkv.__file__ else Path(next(iter(rwkv.__path__)))
    tokens = trimmed(folder / "rwkv_vocab_v20230424.txt")
    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
        file.writelines(f"{id} {token!r} {len(token)}\n" for id, token in tokens.items())
        file.flush()
        reference = TRIE_TOKENIZER(file.name)

    def parsed(text: str) -> list[int]:
        ids = []
        for part in re.split(f"({re.escape(BOS)})", text):
            ids += [0] if part == BOS else reference.encode(part)
        return ids

    end_of_turn = next(id for id, token in tokens.items() if token == b"\n\n")
    metadata = {
        "tokenizer.ggml.model": "rwkv",
        "tokenizer.ggml.tokens": [BOS, *(repr(token)[2:-1] for token in tokens.values())],
        "tokenizer.ggml.token_type": [3, *[1] * len(tokens)],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.eot_token_id": end_of_turn,
    }
    expected = {
        "plain": [reference.encode(text) for text in TEXTS],
        "parsed": [parsed(text) for text in TEXTS],
        "eog": [0, end_of_turn],
    }
    data = {"metadata": metadata, "expected": {"": expected}}
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    (DATA / "rwkv.json").write_text(text + "\n")
    print(len(tokens), "tokens", len(text), "bytes")


if __name__ == "__main__":
    main()
