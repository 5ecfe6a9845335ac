"""Chat: from a conversation to the events of its answers."""
