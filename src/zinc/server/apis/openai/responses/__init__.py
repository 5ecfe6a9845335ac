"""OpenAI's Responses API, in which an answer is a list of items."""
