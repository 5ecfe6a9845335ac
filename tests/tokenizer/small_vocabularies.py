"""Small vocabularies, made by hand, for tests that need no real model."""

from zinc.tokenizer.bytes import BYTE_OF
from zinc.tokenizer.vocabulary import TokenKind


def byte_level(*extra, pre="gpt-2", merges=(), **keys):
    """Return byte-level metadata: the 256 bytes, then `extra` as (text, TokenKind)."""
    tokens = list(BYTE_OF) + [text for text, _ in extra]
    kinds = [TokenKind.NORMAL] * 256 + [kind for _, kind in extra]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [int(kind) for kind in kinds],
        "tokenizer.ggml.merges": list(merges),
        **{f"tokenizer.ggml.{key}": value for key, value in keys.items()},
    }


def scored(pieces, *extra, **keys):
    """Return SentencePiece metadata: control tokens, 256 bytes, `pieces` {text: score}, `extra`."""
    control = [
        ("<unk>", TokenKind.UNKNOWN),
        ("<s>", TokenKind.CONTROL),
        ("</s>", TokenKind.CONTROL),
    ]
    stray = [(f"<0x{byte:02X}>", TokenKind.BYTE) for byte in range(256)]
    words = [(text, TokenKind.NORMAL) for text in pieces]
    everything = [*control, *stray, *words, *extra]
    scores = [0.0] * 259 + list(pieces.values()) + [0.0] * len(extra)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [text for text, _ in everything],
        "tokenizer.ggml.token_type": [int(kind) for _, kind in everything],
        "tokenizer.ggml.scores": scores,
        **{f"tokenizer.ggml.{key}": value for key, value in keys.items()},
    }
