"""The spelling of bytes as printable characters in vocabularies (GPT-2)."""

from __future__ import annotations


def _byte_spelling() -> dict[str, int]:
    """Return the byte of each character in GPT-2's alphabet.

    Printable Latin-1 stands for itself; the other bytes are spelled as U+0100 and following.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + position): byte for position, byte in enumerate(others)
    }


BYTE_OF = _byte_spelling()
_CHARACTERS = {byte: char for char, byte in BYTE_OF.items()}


def spelled(data: bytes) -> str:
    """Return bytes as characters of GPT-2's alphabet."""
    return data.decode("latin-1").translate(_CHARACTERS)
