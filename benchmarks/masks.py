"""What it costs to hold an answer to a JSON schema: the time of a token, with and without a mask.

    python benchmarks/masks.py [--tokens 200] [--pairs 9] [--out FILE] [MODEL]

An answer to a schema and a free one of as many tokens run in turn; the cost is the median over the
pairs of what the constraint adds to the median time of a token, as a part of that without. Masks
are computed while the forward pass runs, so what is left is to wait for a late one and to apply
it. `--most 0.05` fails when it costs more. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import zinc
from zinc import LLM, SamplingParams
from zinc.cli.machine import cpu_model

# An answer that is long, and of every kind of value.
ITEM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 2},
        "married": {"type": "boolean"},
        "height": {"type": "number"},
    },
    "required": ["name", "age", "tags", "married", "height"],
    "additionalProperties": False,
}
SCHEMA: dict[str, Any] = {"type": "array", "items": ITEM, "minItems": 40}
PROMPT = "Write a list of people in JSON, with their names and ages."


def step_times_ms(llm: LLM, params: SamplingParams, constrained: bool) -> list[float]:
    """Of every token of an answer but the first."""
    constraint = llm.constraint("json_schema", SCHEMA) if constrained else None
    ids = llm.tokenizer.encode(PROMPT)  # a template is of no matter, and random weights have none
    engine = llm.engine
    sequence = engine.submit(ids, params, end_tokens=llm.tokenizer.eog_ids, constraint=constraint)
    times_ms = []
    while sequence.finish_reason is None:
        begin = time.perf_counter()
        engine.step()
        if sequence.n_generated > 1:
            times_ms.append(1000 * (time.perf_counter() - begin))
    if sequence.n_generated != params.max_tokens:
        sys.exit(f"an answer ended after {sequence.n_generated} tokens: {sequence.error}")
    return times_ms


def measure(llm: LLM, args: argparse.Namespace, temperature: float) -> dict[str, Any]:
    """A row of the report: milliseconds a token, and what a mask adds to them."""
    free = SamplingParams(temperature=temperature, seed=1, max_tokens=args.tokens, ignore_eos=True)
    held = SamplingParams(temperature=temperature, seed=1, max_tokens=args.tokens)
    pairs: list[tuple[float, float]] = []
    for i in range(args.pairs + 1):  # the first is a warm-up
        order = (False, True) if i % 2 == 0 else (True, False)
        times = {c: statistics.median(step_times_ms(llm, held if c else free, c)) for c in order}
        pairs.append((times[False], times[True]))
    costs = [with_mask / without - 1 for without, with_mask in pairs[1:]]
    return {
        "model": llm.path.name,
        "temperature": temperature,
        "token_ms": statistics.median(without for without, _ in pairs[1:]),
        "masked_token_ms": statistics.median(with_mask for _, with_mask in pairs[1:]),
        "cost": statistics.median(costs),
        "costs": costs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", help="GGUF files; default, the embedded model")
    parser.add_argument("--tokens", type=int, default=200, help="of an answer")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--most", type=float, help="fail when a mask costs more of a token's time")
    parser.add_argument("--out", help="write the report as JSON")
    args = parser.parse_args()
    rows = []
    for model in args.models or [None]:
        with LLM(model, threads=args.threads, context=2048) as llm:
            rows += [measure(llm, args, temperature) for temperature in (0.0, 0.8)]
    for row in rows:
        print(
            f"{row['model']}, temperature {row['temperature']}: {row['token_ms']:.3f} ms a token, "
            f"{row['masked_token_ms']:.3f} with a mask ({row['cost']:+.1%})",
            file=sys.stderr,
        )
    report = {
        "zinc": zinc.__version__,
        "cpu": cpu_model(),
        "threads": args.threads,
        "tokens": args.tokens,
        "pairs": args.pairs,
        "rows": rows,
    }
    if args.out:
        Path(args.out).write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))
    if args.most is not None:
        sys.exit(any(row["cost"] > args.most for row in rows))


if __name__ == "__main__":
    main()
