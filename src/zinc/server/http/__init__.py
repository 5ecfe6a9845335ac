"""The HTTP layer: connections, request bodies, access checks, responses, logs, OpenAPI."""
