"""Typed access to `tokenizer.*` metadata, with errors that name the key and the file.

Arrays are lazy sequences of the GGUF reader or plain lists. Either is converted as a whole, since a
vocabulary has hundreds of thousands of entries.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from zinc.core.errors import ModelError

Array = Any  # a list, or the reader's lazy sequence with `to_list` and `to_numpy`


class Fields:
    """Metadata with typed getters, which return None for a missing key.

    They raise ModelError if the value has another type.
    """

    def __init__(self, metadata: Mapping[str, Any], path: str) -> None:
        self._metadata = metadata
        self.path = path

    def _wrong(self, key: str, expected: str) -> ModelError:
        found = type(self._metadata[key]).__name__
        return ModelError(
            f"{self.path} has a damaged tokenizer",
            f"the metadata key {key} holds {found}, not {expected}",
            "download or convert the file again",
        )

    def text(self, key: str) -> str | None:
        """Return a string."""
        value = self._metadata.get(key)
        if value is not None and not isinstance(value, str):
            raise self._wrong(key, "a string")
        return value

    def integer(self, key: str) -> int | None:
        """Return an integer."""
        value = self._metadata.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise self._wrong(key, "an integer")
        return int(value)

    def flag(self, key: str) -> bool | None:
        """Return a boolean."""
        value = self._metadata.get(key)
        if value is not None and not isinstance(value, bool | np.bool_):
            raise self._wrong(key, "a boolean")
        return None if value is None else bool(value)

    def _array(self, key: str, expected: str) -> Array:
        value = self._metadata.get(key)
        if value is None:
            return None
        if isinstance(value, str) or not hasattr(value, "__len__"):
            raise self._wrong(key, expected)
        return value

    def strings(self, key: str) -> list[str] | None:
        """Return an array of strings as a list."""
        value = self._array(key, "an array of strings")
        if value is None:
            return None
        items = value.to_list() if hasattr(value, "to_list") else list(value)
        if items and not all(type(item) is str for item in items):
            raise self._wrong(key, "an array of strings")
        return items

    def octets(self, key: str) -> bytes:
        """Return an array of bytes; b"" for a missing key."""
        value = self._array(key, "an array of bytes")
        if value is None:
            return b""
        numbers = value.to_numpy() if hasattr(value, "to_numpy") else np.asarray(value)
        if numbers.dtype.kind not in "iu" or (len(numbers) and numbers.dtype.itemsize != 1):
            raise self._wrong(key, "an array of bytes")
        return numbers.tobytes()

    def numbers(self, key: str, length: int) -> np.ndarray[Any, np.dtype[Any]] | None:
        """Return the first `length` numbers of an array. Raises ModelError if there are fewer."""
        value = self._array(key, "an array of numbers")
        if value is None:
            return None
        if len(value) < length:
            raise ModelError(
                f"{self.path} has a damaged tokenizer",
                f"{key} has {len(value)} entries for {length} tokens",
                "download or convert the file again",
            )
        try:
            numbers = value.to_numpy() if hasattr(value, "to_numpy") else np.asarray(value)
        except (TypeError, ValueError):
            raise self._wrong(key, "an array of numbers") from None
        if numbers.dtype.kind not in "iuf" or numbers.ndim != 1:
            raise self._wrong(key, "an array of numbers")
        return numbers[:length]
