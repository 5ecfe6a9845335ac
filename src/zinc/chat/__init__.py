"""Chat: templates that turn messages into a prompt."""

from zinc.chat.template import ChatTemplate

__all__ = ["ChatTemplate"]
