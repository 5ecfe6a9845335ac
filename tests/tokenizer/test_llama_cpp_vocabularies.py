"""Token ids equal those that llama.cpp's own tests expect, on whole vocabularies.

The vocabularies are too large for this repository. Set ZINC_TEST_VOCABS to the folder `models` of a
llama.cpp checkout, which has `ggml-vocab-NAME.gguf` with `.inp` and `.out` files.
"""

import os
from pathlib import Path

import pytest

from zinc.tokenizer import Tokenizer

FOLDER = os.environ.get("ZINC_TEST_VOCABS", "")
NAMES = [
    "bert-bge",
    "command-r",
    "deepseek-coder",
    "deepseek-llm",
    "falcon",
    "gemma-4",
    "gpt-2",
    "llama-bpe",
]
NAMES += ["llama-spm", "mpt", "phi-3", "qwen2", "qwen35", "refact", "starcoder"]
SEPARATOR = "\n__ggml_vocab_test__\n"


@pytest.mark.skipif(not FOLDER, reason="ZINC_TEST_VOCABS does not name llama.cpp's models folder")
@pytest.mark.parametrize("name", NAMES)
def test_ids_equal_the_expected_ones(name):
    path = Path(FOLDER) / f"ggml-vocab-{name}.gguf"
    tokenizer = Tokenizer.from_gguf(path)
    texts = path.with_suffix(".gguf.inp").read_bytes().decode().split(SEPARATOR)
    lines = path.with_suffix(".gguf.out").read_text().splitlines()
    assert len(lines) >= len(texts) - 1 >= 40
    for text, line in zip(texts, lines, strict=False):
        assert tokenizer.encode(text, add_special=False) == [int(id) for id in line.split()], text
