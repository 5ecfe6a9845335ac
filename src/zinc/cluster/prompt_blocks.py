"""Digests of the text of prompts, by which a router finds the replica that has a prefix cached.

The text is cut into blocks of `BLOCK_BYTES`. Each block's digest covers all blocks before it, like
the digests of the prefix cache. Text instead of tokens is hashed, because the router then needs
neither the tokenizer nor the chat template of a model. A conversation only grows at its end, so the
first blocks of a turn are those of the turn before.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

BLOCK_BYTES = 256
DIGEST_BYTES = 8
MAX_TEXT_BYTES = 1 << 21  # of a prompt; text beyond does not influence routing
# Fields of all APIs that come before the messages in a rendered prompt, and then the messages.
_FIELDS = ("tools", "functions", "system", "instructions", "messages", "input", "prompt")


def request_fields(body: bytes) -> dict[str, Any]:
    """Return the fields of a JSON request body; none if it is not an object."""
    try:
        fields = json.loads(body) if body else None
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def prompt_blocks(
    fields: Mapping[str, Any], namespace: bytes = b"", *, block_bytes: int = BLOCK_BYTES
) -> bytes:
    """Return the digests of the prompt in a request, `DIGEST_BYTES` for each full block.

    namespace: prompts share digests only within it, as they share the prefix cache. block_bytes:
    size of a block of text. Returns b"" for `fields` without a prompt.
    """
    text = b"".join(_text(fields))[:MAX_TEXT_BYTES]
    owner = repr((fields.get("model"), fields.get("cache_salt"))).encode("utf-8", "replace")
    parent = hashlib.blake2b(namespace + owner, digest_size=DIGEST_BYTES).digest()
    digests = []
    for start in range(0, len(text) - block_bytes + 1, block_bytes):
        block = text[start : start + block_bytes]
        parent = hashlib.blake2b(parent + block, digest_size=DIGEST_BYTES).digest()
        digests.append(parent)
    return b"".join(digests)


def _text(fields: Mapping[str, Any]) -> Iterator[bytes]:
    for name in _FIELDS:
        value = fields.get(name)
        items = value if isinstance(value, list) else [] if value is None else [value]
        for item in items:
            text = item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)
            yield text.encode("utf-8", "replace")


def split(digests: bytes) -> list[bytes]:
    """Return the digests of a string of digests."""
    return [digests[i : i + DIGEST_BYTES] for i in range(0, len(digests), DIGEST_BYTES)]
