"""Where in a prompt the state of recurrent layers is worth a copy.

Keys and values of any prefix can be used again; a recurrent state only where it was copied. The
next turn of a conversation has the last user message in it, but seldom what the template put behind
it (a generation prompt, an empty reasoning block), so the end of that message is the place. The end
of the first message serves other conversations with the same system prompt, and evenly spaced
copies serve prompts that were edited in the middle.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

SPACING_TOKENS = 1024
# A shorter prefix is run again in less time than the copies take.
LEAST_TOKENS = 64


def checkpoint_positions(
    ids: Sequence[int], end_tokens: Collection[int], wanted: Collection[int] = ()
) -> list[int]:
    """Positions (tokens before it) in ascending order, none of them behind the last token.

    end_tokens: those that end a turn; `wanted` are added to what they and the spacing give.
    """
    last = len(ids) - 1
    ends = [i + 1 for i, token in enumerate(ids) if token in end_tokens and i < last]
    marks = {ends[0], ends[-1]} if ends else {last}
    marks.update(range(SPACING_TOKENS, last, SPACING_TOKENS))
    marks.update(wanted)
    return sorted(m for m in marks if LEAST_TOKENS <= m <= last)
