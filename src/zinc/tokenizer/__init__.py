"""Tokenizers from GGUF metadata: text to ids, ids to text, and ids to text as they stream."""

from zinc.tokenizer.stream import StopMatcher, StreamDecoder
from zinc.tokenizer.tokenizer import Tokenizer

__all__ = ["StopMatcher", "StreamDecoder", "Tokenizer"]
