"""White space between the brackets and separators of generated JSON."""

from __future__ import annotations

from zinc.core.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Spacing:
    """Lark terminals for the brackets and separators of JSON, with their whitespace."""

    open_object: str
    close_object: str
    open_array: str
    close_array: str
    colon: str
    comma: str


# A space, or a line break with an indentation; never more, since a small model may go on writing
# blanks for ever.
_BLANK = r"( |\n[ \t]{0,24})?"
FLEXIBLE = Spacing(
    rf"/\{{{_BLANK}/", rf"/{_BLANK}\}}/", rf"/\[{_BLANK}/", rf"/{_BLANK}\]/",
    rf"/:{_BLANK}/", rf"/,{_BLANK}/",
)  # fmt: skip
# The spacing of tool calls that models are trained on.
SPACED = Spacing('"{"', '"}"', '"["', '"]"', '": "', '", "')
