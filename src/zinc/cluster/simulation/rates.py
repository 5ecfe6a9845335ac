"""The time of an engine's step, interpolated from results of `zinc bench`."""

from __future__ import annotations

import bisect
import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from zinc.core.dataclass import dataclass
from zinc.core.errors import RequestError

_FIELDS = frozenset(
    ("decode_tokens_per_s", "decode_tokens", "depth", "prefill_tokens_per_s", "prefill_tokens",
     "step_tokens", "streams")
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The time of a step by what it runs.

    rows, seconds: measured steps, by their number of tokens, without the cost of cached keys. A
    step between two of them is interpolated; a larger one than all of them takes as long per token
    as the largest. key_s: seconds for each cached key that a decoding sequence reads. pair_s:
    seconds for each pair of a prompt token and a key before it. step_tokens: most tokens of a step.
    """

    rows: tuple[int, ...]
    seconds: tuple[float, ...]
    key_s: float
    pair_s: float
    step_tokens: int

    def step_s(self, rows: int, keys: int = 0, pairs: int = 0) -> float:
        """Return the seconds of a step of `rows` tokens.

        keys: cached keys of all decoding sequences. pairs: of tokens of prompts and keys.
        """
        at = bisect.bisect_left(self.rows, rows)
        if at == len(self.rows):
            base = self.seconds[-1] * rows / self.rows[-1]
        elif at == 0:
            base = self.seconds[0]
        else:
            low, high = self.rows[at - 1 : at + 1]
            part = (rows - low) / (high - low)
            base = self.seconds[at - 1] * (1 - part) + self.seconds[at] * part
        return base + self.key_s * keys + self.pair_s * pairs


def is_report(value: object) -> bool:
    """Return whether a JSON value is a report of `zinc bench --json`."""
    return isinstance(value, Mapping) and value.keys() >= _FIELDS


def step_times(reports: Iterable[Mapping[str, Any]]) -> StepTimes:
    """Return the times of steps from reports of `zinc bench --json`.

    Reports with several --streams give the cost of rows, with several --depth that of keys, and
    with several --prefill that of long prompts. Raises RequestError if the reports lack prefill or
    decode, or do not come from `zinc bench`.
    """
    decode: dict[int, list[tuple[float, float]]] = defaultdict(list)  # streams: (depth, seconds)
    prefill: list[tuple[int, float]] = []  # (tokens, seconds per token)
    step_tokens = 0
    try:
        for report in reports:
            if speed := report["decode_tokens_per_s"]:
                depth = report["depth"] + report["decode_tokens"] / 2
                decode[report["streams"]].append((depth, report["streams"] / speed))
            if speed := report["prefill_tokens_per_s"]:
                prefill.append((report["prefill_tokens"], 1 / speed))
            step_tokens = report["step_tokens"]
    except (KeyError, TypeError):
        raise RequestError(
            "a file is not a result of `zinc bench`", "", "write one with `zinc bench MODEL --json`"
        ) from None
    if not decode or not prefill:
        raise RequestError(
            "the results of `zinc bench` lack prefill or decode",
            "both are needed",
            "run `zinc bench MODEL --json` without `--prefill 0` and `--decode 0`",
        )
    slopes = [_slope((n * depth, s) for depth, s in runs) for n, runs in decode.items()]
    key_s = max(slopes)  # 0 where all reports of as many streams have one depth
    # A prompt of n tokens has n² / 2 pairs, so the seconds of a token grow with n / 2.
    pair_s = _slope((n / 2, s) for n, s in prefill)
    points = {
        n: statistics.mean(max(0.0, s - key_s * n * depth) for depth, s in runs)
        for n, runs in decode.items()
    }
    token_s = statistics.mean(max(0.0, s - pair_s * n / 2) for n, s in prefill)
    # A report of 128 tokens says little about a step of 512.
    most = min(step_tokens, max(n for n, _ in prefill))
    points[most] = max(token_s * most, points.get(most, 0.0))
    # More rows never take less time; noise of measurements could say so.
    seconds = itertools.accumulate((points[n] for n in sorted(points)), max)
    return StepTimes(tuple(sorted(points)), tuple(seconds), key_s, pair_s, step_tokens)


def _slope(points: Iterable[tuple[float, float]]) -> float:
    """Return the slope of a line through the points, at least 0; 0 if all have the same x."""
    found = list(points)
    if len({x for x, _ in found}) < 2:
        return 0.0
    return max(0.0, statistics.linear_regression(*zip(*found, strict=True)).slope)
