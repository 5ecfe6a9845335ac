"""Tokenizers from GGUF metadata, and streaming detokenization with stop strings."""

from zinc.tokenizer.stream import StopMatcher, StreamDecoder
from zinc.tokenizer.tokenizer import Tokenizer

__all__ = ["StopMatcher", "StreamDecoder", "Tokenizer"]
