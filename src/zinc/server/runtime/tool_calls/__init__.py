"""Forced tool calls: the grammar of an answer, and the check of its arguments."""
