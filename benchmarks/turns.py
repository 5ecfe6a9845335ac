"""Measure the prefix cache: time to the first token of the second turn against the first.

    python benchmarks/turns.py [--tokens 3000] [--reps 3] [--out FILE] [MODEL...]

The first turn is a long message. The second repeats it and adds the answer and a new message, as
every client does, so the prefix cache leaves only the new part to run. An engine without the cache
must produce the same tokens. Times are medians over conversations with different words.
`--most 0.05` exits with status 1 if a ratio is higher or tokens differ. The last line of output is
one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from pathlib import Path
from typing import Any

import zinc
from zinc import LLM, SamplingParams
from zinc.core.errors import TemplateError
from zinc.core.processor import cpu_model
from zinc.engine.sequence import Timings

WORDS = [
    "river",
    "stone",
    "harbour",
    "evening",
    "letter",
    "garden",
    "window",
    "winter",
    "captain",
    "silver",
    "forest",
    "market",
    "bridge",
    "morning",
    "story",
    "shadow",
    "valley",
    "music",
    "teacher",
    "island",
    "summer",
    "doctor",
    "engine",
    "paper",
]
ANSWER = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True)


def message(llm: LLM, n_tokens: int, seed: int) -> str:
    """Return a random text of about `n_tokens` tokens."""
    rng = random.Random(seed)
    words = [rng.choice(WORDS) for _ in range(n_tokens)]
    tokens_each = len(llm.tokenizer.encode(" ".join(words))) / n_tokens
    return " ".join(words[: round(n_tokens / tokens_each)])


def talk(llm: LLM, n_tokens: int, seed: int) -> tuple[list[int], list[Timings]]:
    """Run two turns; return the tokens of the second answer and the timings of both."""
    text, more = message(llm, n_tokens, seed), "And what happened then?"
    try:
        llm.template  # noqa: B018 - raises when there is none
    except TemplateError:  # random models have no template: build the turns from tokens
        end = sorted(llm.tokenizer.eog_ids)[:1]
        ids = [*llm.tokenizer.encode(text), *end, *llm.tokenizer.encode("\n", add_special=False)]
        first = llm.generate(ids, ANSWER)
        ids += [*first.token_ids, *end, *llm.tokenizer.encode(more, add_special=False), *end]
        second = llm.generate(ids, ANSWER)
    else:
        messages: list[dict[str, Any]] = [{"role": "user", "content": text}]
        first = llm.chat(messages, ANSWER)
        messages.append({"role": "assistant", "content": first.text})
        second = llm.chat([*messages, {"role": "user", "content": more}], ANSWER)
    return second.token_ids, [first.timings, second.timings]


def measure(model: str | None, args: argparse.Namespace) -> dict[str, Any]:
    """Return the row of the report for one model."""
    options = {"threads": args.threads, "context": args.context, "kv_dtype": args.kv_dtype}
    with LLM(model, **options) as llm:
        name = llm.path.name
        talk(llm, 200, seed=0)  # a warm-up
        cached = [talk(llm, args.tokens, seed) for seed in range(1, args.reps + 1)]
    with LLM(model, **options, prefix_cache=False) as llm:
        plain = [talk(llm, args.tokens, seed) for seed in range(1, args.reps + 1)]
    turns = [times for _, times in cached]
    ratios = [second.first_token_seconds / first.first_token_seconds for first, second in turns]
    return {
        "model": name,
        "first_turn_tokens": turns[0][0].prompt_tokens,
        "second_turn_tokens": turns[0][1].prompt_tokens,
        "second_turn_cached_tokens": turns[0][1].cached_tokens,
        "first_token_s": statistics.median(t.first_token_seconds for t, _ in turns),
        "second_turn_first_token_s": statistics.median(t.first_token_seconds for _, t in turns),
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "same_tokens": [ids for ids, _ in cached] == [ids for ids, _ in plain],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", help="GGUF files (default: the embedded model)")
    parser.add_argument("--tokens", type=int, default=3000, help="tokens of the first message")
    parser.add_argument("--reps", type=int, default=3, help="conversations for each model")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--context", type=int, default=None)
    parser.add_argument("--kv-dtype", default="auto")
    parser.add_argument("--most", type=float, help="highest allowed ratio")
    parser.add_argument("--out", help="write the report as JSON")
    args = parser.parse_args()
    rows = []
    for model in args.models or [None]:
        rows.append(row := measure(model, args))
        print(
            f"{row['model']}: {row['first_turn_tokens']} tokens {row['first_token_s']:.3f} s, "
            f"second turn {row['second_turn_first_token_s']:.4f} s ({row['ratio']:.2%}), "
            f"{'same' if row['same_tokens'] else 'DIFFERENT'} tokens without the cache",
            file=sys.stderr,
        )
    report = {
        "zinc": zinc.__version__,
        "cpu": cpu_model(),
        "reps": args.reps,
        "kv_dtype": args.kv_dtype,
        "rows": rows,
    }
    if args.out:
        Path(args.out).write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))
    if args.most is not None:
        sys.exit(any(row["ratio"] > args.most or not row["same_tokens"] for row in rows))


if __name__ == "__main__":
    main()
