"""Folders in which zinc and other programs keep model files.

| program       | folder                                                         |
|---------------|----------------------------------------------------------------|
| Hugging Face  | $HF_HUB_CACHE, $HF_HOME/hub, ~/.cache/huggingface/hub          |
| llama.cpp     | $LLAMA_CACHE, ~/.cache/llama.cpp (macOS: ~/Library/Caches)     |
| Ollama        | $OLLAMA_MODELS, ~/.ollama/models, /usr/share/ollama/.ollama    |
| LM Studio     | ~/.lmstudio/models, ~/.cache/lm-studio/models                  |

zinc downloads to the folders of Hugging Face and Ollama, in their layout, and reads all four.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from zinc.core.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders of one user. Any of them may not exist; the first of `ollama` is for writing."""

    hugging_face: Path
    llama_cpp: Path
    ollama: tuple[Path, ...]
    lm_studio: tuple[Path, ...]


def folders(environ: Mapping[str, str] | None = None) -> Folders:
    """Return the folders that the environment names, or their defaults."""
    env = os.environ if environ is None else environ
    home = Path(env.get("HOME") or Path.home())
    cache = Path(env.get("XDG_CACHE_HOME") or home / ".cache")

    def named(variable: str, default: Path) -> Path:
        value = env.get(variable)
        return Path(value).expanduser() if value else default

    hf_home = named("HF_HOME", cache / "huggingface")
    caches = home / "Library" / "Caches" if sys.platform == "darwin" else cache
    if "OLLAMA_MODELS" in env:
        ollama: tuple[Path, ...] = (named("OLLAMA_MODELS", home),)
    else:
        system = Path("/usr/share/ollama/.ollama/models")
        ollama = (home / ".ollama" / "models", system)
    return Folders(
        hugging_face=named("HF_HUB_CACHE", named("HUGGINGFACE_HUB_CACHE", hf_home / "hub")),
        llama_cpp=named("LLAMA_CACHE", caches / "llama.cpp"),
        ollama=ollama,
        lm_studio=(home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"),
    )
