"""Special tokens in text, found before the rest of the text is tokenized.

The longest token is searched first in the whole text, then the next longest in the remaining text.
Files in circulation expect this order; it differs from leftmost-longest only for tokens that
overlap in the text. A vocabulary may have thousands of special tokens (`<unused4711>`), so they are
grouped by their first characters: a text without these cannot contain the token.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from zinc.core.errors import TextTooLongError

# Inserted into the text of a special token so that it is not recognised. It is a Unicode
# noncharacter, which documents do not contain.
SHIELD = "\ufdd0"
_BEGINNING = 4
_FEW = 32
_SHORT = 256
_SPACE = " \t\n\v\f\r"


class SpecialTokens:
    """Special tokens that can be found in text.

    tokens: maps the text of each token to its id. strip_after: ids after which whitespace is
    removed.
    """

    def __init__(self, tokens: Mapping[str, int], strip_after: Iterable[int] = ()) -> None:
        self._groups: dict[str, list[str]] = {}
        for text in tokens:
            self._groups.setdefault(text[:_BEGINNING], []).append(text)
        self._ids = dict(tokens)
        self._strip_after = frozenset(strip_after)
        ordered = [token for group in self._groups.values() for token in group]
        ordered.sort(key=_n_bytes_down)
        self._order = {token: place for place, token in enumerate(ordered)}
        self._lengths = {
            beginning: sorted({len(token) for token in group}, reverse=True)
            for beginning, group in self._groups.items()
        }
        firsts = sorted({re.escape(text[:1]) for text in tokens})
        self._first = re.compile(f"[{''.join(firsts)}]" if firsts else r"(?!)")

    def _present(self, text: str) -> list[str]:
        """Return the tokens that occur in `text`, longest (in bytes) first."""
        present = [
            token
            for beginning, tokens in self._groups.items()
            if beginning in text
            for token in self._occurring(beginning, tokens, text)
        ]
        return sorted(present, key=_n_bytes_down)

    def _occurring(self, beginning: str, tokens: list[str], text: str) -> list[str]:
        """Return those of `tokens` that occur in `text`; all start with `beginning`."""
        if len(tokens) <= _FEW:
            return [token for token in tokens if token in text]
        # Search for the common beginning once, rather than for each of thousands of tokens.
        lengths = sorted({len(token) for token in tokens})
        wanted, found = set(tokens), set[str]()
        at = text.find(beginning)
        while at >= 0 and wanted:
            hits = {text[at : at + n] for n in lengths} & wanted
            found |= hits
            wanted -= hits
            at = text.find(beginning, at + 1)
        return [token for token in tokens if token in found]

    def split(self, text: str, limit: int | None = None) -> list[str | int]:
        """Split `text` into pieces of plain text, none of them empty, and token ids.

        Raises TextTooLongError if there are more than `limit` token ids.
        """
        present = self._present(text)
        if len(present) <= _FEW or self._strip_after:
            return self._cut(text, present, limit)
        pieces: list[str | int] = []
        parts: list[str] = []  # plain text since the last token
        plain, n_found = 0, 0
        for begin, end in self._clusters(text):
            parts.append(text[plain:begin])
            cluster = text[begin:end]
            id = self._ids.get(cluster)
            for piece in self._cut(cluster, self._within(cluster)) if id is None else [id]:
                if isinstance(piece, str):
                    parts.append(piece)
                    continue
                if before := "".join(parts):
                    pieces.append(before)
                parts.clear()
                pieces.append(piece)
                n_found += 1
            plain = end
            if limit is not None and n_found > limit:
                raise TextTooLongError(n_found, limit)
        if rest := "".join((*parts, text[plain:])):
            pieces.append(rest)
        return pieces

    def _cut(self, text: str, present: Iterable[str], limit: int | None = None) -> list[str | int]:
        """Split `text` at each of the `present` tokens, in their order."""
        pieces: list[str | int] = [text] if text else []
        n_found = 0
        for token in present:
            id = self._ids[token]
            cut: list[str | int] = []
            for piece in pieces:
                if isinstance(piece, int) or token not in piece:
                    cut.append(piece)
                    continue
                if limit is not None:
                    n_found += piece.count(token)
                    if n_found > limit:
                        raise TextTooLongError(n_found, limit)
                head, *rest = piece.split(token)
                if head:
                    cut.append(head)
                for plain in rest:
                    if id in self._strip_after:
                        plain = plain.lstrip(_SPACE)
                    cut.append(id)
                    if plain:
                        cut.append(plain)
            pieces = cut
        return pieces

    def shield(self, text: str) -> str:
        """Insert SHIELD into every token in `text`, so that `split` does not find it."""
        text = text.replace(SHIELD, "")
        present = self._present(text)
        if len(present) <= _FEW:
            return _broken(text, present)
        parts: list[str] = []
        plain = 0
        for begin, end in self._clusters(text):
            cluster = text[begin:end]
            parts += (text[plain:begin], _broken(cluster, self._within(cluster)))
            plain = end
        return "".join((*parts, text[plain:]))

    def _clusters(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of the parts of `text` that overlapping tokens cover.

        These parts can be split independently. For a text with thousands of different tokens, this
        takes a thousandth of the time.
        """
        begin = end = -1
        for found in self._first.finditer(text):
            at = found.start()
            longest = self._longest_at(text, at)
            if not longest:
                continue
            if at >= end:
                if end > 0:
                    yield begin, end
                begin = at
            end = max(end, at + longest)
        if end > 0:
            yield begin, end

    def _within(self, cluster: str) -> list[str]:
        """Return the tokens that occur in a short text, longest (in bytes) first."""
        if len(cluster) > _SHORT:
            return self._present(cluster)
        found = {
            token
            for at in range(len(cluster))
            for length in (
                *self._lengths.get(cluster[at : at + _BEGINNING], ()),
                *range(1, _BEGINNING),
            )
            if (token := cluster[at : at + length]) in self._order
        }
        return sorted(found, key=self._order.__getitem__)

    def _longest_at(self, text: str, at: int) -> int:
        """Return the length of the longest token at position `at`, in characters, or 0."""
        for length in self._lengths.get(text[at : at + _BEGINNING], ()):
            if text[at : at + length] in self._ids:
                return length
        for length in range(_BEGINNING - 1, 0, -1):
            if text[at : at + length] in self._ids:
                return length
        return 0


def _n_bytes_down(token: str) -> int:
    return -len(token.encode())


def _broken(text: str, tokens: Iterable[str]) -> str:
    """Return `text` with SHIELD after the first character of each token."""
    for token in tokens:
        text = text.replace(token, token[:1] + SHIELD + token[1:])
    return text
