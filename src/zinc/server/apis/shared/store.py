"""Stored responses, which later requests refer to by `previous_response_id`.

They are kept in memory. The oldest are dropped when there are too many or they take too much
memory. A response is visible only to the API key that created it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from zinc.core.dataclass import dataclass
from zinc.server.errors import ApiError
from zinc.server.http.responses import encode_json


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response as it was sent, with its input items and its conversation.

    messages: the conversation in the form of OpenAI's chat API; ends with the answer. owner: the
    API key that created it, "" on a server without keys.
    """

    response: Mapping[str, Any]
    input: list[dict[str, Any]]
    messages: list[dict[str, Any]]
    n_bytes: int
    owner: str


class ResponseStore:
    """Stored responses by id, at most `max_responses` with at most `max_bytes` of JSON."""

    def __init__(self, max_responses: int = 1000, max_bytes: int = 64 << 20) -> None:
        self._max_responses, self._max_bytes = max_responses, max_bytes
        self._responses: OrderedDict[str, StoredResponse] = OrderedDict()
        self._n_bytes = 0

    def __len__(self) -> int:
        return len(self._responses)

    def put(
        self,
        response: Mapping[str, Any],
        input: list[dict[str, Any]],
        messages: list[dict[str, Any]],
        owner: str = "",
    ) -> None:
        """Store a response; drop the oldest ones beyond the limits."""
        n_bytes = len(encode_json([response, input, messages]))
        self._responses[response["id"]] = StoredResponse(response, input, messages, n_bytes, owner)
        self._n_bytes += n_bytes
        while len(self._responses) > self._max_responses or self._n_bytes > self._max_bytes:
            _, oldest = self._responses.popitem(last=False)
            self._n_bytes -= oldest.n_bytes

    def get(self, id: str, owner: str = "", param: str | None = None) -> StoredResponse:
        """Return the stored response `id` of `owner`.

        Raises ApiError if there is none: 400 if the id is in the request field `param`, else 404.
        """
        found = self._responses.get(id)
        if found is None or found.owner != owner:
            raise ApiError(
                404 if param is None else 400,
                f"there is no response {id[:80]!r}",
                "it was never stored, or it has been dropped since",
                "send the whole conversation",
                code="response_not_found" if param is None else "previous_response_not_found",
                param=param,
            )
        return found

    def delete(self, id: str, owner: str = "") -> None:
        """Delete a stored response of `owner`. Raises ApiError 404."""
        self._n_bytes -= self.get(id, owner).n_bytes
        del self._responses[id]
