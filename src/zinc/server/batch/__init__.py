"""Batches: many requests in a file, answered in a file, in the form of OpenAI's batch API.

    rows (lines of the input) → run (a few at a time through the endpoints) → journal (the output)

`zinc batch` runs one batch in its own process; /v1/batches of a server runs those of its clients.
"""
