"""Measure how many tokens of known answers the suffix drafter guesses.

    apt-get download pypy3-lib && dpkg-deb -x pypy3-lib_*.deb old    # Debian 12: Python 3.9
    python benchmarks/speculation.py --old old/usr/lib/pypy3.9 --new /usr/lib/python3.11

The answers are known, so no model runs: a draft counts as accepted up to its first token that the
answer does not have. --old and --new are the folders of two releases of Python's standard library,
whose text the tasks are made of. "tokens a step" is answer tokens divided by steps; "accepted" the
share of drafted tokens that were right. Draft times are CPU times, without the index of the prompt.
The last line of output is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

from speculation_tasks import add_arguments, encoded

import zinc
from zinc.core.processor import cpu_model
from zinc.engine.speculative.suffix import SuffixDrafter

GOALS = {"real edits": 5.5, "extractive summary": 4.3}  # tokens a step


@dataclass
class Count:
    """Sums over the steps of answers."""

    answers: int = 0
    prompt_tokens: int = 0
    tokens: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    expected: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: Count) -> Count:
        return Count(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def row(self) -> dict[str, Any]:
        """Return the sums and the ratios that the report shows."""
        return asdict(self) | {
            "tokens_per_step": self.tokens / self.steps,
            "accepted_share": self.accepted / max(1, self.drafted),
            "draft_ms": 1000 * self.seconds / self.steps,
        }


def simulate(drafter: SuffixDrafter, answer: list[int], most: int) -> Count:
    """Return the counts of an answer that is drafted with at most `most` tokens a step."""
    count = Count(answers=1, tokens=len(answer))
    position = 0
    while position < len(answer):
        begin = time.process_time()
        draft = drafter.draft(most)
        count.seconds += time.process_time() - begin
        accepted = 0
        for token, known in zip(draft.tokens, answer[position:], strict=False):
            if token != known:
                break
            accepted += 1
        gained = answer[position : position + accepted + 1]
        begin = time.process_time()
        drafter.accept(gained)
        count.seconds += time.process_time() - begin
        position += len(gained)
        count.steps += 1
        count.drafted += len(draft.tokens)
        count.accepted += accepted
        count.expected += draft.expected
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arguments(parser)
    parser.add_argument("--most", type=int, default=16, help="drafted tokens of a step")
    parser.add_argument("--check", action="store_true", help="fail below the goals")
    parser.add_argument("--json", type=Path, help="write the report to this file")
    args = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {}
    for kind, pairs in encoded(args).items():
        total = Count()
        for prompt, answer in pairs:
            total += simulate(SuffixDrafter(prompt), answer, args.most)
            total.prompt_tokens += len(prompt)
        rows[kind] = row = total.row()
        print(
            f"{kind:20} {row['answers']:4} answers {row['tokens']:6} tokens "
            f"{row['tokens_per_step']:5.2f} a step {row['accepted_share']:5.2f} accepted "
            f"{row['draft_ms']:6.3f} ms a draft",
            file=sys.stderr,
        )
    report = {
        "zinc": zinc.__version__,
        "cpu": cpu_model(),
        "libraries": [args.old.name, args.new.name],
        "tokenizer": Path(args.tokenizer).name,
        "most": args.most,
        "rows": rows,
    }
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))
    if args.check:
        sys.exit(any(rows[kind]["tokens_per_step"] < goal for kind, goal in GOALS.items()))


if __name__ == "__main__":
    main()
