"""Measure a model on one GPU, and divided over several by layer and by tensor.

    python benchmarks/cards.py [results.json] [--devices cuda:0,cuda:1] [--shapes qwen3-8b ...]

For each shape it writes a file with random weights to --folder. Each division runs in a process of
its own, and --rounds alternate between them. A run measures prompts and answers through the engine,
as the server runs them: the seconds of a prompt with one token of answer, and the tokens/s of an
answer after its first tokens, sampled on the device. It compares the tokens with those of one GPU.
The last line of output is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import make_model
import numpy as np

from zinc import LLM, DeviceMap, SamplingParams
from zinc.engine.request import Request
from zinc.engine.step_in_flight import common_length

BEGUN_TOKENS = 4  # of an answer, before its tokens are counted
DIVISIONS = ("one", "layer", "tensor")


def measured(path: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return the rates of a model with the division `args.run`."""
    divided = args.run != "one"
    devices = args.devices if divided else args.devices.partition(",")[0]
    with LLM(
        path,
        backend="auto" if divided else devices.partition(":")[0],
        device_map=DeviceMap(split=args.run) if divided else None,
        context=max(args.prompts) + args.decode,
        kv_dtype="f16",
        prefix_cache=False,
        speculate="off",
        batch_tokens=args.batch_tokens,
        options={"device": devices} if ":" in devices or divided else {},
    ) as llm:
        ids = np.random.default_rng(0).integers(3, llm.spec.vocab, max(args.prompts)).tolist()
        prompts = {
            n: [prompt_seconds(llm, ids[:n]) for _ in range(args.reps + 1)] for n in args.prompts
        }
        answers = [answer(llm, ids[:16], args.decode) for _ in range(args.reps + 1)]
        return {
            "devices": devices,
            "split": args.run,
            "says": llm.choice.messages,
            "program": type(llm.model.program).__name__,
            "step_tokens": llm.model.plan.max_tokens,
            "prompt_tokens_per_s": {n: [n / s for s in each[1:]] for n, each in prompts.items()},
            "decode_tokens_per_s": [rate for rate, _ in answers[1:]],
            "tokens": answers[-1][1],
        }


def prompt_seconds(llm: LLM, ids: list[int]) -> float:
    """Return the seconds of a prompt and the first token of its answer."""
    started = time.perf_counter()
    llm.generate(ids, SamplingParams(max_tokens=1, temperature=0))
    return time.perf_counter() - started


def answer(llm: LLM, ids: list[int], n: int) -> tuple[float, list[int]]:
    """Return the tokens/s of an answer of `n` tokens, and its tokens."""
    engine = llm.engine
    params = SamplingParams(max_tokens=n, temperature=0, ignore_eos=True)
    sequence = engine.submit(Request(ids, params))
    while sequence.n_generated < BEGUN_TOKENS:
        engine.step()
    before, started = sequence.n_generated, time.perf_counter()
    while sequence.finish_reason is None:
        engine.step()
    seconds = time.perf_counter() - started
    return (sequence.n_generated - before) / seconds, sequence.generated


def show(name: str, run: dict[str, Any], want: list[int]) -> None:
    rates = [f"{statistics.median(x):,.0f} in {n}" for n, x in run["prompt_tokens_per_s"].items()]
    same = common_length(run["tokens"], want)
    print(
        f"{name} {run['split']:6} prompts {', '.join(rates)} tokens, decode "
        f"{statistics.median(run['decode_tokens_per_s']):.1f} tokens/s, {same} of {len(want)} "
        f"tokens as on one GPU; {run['program']}, steps of {run['step_tokens']}"
    )
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", nargs="?", help="file for the JSON object")
    parser.add_argument("--devices", default="cuda:0,cuda:1", help="as the option of zinc")
    parser.add_argument("--shapes", nargs="+", default=["qwen3-8b"], choices=make_model.SHAPES)
    parser.add_argument("--divisions", nargs="+", default=DIVISIONS, choices=DIVISIONS)
    parser.add_argument("--prompts", nargs="+", type=int, default=[2048, 8192], help="tokens")
    parser.add_argument("--decode", type=int, default=128, help="tokens of an answer")
    parser.add_argument("--batch-tokens", type=int, help="tokens of a step (default: zinc's)")
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--type", default="q4_k_m", help="as of make_model.py")
    parser.add_argument("--folder", default="/dev/shm", help="where model files are written")
    parser.add_argument("--keep", action="store_true", help="keep the model files")
    parser.add_argument("--run", help=argparse.SUPPRESS)  # this division, in this process
    parser.add_argument("--model", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        print(json.dumps(measured(args.model, args)))
        return

    shapes: dict[str, list[dict[str, Any]]] = {}
    for name in args.shapes:
        path = Path(args.folder) / f"{name}-{args.type}.gguf"
        if not path.exists():
            make_model.write(str(path), make_model.SHAPES[name], args.type, repeat=True)
        runs = shapes[name] = []
        try:
            for division in args.divisions * args.rounds:
                child = [sys.executable, *sys.argv, "--run", division, "--model", str(path)]
                done = subprocess.run(child, stdout=subprocess.PIPE, text=True)
                if done.returncode:
                    raise SystemExit(done.returncode)
                runs.append(json.loads(done.stdout.splitlines()[-1]))
                show(name, runs[-1], runs[0]["tokens"])
        finally:
            if not args.keep:
                path.unlink()
    text = json.dumps(
        {"benchmark": " ".join(["benchmarks/cards.py", *sys.argv[1:]]), "shapes": shapes}
    )
    if args.result:
        Path(args.result).write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
