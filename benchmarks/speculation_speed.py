"""Measure the speed of decoding with and without speculation, on answers that are known.

    python benchmarks/make_model.py qwen3-0.6b /tmp/qwen3-0.6b.gguf
    python benchmarks/speculation_speed.py --old FOLDER --new FOLDER /tmp/qwen3-0.6b.gguf

The tasks and --old and --new are those of speculation.py. The model runs and samples as usual, but
the sequence gains the known token in place of the sampled one, so a model with random weights is
fast or slow as a trained one that gives these answers. Its vocabulary must be as large as that of
--tokenizer. Each answer is decoded with and without speculation in turn, --rounds times. A ratio is
the time without divided by the time with speculation; that of a kind of task is the ratio of the
sums over its answers, median over rounds. The last line of output is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

from speculation_tasks import add_arguments, encoded

import zinc
from zinc import LLM, SamplingParams
from zinc.core.processor import cpu_model
from zinc.engine.request import Request
from zinc.engine.sampling import Sampled
from zinc.engine.sequence import Sequence, Timings
from zinc.engine.speculative.answer_store import AnswerStore

PROSE = ("new prose", "quotes in new prose")
_gain = Sequence.gain


def decode(llm: LLM, ids: list[int], answer: list[int], *, speculate: bool) -> Timings:
    """Return the timings of a request whose answer is `answer`."""
    engine = llm.engine
    if engine.speculation is not None:
        engine.speculation.store = AnswerStore()  # it may have this very answer
    params = SamplingParams(temperature=0, max_tokens=len(answer), speculate=speculate)
    sequence = engine.submit(Request(ids, params))

    def gain(s: Sequence, _: Sampled) -> str | None:
        return _gain(s, Sampled(answer[s.n_generated]))

    with patch.object(Sequence, "gain", gain):
        while sequence.finish_reason is None:
            engine.step()
    if sequence.generated != answer:
        sys.exit(f"an answer is not the known one: {sequence.finish_reason}, {sequence.error}")
    return sequence.timings()


def measure(llm: LLM, pairs: list[tuple[list[int], list[int]]], n_rounds: int) -> dict[str, Any]:
    """Return the row of the report for the tasks of one kind."""
    sums: list[dict[bool, float]] = []
    ratios: list[list[float]] = [[] for _ in pairs]
    last: list[Timings] = []
    for n in range(n_rounds):
        seconds = {False: 0.0, True: 0.0}
        last = []
        for i, (ids, answer) in enumerate(pairs):
            order = (False, True) if (n + i) % 2 else (True, False)
            times = {on: decode(llm, ids, answer, speculate=on) for on in order}
            for on in order:
                seconds[on] += times[on].generate_seconds
            ratios[i].append(times[False].generate_seconds / times[True].generate_seconds)
            last.append(times[True])
        sums.append(seconds)
    run = sum(t.generated_tokens - 1 for t in last)
    drafted, accepted = (
        sum(getattr(t, f"{x}_tokens") for t in last) for x in ("drafted", "accepted")
    )
    return {
        "answers": len(pairs),
        "tokens": run,
        "plain_s": statistics.median(x[False] for x in sums),
        "speculative_s": statistics.median(x[True] for x in sums),
        "ratio": statistics.median(x[False] / x[True] for x in sums),
        "ratios": [x[False] / x[True] for x in sums],
        "lowest_ratio_of_an_answer": min(statistics.median(each) for each in ratios),
        "tokens_per_step": run / (run - accepted),
        "drafted": drafted,
        "accepted": accepted,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="GGUF file of a model, trained or random")
    add_arguments(parser)
    parser.add_argument("--answers", type=int, default=4, help="answers of each kind of task")
    parser.add_argument("--tokens", type=int, default=256, help="the most tokens of an answer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--json", type=Path, help="write the report to this file")
    args = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {}
    # On a GPU, "auto" would not speculate: near ties may change tokens there.
    options = {"threads": args.threads, "backend": args.backend, "speculate": "suffix"}
    with LLM(args.model, context=8192, **options) as llm:
        for kind, pairs in encoded(args).items():
            chosen = [(ids, answer[: args.tokens]) for ids, answer in pairs[: args.answers]]
            rows[kind] = row = measure(llm, chosen, args.rounds)
            print(
                f"{kind:20} {row['tokens'] / row['plain_s']:7.1f} tok/s, with speculation "
                f"{row['tokens'] / row['speculative_s']:7.1f}: {row['ratio']:.2f} times "
                f"(lowest answer {row['lowest_ratio_of_an_answer']:.2f}), "
                f"{row['tokens_per_step']:.2f} tokens a step",
                file=sys.stderr,
            )
    repeating = [row for kind, row in rows.items() if kind not in PROSE]
    report = {
        "zinc": zinc.__version__,
        "cpu": cpu_model(),
        "model": Path(args.model).name,
        "backend": args.backend,
        "threads": args.threads,
        "libraries": [args.old.name, args.new.name],
        "rounds": args.rounds,
        "ratio_without_prose": sum(r["plain_s"] for r in repeating)
        / sum(r["speculative_s"] for r in repeating),
        "rows": rows,
    }
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
