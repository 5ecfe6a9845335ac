"""OpenAI's `prediction`: text that the answer is expected to repeat.

It only makes an answer faster: steps verify drafts from it (docs/speculation.md).
"""

from __future__ import annotations

from typing import Annotated, Literal

from zinc.server.http.fields import Fields, FirstError


class TextPart(Fields):
    """A part of a prediction. Only text can be predicted."""

    type: Literal["text"]
    text: str


class Prediction(Fields):
    """The object `prediction`."""

    type: Literal["content"]
    content: str | Annotated[list[TextPart], FirstError()]

    @property
    def text(self) -> str:
        """The predicted text; its parts follow each other directly."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)
