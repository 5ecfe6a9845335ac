"""Errors for model files that zinc cannot load."""

from __future__ import annotations

from zinc.core.errors import ModelError, UnsupportedError
from zinc.formats.gguf import GGUFFile


def damaged(file: GGUFFile, why: str) -> ModelError:
    """Return the error for metadata and tensors that contradict each other."""
    return ModelError(
        f"cannot load {file.path}",
        why,
        "the file is damaged or converted wrongly; download or convert it again",
    )


def incomplete(file: GGUFFile, why: str) -> ModelError:
    """Return the error for a missing tensor or metadata key."""
    return ModelError(
        f"cannot load {file.path}", why, "the file is incomplete; download or convert it again"
    )


def missing_key(file: GGUFFile, key: str) -> ModelError:
    """Return the error for a missing metadata key whose default would change the result."""
    return incomplete(file, f"it has no metadata key {key}")


def unsupported(
    file: GGUFFile, why: str, hint: str = "use another model, or a newer zinc"
) -> UnsupportedError:
    """Return the error for a valid file that zinc has no code for."""
    return UnsupportedError(f"cannot load {file.path}", why, hint)
