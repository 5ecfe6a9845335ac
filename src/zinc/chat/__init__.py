"""Chat templates, which turn messages into a prompt, and streaming parsers of answers.

`template` renders prompts. `messages` and `traits` adapt messages to a template. `formats.detect`
finds the chat format of a model, and `parser` turns its answers into `events`.
"""

from zinc.chat.template import ChatTemplate

__all__ = ["ChatTemplate"]
