"""The Python API: `LLM` and the results of its methods.

`llm` is the API itself. `arguments` checks its arguments, `model_text` holds tokenizer and
template, `answers` turns tokens into the text that it returns, and `scoring` scores texts.
"""

from zinc.llm.answers import Chunk, Completion, Stream
from zinc.llm.llm import LLM

__all__ = ["LLM", "Chunk", "Completion", "Stream"]
