"""Chat: templates that turn messages into a prompt, and parsers that take answers apart.

`template` renders; `messages` and `traits` fit messages to a template; `formats.detect` finds the
format of a model, `parser` reads its answers into `events`, `reasoning` limits how long it thinks.
"""

from zinc.chat.template import ChatTemplate

__all__ = ["ChatTemplate"]
