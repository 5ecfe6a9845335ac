"""Special tokens in text: found before anything else is tokenized.

The longest token is looked for first, over the whole text, then the next in what is left. That is
what the files in circulation were made for; it differs from leftmost-longest only where tokens
overlap in the text. A vocabulary may have thousands of such tokens (`<unused4711>`), so they are
grouped by how they begin: a text without the beginning cannot hold the token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from zinc.core.errors import TextTooLongError

# An invisible break, put into a token's text to keep it text. A Unicode noncharacter: it is for
# internal use and stands in no document.
SHIELD = "\ufdd0"
_BEGINNING = 4
_FEW = 32
_SPACE = " \t\n\v\f\r"


class SpecialTokens:
    """A set of tokens to cut out of text. `tokens` maps text to id.

    `strip_after` are ids that swallow the whitespace that follows them.
    """

    def __init__(self, tokens: Mapping[str, int], strip_after: Iterable[int] = ()) -> None:
        self._groups: dict[str, list[str]] = {}
        for text in tokens:
            self._groups.setdefault(text[:_BEGINNING], []).append(text)
        self._ids = dict(tokens)
        self._strip_after = frozenset(strip_after)

    def _present(self, text: str) -> list[str]:
        """The tokens that occur in `text`, longest (in bytes) first."""
        present = [
            token
            for beginning, tokens in self._groups.items()
            if beginning in text
            for token in self._occurring(beginning, tokens, text)
        ]
        return sorted(present, key=lambda token: -len(token.encode()))

    def _occurring(self, beginning: str, tokens: list[str], text: str) -> list[str]:
        """Return those of the tokens with a common beginning that occur in `text`, in order."""
        if len(tokens) <= _FEW:
            return [token for token in tokens if token in text]
        # A search for each of thousands of tokens would go through a long text as often.
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
        """Cut `text` into pieces of plain text and token ids, in order. No piece is empty.

        Raises TextTooLongError when there are more than `limit` token ids.
        """
        pieces: list[str | int] = [text] if text else []
        n_found = 0
        for token in self._present(text):
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
        """Break every token in `text`, so that `split` leaves it as text."""
        text = text.replace(SHIELD, "")
        for token in self._present(text):
            text = text.replace(token, token[:1] + SHIELD + token[1:])
        return text
