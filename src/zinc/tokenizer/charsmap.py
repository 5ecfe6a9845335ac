"""SentencePiece's table of replacements, by which text is normalised (`precompiled_charsmap`).

    u32 size of the trie in bytes | trie | replacements, each ended by a zero byte

The trie is a double array (Darts-clone, https://github.com/s-yata/darts-clone) of u32 units over
UTF-8 bytes; the value of a key is the offset of its replacement. Its nodes are shared, so that
50,000 units have 200,000 keys: they are looked up where a text needs them, and results for single
characters are cached.
"""

from __future__ import annotations

import re

import numpy as np

from zinc.core.errors import ModelError

_LONGEST_KEY = 32  # characters; those of SentencePiece's own tables have at most 18
_CACHED = 1 << 16


class CharacterMap:
    """Replacements of character sequences; the longest match at a position applies.

    data: the table, b"" for none. Raises ModelError, which names `path`, if it is damaged.
    """

    def __init__(self, data: bytes, path: str) -> None:
        n_bytes = int.from_bytes(data[:4], "little")
        if data and (n_bytes % 4 or not 0 < n_bytes <= len(data) - 4):
            raise _damaged(path)
        self._path = path
        self._units: list[int] = np.frombuffer(data[4 : 4 + n_bytes], "<u4").tolist()
        self._strings = data[4 + n_bytes :]
        # Replacement of a character that begins no longer key; the character itself without one.
        self._single: dict[str, str] = {}
        self._places = self._find_places()

    def apply(self, text: str) -> str:
        """Return `text` with all replacements."""
        if not self._units:
            return text
        parts: list[str] = []
        at = 0
        while found := self._places.search(text, at):
            start = found.start()
            parts.append(text[at:start])
            char = text[start]
            at = start + 1
            replacement = self._single.get(char)
            if replacement is None:
                replacement, length = self._longest(text[start : start + _LONGEST_KEY])
                at = start + length
            parts.append(replacement)
        return "".join(parts) + text[at:]

    def _find_places(self) -> re.Pattern[str]:
        """Return a pattern of the characters at which keys may begin.

        A printable ASCII character counts only if a key of ASCII characters begins with it, or if a
        character outside ASCII follows.
        """
        begins = [chr(c) for c in range(0x20, 0x7F) if self._units and self._begins_in_ascii(c)]
        others = f"|[{''.join(map(re.escape, begins))}]" if begins else ""
        return re.compile(rf"[^ -~]{others}|[ -~](?=[^\x00-\x7f])")

    def _begins_in_ascii(self, char: int) -> bool:
        node = self._child(self._offset(0), char)
        if node is None:
            return False
        has_value, after = node
        return has_value or any(self._child(after, c) is not None for c in range(1, 0x80))

    def _longest(self, text: str) -> tuple[str, int]:
        """Return what replaces the beginning of `text`, and its length in characters."""
        node, best, length = self._offset(0), text[0], 1
        for n, char in enumerate(text, 1):
            for byte in char.encode():
                found = self._child(node, byte)
                if found is None:
                    break
                has_value, node = found
            else:
                if has_value:
                    best, length = self._string(node), n
                if n == 1 and not any(self._child(node, c) for c in range(1, 256)):
                    self._remember(char, best)
                    break
                continue
            if n == 1:
                self._remember(char, char)
            break
        return best, length

    def _remember(self, char: str, replacement: str) -> None:
        if len(self._single) < _CACHED:
            self._single[char] = replacement

    def _offset(self, at: int) -> int:
        """Return the place of the children of unit `at`, before their labels are applied."""
        unit = self._units[at]
        return at ^ (unit >> 10 << ((unit & (1 << 9)) >> 6))

    def _child(self, node: int, byte: int) -> tuple[bool, int] | None:
        """Return whether the child `byte` of a node has a value, and its own children's place."""
        at = node ^ byte
        if at >= len(self._units) or self._units[at] & 0x8000_00FF != byte:
            return None
        return bool(self._units[at] >> 8 & 1), self._offset(at)

    def _string(self, node: int) -> str:
        """Return the replacement that belongs to the value at `node`."""
        start = self._units[node] & 0x7FFF_FFFF if node < len(self._units) else -1
        end = self._strings.find(b"\0", start) if 0 <= start < len(self._strings) else -1
        if end < 0:
            raise _damaged(self._path)
        return self._strings[start:end].decode(errors="replace")


def _damaged(path: str) -> ModelError:
    return ModelError(
        f"{path} has a damaged tokenizer",
        "tokenizer.ggml.precompiled_charsmap is not a table of replacements",
        "download or convert the file again",
    )
