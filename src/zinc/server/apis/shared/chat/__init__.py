"""Chat: render a conversation, start the answers of the model, and read them as events."""
