"""Streaming detokenization: complete characters only, and never part of a stop string.

A token may end within a character, so bytes are held back until the character is complete or
invalid (then it becomes U+FFFD, as when the whole text is decoded at once). Text that may be the
beginning of a stop string is held back too. Stop strings are matched by an Aho-Corasick automaton,
in constant time a character whatever their number and overlap.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Iterable

from zinc.core.errors import RequestError
from zinc.tokenizer.tokenizer import Tokenizer


class StreamDecoder:
    """Decoder of token ids into text as they arrive.

    stop: strings that end the text and are not part of it; afterwards `push` and `finish` return
    nothing. If several match, the one that ends first wins, and the longest of those that end
    together. skip_special: leave out control tokens. Raises RequestError for an empty stop string.
    """

    def __init__(
        self, tokenizer: Tokenizer, stop: Iterable[str] = (), skip_special: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._matcher = StopMatcher(stop)

    @property
    def stopped(self) -> str | None:
        """Stop string that ended the text, or None."""
        return self._matcher.matched

    def push(self, id: int) -> str:
        """Return the text that became final with this token; often empty."""
        if self._skip_special and self._tokenizer.is_hidden(id):
            return ""
        return self._matcher.push(self._decoder.decode(self._tokenizer.token_bytes(id)))

    def finish(self) -> str:
        """Return the text that was held back, after the last token."""
        return self._matcher.push(self._decoder.decode(b"", final=True)) + self._matcher.finish()


class StopMatcher:
    """Search for stop strings in streamed text. It holds back text that may be the start of one.

    `matched` is the stop string that was found, or None.
    """

    def __init__(self, stop: Iterable[str]) -> None:
        self.matched: str | None = None
        self._stops = tuple(dict.fromkeys([stop] if isinstance(stop, str) else stop))
        if "" in self._stops:
            raise RequestError("a stop string is empty", "it would match before the first word")
        self._held = ""
        self._state = 0
        self._build()

    def _build(self) -> None:
        """Build the automaton of Aho and Corasick (1975).

        It is a trie in which each node links to the node of its longest proper suffix.
        """
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._fail = [0]
        self._match: list[str | None] = [None]
        for stop in self._stops:
            node = 0
            for char in stop:
                if char not in self._next[node]:
                    self._next[node][char] = len(self._next)
                    self._next.append({})
                    self._depth.append(self._depth[node] + 1)
                    self._fail.append(0)
                    self._match.append(None)
                node = self._next[node][char]
            self._match[node] = stop
        queue = deque(self._next[0].values())
        while queue:
            node = queue.popleft()
            if self._match[node] is None:
                self._match[node] = self._match[self._fail[node]]
            for char, child in self._next[node].items():
                self._fail[child] = self._step(self._fail[node], char)
                queue.append(child)

    def _step(self, node: int, char: str) -> int:
        """Return the node after reading `char` in `node`."""
        while node and char not in self._next[node]:
            node = self._fail[node]
        return self._next[node].get(char, 0)

    def push(self, text: str) -> str:
        """Add text; return the text that is final and was not returned before."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        held = self._held + text
        for position, char in enumerate(text, len(self._held) + 1):
            self._state = self._step(self._state, char)
            match = self._match[self._state]
            if match is not None:
                self.matched, self._held = match, ""
                return held[: position - len(match)]
        final = len(held) - self._depth[self._state]
        self._held = held[final:]
        return held[:final]

    def finish(self) -> str:
        """Return the text that was held back, at the end of the stream."""
        held, self._held, self._state = self._held, "", 0
        return held
