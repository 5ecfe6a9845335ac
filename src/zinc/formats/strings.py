"""Arrays of strings in a GGUF header: a 64-bit length and the bytes of each string in turn.

The arrays of a tokenizer have hundreds of thousands of strings, so numpy finds most lengths instead
of a loop in Python: a length below 256 is one byte other than 0 before seven zeros. Text may
contain such bytes too, so only those at the end of the previous string count.
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

read_u64 = struct.Struct("<Q").unpack_from

_WINDOW = 1 << 18  # bytes that numpy looks at together
_SHORT_RUN = 16  # strings; a loop over fewer is faster than a search
_MOST_STEPS = 256  # of a loop between two searches


def find_strings(data: bytes, start: int, count: int) -> tuple[NDArray[np.int64], int]:
    """Return the positions of the lengths of `count` strings, and the end of the last one.

    start: position of the first length. There are fewer positions if `data` ends before a length
    does. A string may end past `data`.
    """
    found: list[NDArray[np.int64]] = []
    left, position = count, start
    while left and position + 8 <= len(data):
        runs, position = _find_in_window(data, position, left)
        found += runs
        left -= sum(map(len, runs))
    return np.concatenate(found) if found else np.empty(0, np.int64), position


def _find_in_window(data: bytes, start: int, count: int) -> tuple[list[NDArray[np.int64]], int]:
    """Return runs of positions, at least one, of up to `count` lengths in a window at `start`.

    Also returns the end of the last string.
    """
    window = np.frombuffer(data, np.uint8, min(_WINDOW, len(data) - start), start)
    lengths = _short_lengths(window)
    ends = lengths + 8 + window[lengths]  # of the strings with these lengths
    # The last length of each run of strings that follow one another.
    last = np.append(np.flatnonzero(ends[:-1] != lengths[1:]), len(lengths) - 1)
    runs: list[NDArray[np.int64]] = []
    at, n_found, steps = 0, 0, 1
    while n_found < count and at + 8 <= len(window):
        first = stop = int(np.searchsorted(lengths, at))
        if first < len(lengths) and lengths[first] == at:
            stop = min(int(last[np.searchsorted(last, first)]) + 1, first + count - n_found)
        if stop - first >= _SHORT_RUN:
            run = lengths[first:stop]
            at = int(ends[stop - 1])
            steps = 1
        else:
            walked: list[int] = []
            while len(walked) < min(steps, count - n_found) and at + 8 <= len(window):
                walked.append(at)
                at += 8 + int(read_u64(data, start + at)[0])
            run = np.array(walked, np.int64)
            steps = min(2 * steps, _MOST_STEPS)
        runs.append(start + run)
        n_found += len(run)
    return runs, start + at


def _short_lengths(window: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the positions of bytes other than 0 that seven zeros follow."""
    zeros = window == 0
    for step in (1, 2, 3):  # 2, 4 and then 7 zeros from each position on
        zeros = zeros[:-step] & zeros[step:]
    before = np.flatnonzero(zeros[1:])
    found: NDArray[np.int64] = before[window[before] != 0]
    return found


def decode_strings(data: bytes, start: int, count: int) -> list[str]:
    """Return `count` strings as text. Invalid UTF-8 becomes U+FFFD.

    start: as for `find_strings`, which must find all of them.
    """
    positions, end = find_strings(data, start, count)
    if count == 0:
        return []
    positions -= start
    joined = np.frombuffer(data, np.uint8, end - start, start).copy()
    kept = np.ones(len(joined), np.bool_)
    for i in range(1, 8):
        kept[positions + i] = False
    joined[positions] = 0  # the first byte of a length separates two strings
    texts = joined[kept][1:].tobytes().decode("utf-8", "replace").split("\0")
    if len(texts) == count:
        return texts
    # Some string contains a zero.
    stops = np.append(positions[1:], end - start) + start
    pairs = zip((positions + start + 8).tolist(), stops.tolist(), strict=True)
    return [str(data[first:stop], "utf-8", "replace") for first, stop in pairs]
