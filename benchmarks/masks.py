"""Measure the time a JSON schema constraint adds to each decoded token.

    python benchmarks/masks.py [--tokens 200] [--pairs 9] [--out FILE] [MODEL]

Constrained and unconstrained answers of equal length alternate. The cost is the median over these
pairs of the added time per token, relative to the unconstrained time and without the first token.
It can be negative, because tokens that the schema determines are not sampled and run several to a
step. `--most 0.05` exits with status 1 if any cost exceeds 5%. The last line of output is one JSON
object.
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
from zinc.core.processor import cpu_model
from zinc.engine.request import Request

# Long answers with every kind of value.
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
# The first schema determines many tokens (property names), the second only few.
PAIRS = {"type": "object", "minProperties": 1, "additionalProperties": {"type": "string"}}
SCHEMAS: dict[str, dict[str, Any]] = {
    "named properties": {"type": "array", "items": ITEM, "minItems": 40},
    "any properties": {"type": "array", "items": PAIRS, "minItems": 100},
}
PROMPT = "Write a list of people in JSON, with their names and ages."


def run(
    llm: LLM, params: SamplingParams, schema: dict[str, Any] | None = None
) -> tuple[float, int]:
    """Return the milliseconds per token after the first, and the number of engine steps."""
    constraint = None if schema is None else llm.constraint("json_schema", schema).start()
    ids = llm.tokenizer.encode(PROMPT)  # no chat template: random models have none
    engine = llm.engine
    sequence = engine.submit(
        Request(ids, params, end_tokens=llm.tokenizer.eog_ids, constraint=constraint)
    )
    while sequence.finish_reason is None and not sequence.clock.first_token:
        engine.step()
    n_first, n_steps, begin = sequence.n_generated, 0, time.perf_counter()
    while sequence.finish_reason is None:
        engine.step()
        n_steps += 1
    seconds = time.perf_counter() - begin
    if sequence.n_generated != params.max_tokens:
        sys.exit(f"an answer ended after {sequence.n_generated} tokens: {sequence.error}")
    return 1000 * seconds / (sequence.n_generated - n_first), n_steps


def measure(llm: LLM, args: argparse.Namespace, schema: str, temperature: float) -> dict[str, Any]:
    """Return a row of the report for one schema and temperature."""
    free = SamplingParams(temperature=temperature, seed=1, max_tokens=args.tokens, ignore_eos=True)
    held = SamplingParams(temperature=temperature, seed=1, max_tokens=args.tokens)
    pairs: list[tuple[float, float]] = []
    n_steps = 0
    for i in range(args.pairs + 1):  # the first pair is a warm-up
        if i % 2 == 0:
            free_ms, _ = run(llm, free)
        held_ms, n_steps = run(llm, held, SCHEMAS[schema])
        if i % 2 == 1:
            free_ms, _ = run(llm, free)
        pairs.append((free_ms, held_ms))
    costs = [with_schema / without - 1 for without, with_schema in pairs[1:]]
    return {
        "model": llm.path.name,
        "schema": schema,
        "temperature": temperature,
        "token_ms": statistics.median(without for without, _ in pairs[1:]),
        "held_token_ms": statistics.median(with_schema for _, with_schema in pairs[1:]),
        "held_steps": n_steps,
        "cost": statistics.median(costs),
        "costs": costs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", help="GGUF files (default: the embedded model)")
    parser.add_argument("--tokens", type=int, default=200, help="tokens of each answer")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--most", type=float, help="highest allowed cost, as a share")
    parser.add_argument("--out", help="write the report as JSON")
    args = parser.parse_args()
    rows = []
    for model in args.models or [None]:
        with LLM(model, threads=args.threads, context=2048) as llm:
            rows += [measure(llm, args, schema, t) for schema in SCHEMAS for t in (0.0, 0.8)]
    for row in rows:
        print(
            f"{row['model']}, temperature {row['temperature']}, {row['schema']}: "
            f"{row['token_ms']:.3f} ms a token, {row['held_token_ms']:.3f} with the schema "
            f"({row['cost']:+.1%}), {row['held_steps']} steps",
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
