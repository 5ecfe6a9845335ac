"""Measure the sampler chains on random logits, in milliseconds per token.

    python benchmarks/sampling.py [--vocab 151936] [--reps 300]

A token costs one `sample` and one `accept`. `default` is the default chain; `default + penalties`
adds repetition, presence and frequency penalties over 64 tokens. Chains without top-k show that the
vocabulary is never sorted. The last line of output is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zinc.engine.sampling import Sampler, SamplingParams
from zinc.engine.sampling.allowed import Allowed, Words

PENALTIES: dict[str, Any] = {
    "repeat_penalty": 1.1,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.2,
}
CHAINS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "default": {},
    "default + penalties": PENALTIES,
    "default + penalties, dry, xtc": PENALTIES | {"dry_multiplier": 0.8, "xtc_probability": 0.5},
    "default + 20 logprobs": {"logprobs": 20},
    "min-p alone": {"top_k": 0, "top_p": 1.0},
    "top-p alone": {"top_k": 0, "min_p": 0.0},
    "typical-p alone": {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 0.9},
    "top-n-sigma alone": {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "top_n_sigma": 1.0},
    "mirostat": {"mirostat": 2},
    "temperature alone": {"top_k": 0, "top_p": 1.0, "min_p": 0.0},
}
PROMPT_TOKENS = 4096


class HalfAllowed:
    """A constraint that allows a random half of the tokens (`Allowed`)."""

    def __init__(self, random: np.random.Generator, n_vocab: int) -> None:
        bits = random.integers(0, 2, 32 * -(-n_vocab // 32), dtype=np.uint8)
        bits[n_vocab:] = 0
        self._allowed, self._mask = bits, np.packbits(bits, bitorder="little").view(np.uint32)

    def forced(self) -> list[int]:
        return []

    def allows(self, token: int) -> bool:
        return bool(self._allowed[token])

    def mask(self) -> Words:
        return self._mask


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocab", type=int, default=151_936, help="entries of a row of logits")
    parser.add_argument("--reps", type=int, default=300, help="tokens drawn for each chain")
    arguments = parser.parse_args()

    reps: int = arguments.reps
    random = np.random.default_rng(0)
    # Mostly unlikely tokens and 40 likely ones: an entropy of about 3 nats, as in prose.
    rows = random.normal(0, 2.5, (8, arguments.vocab)).astype(np.float32)
    for row in rows:
        row[random.integers(0, arguments.vocab, 40)] += np.linspace(8, 18, 40, dtype=np.float32)
    prompt = random.integers(0, arguments.vocab, PROMPT_TOKENS).tolist()
    half = HalfAllowed(random, arguments.vocab)

    medians_ms = {}
    for name, settings in CHAINS.items():
        medians_ms[name] = measure(SamplingParams(seed=1, **settings), rows, prompt, reps)
    medians_ms["default + mask"] = measure(SamplingParams(seed=1), rows, prompt, reps, half)
    for name, median_ms in medians_ms.items():
        print(f"{name:32}{median_ms:8.3f} ms")
    print(json.dumps({"vocab": arguments.vocab, "median_ms": medians_ms}))


def measure(
    params: SamplingParams,
    rows: NDArray[np.float32],
    prompt: list[int],
    reps: int,
    allowed: Allowed | None = None,
) -> float:
    """Return the median milliseconds of `sample` and `accept` over `reps` tokens."""
    sampler = Sampler(params, rows.shape[1])
    sampler.accept_prompt(prompt)
    times_ms = []
    for step in range(reps):
        begin = time.perf_counter()
        sampler.accept(sampler.sample(rows[step % len(rows)], allowed).token)
        times_ms.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times_ms)


if __name__ == "__main__":
    main()
