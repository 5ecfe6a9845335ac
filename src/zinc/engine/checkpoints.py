"""Positions in a prompt at which the recurrent state is copied.

Keys and values of any prefix can be reused, but a recurrent state only at a position where it was
copied. The next turn of a conversation contains the last user message, but rarely the text that the
template puts after it (a generation prompt, an empty reasoning block), so the end of that message
is a checkpoint. The end of the first message serves other conversations with the same system
prompt. Evenly spaced checkpoints serve prompts that were edited in the middle.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

SPACING_TOKENS = 1024
# A shorter prefix takes less time to run again than to copy.
LEAST_TOKENS = 64


def checkpoint_positions(
    ids: Sequence[int], end_tokens: Collection[int], wanted: Collection[int] = ()
) -> list[int]:
    """Return the checkpoints of a prompt, as numbers of tokens before them, in ascending order.

    end_tokens: ids of tokens that end a turn. wanted: further positions. No position lies after
    the last token.
    """
    last = len(ids) - 1
    ends = [i + 1 for i, token in enumerate(ids) if token in end_tokens and i < last]
    marks = {ends[0], ends[-1]} if ends else {last}
    marks.update(range(SPACING_TOKENS, last, SPACING_TOKENS))
    marks.update(wanted)
    return sorted(m for m in marks if LEAST_TOKENS <= m <= last)
