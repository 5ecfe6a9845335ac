"""The tokenizer of RWKV, beside the published ids that test_ids.py compares with."""

from __future__ import annotations

import json
from typing import Any

import pytest
from test_ids import DATA

from zinc.chat.template import ChatTemplate
from zinc.core.errors import ModelError, TextTooLongError
from zinc.tokenizer import Tokenizer

METADATA: dict[str, Any] = json.loads((DATA / "rwkv.json").read_text())["metadata"]


def test_the_longest_token_wins_even_if_the_rest_needs_more() -> None:
    tokens = [rf"\x{byte:02x}" for byte in range(256)]
    tokens += ["ab", "abcd", "bcde", r"\n\n", r"\\n"]
    found = Tokenizer.from_metadata(
        {"tokenizer.ggml.model": "rwkv", "tokenizer.ggml.tokens": tokens}
    )
    assert found.encode("abcde") == [257, ord("e")]
    assert found.encode("abc") == [256, ord("c")]
    assert found.encode("\n\n\n\\n") == [259, 10, 260]
    assert found.decode([257, 259, 260]) == "abcd\n\n\\n"


def test_text_never_gives_a_control_token() -> None:
    found = Tokenizer.from_metadata(METADATA)
    assert 0 not in found.encode("<s>")
    assert found.encode("<s>", parse_special=True) == [0]


def test_more_tokens_than_the_limit_raise() -> None:
    with pytest.raises(TextTooLongError):
        Tokenizer.from_metadata(METADATA).encode("🚀" * 200_000, limit=1000)


def test_a_vocabulary_without_a_byte_is_refused() -> None:
    tokens = METADATA["tokenizer.ggml.tokens"][:200]
    metadata = {"tokenizer.ggml.model": "rwkv", "tokenizer.ggml.tokens": tokens}
    with pytest.raises(ModelError, match="57 bytes have no token"):
        Tokenizer.from_metadata(metadata)


def test_the_name_of_the_chat_format_stands_for_a_template() -> None:
    source = Tokenizer.from_metadata(
        METADATA | {"tokenizer.chat_template": "rwkv-world"}
    ).chat_template
    assert source is not None
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": " Hi\n"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Bye"},
    ]
    got = ChatTemplate(source).render(messages)
    assert got == "System: Be brief.\n\nUser: Hi\n\nAssistant: Hello\n\nUser: Bye\n\nAssistant:"
