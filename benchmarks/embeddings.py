"""Compare embeddings by zinc and llama.cpp, and many texts in a request with one, on the CPU.

    python benchmarks/embeddings.py --llama-bin FOLDER --out benchmarks/results/NAME.json
    python benchmarks/embeddings.py --llama-bin FOLDER --cpu-time --out benchmarks/results/NAME.json
    python benchmarks/embeddings.py --server --out benchmarks/results/NAME.json

The model has the shape of BERT base (110 million parameters) and random weights, which is written
for each of `--types`. FOLDER holds llama-embedding; its time is that from the log line of its first
batch to its end, without tokenization. zinc's time is that of `LLM.embed`, with tokenization and
pooling. Rounds alternate between the two. "single" embeds the texts one by one.

`--cpu-time` compares the CPU time of one thread, which other processes hardly change: that of zinc
for four batches of 512 tokens, and that of llama-embedding for four batches less that for one,
which leaves out loading.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import zinc
from zinc.core.processor import cpu_model
from zinc.formats.gguf_writer import GGUFWriter
from zinc.formats.metadata import ValueType
from zinc.quant.blocks import GGMLType
from zinc.quant.encode import encode

LAYERS, HIDDEN, FFN, HEADS, CONTEXT, VOCAB = 12, 768, 3072, 12, 512, 30522
# (texts, tokens of each with its two markers)
SHAPES = ((64, 16), (64, 64), (32, 128), (8, 512))
SERVED_TOKENS = (4, 8, 16, 64)
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def write_model(path: Path, type: GGMLType) -> None:
    """Write BERT base with random matrices of `type`."""
    rng = np.random.default_rng(0)

    def words(i: int) -> str:
        return "▁w" + "".join(chr(97 + int(digit)) for digit in str(i))

    with GGUFWriter(path) as w:
        w.add("general.architecture", "bert")
        w.add("general.name", f"random BERT base {type.name}")
        for key, value in (
            ("block_count", LAYERS),
            ("context_length", CONTEXT),
            ("embedding_length", HIDDEN),
            ("feed_forward_length", FFN),
            ("attention.head_count", HEADS),
            ("attention.layer_norm_epsilon", 1e-12),
            ("attention.causal", False),
            ("pooling_type", 1),
        ):
            kind = ValueType.UINT32 if isinstance(value, int) and value is not False else None
            w.add(f"bert.{key}", value, None if isinstance(value, bool) else kind)
        w.add("tokenizer.ggml.model", "bert")
        w.add("tokenizer.ggml.pre", "default")
        tokens = SPECIAL + [words(i) for i in range(VOCAB - len(SPECIAL))]
        w.add("tokenizer.ggml.tokens", tokens)
        kinds = [3] * len(SPECIAL) + [1] * (VOCAB - len(SPECIAL))
        w.add("tokenizer.ggml.token_type", kinds, ValueType.INT32)
        w.add("tokenizer.ggml.token_type_count", 2, ValueType.UINT32)
        roles = {
            "padding": 0,
            "unknown": 1,
            "cls": 2,
            "bos": 2,
            "seperator": 3,
            "eos": 3,
            "mask": 4,
        }
        for role, id in roles.items():
            w.add(f"tokenizer.ggml.{role}_token_id", id, ValueType.UINT32)

        def add(name: str, shape: tuple[int, ...], kind: GGMLType, mean: float = 0.0) -> None:
            scale = 0.02 if len(shape) > 1 else 0.1
            values = (mean + scale * rng.standard_normal(shape)).astype(np.float32)
            w.add_tensor(name, encode(values, kind), kind, shape)

        add("token_embd.weight", (VOCAB, HIDDEN), type)
        add("token_types.weight", (2, HIDDEN), GGMLType.F32)
        add("position_embd.weight", (CONTEXT, HIDDEN), GGMLType.F32)
        for name in ("token_embd_norm", *_norms()):
            add(f"{name}.weight", (HIDDEN,), GGMLType.F32, 1.0)
            add(f"{name}.bias", (HIDDEN,), GGMLType.F32)
        for i in range(LAYERS):
            for name, rows, cols in (
                *((f"attn_{x}", HIDDEN, HIDDEN) for x in ("q", "k", "v", "output")),
                ("ffn_up", FFN, HIDDEN),
                ("ffn_down", HIDDEN, FFN),
            ):
                add(f"blk.{i}.{name}.weight", (rows, cols), type)
                add(f"blk.{i}.{name}.bias", (rows,), GGMLType.F32)


def _norms() -> Iterator[str]:
    for i in range(LAYERS):
        yield from (f"blk.{i}.attn_output_norm", f"blk.{i}.layer_output_norm")


def texts_of(count: int, n_tokens: int) -> list[str]:
    """Return texts of words that are one token each."""
    rng = np.random.default_rng(n_tokens)
    ids = rng.integers(0, VOCAB - len(SPECIAL), (count, n_tokens - 2))
    return [
        " ".join("w" + "".join(chr(97 + int(d)) for d in str(i)) for i in row)
        for row in ids.tolist()
    ]


def llama_seconds(args: argparse.Namespace, model: Path, prompts: Path, n_tokens: int) -> float:
    """Return the seconds of llama-embedding for a file of texts, a line each, in batches of 512.

    Larger batches are slower: llama.cpp scores every pair of tokens of a batch, and masks those of
    different texts.
    """
    command = [
        *(f"{args.llama_bin}/llama-embedding", "-m", str(model), "-f", str(prompts)),
        *("-t", str(args.threads), "-c", "512", "-b", "512", "-ub", "512", "-ngl", "0"),
        *("--embd-output-format", "array", "-lv", "4"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    batches = re.findall(r"^([\d.]+) I batch_decode: n_tokens = (\d+),", done.stderr, re.MULTILINE)
    ends = re.findall(r"^([\d.]+) I llama_perf_context_print: +load", done.stderr, re.MULTILINE)
    n_read = sum(int(n) for _, n in batches)
    assert (n_read, len(ends)) == (n_tokens, 1), f"llama-embedding read {n_read} tokens"
    return _log_seconds(ends[0]) - _log_seconds(batches[0][0])


def _log_seconds(stamp: str) -> float:
    """Return the seconds of a log's time stamp, minutes.seconds.milliseconds.microseconds."""
    minutes, whole, milli, micro = map(int, stamp.split("."))
    return 60 * minutes + whole + milli / 1e3 + micro / 1e6


def seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measure(args: argparse.Namespace, type: GGMLType, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a row of the report for each shape."""
    model = folder / f"{type.name}.gguf"
    if not model.exists():
        write_model(model, type)
    flops = 2 * LAYERS * (4 * HIDDEN * HIDDEN + 2 * HIDDEN * FFN)
    with zinc.LLM(model, backend="cpu", threads=args.threads) as llm:
        for count, n_tokens in SHAPES:
            texts = texts_of(count, n_tokens)
            prompts = folder / "prompts.txt"
            prompts.write_text("\n".join(texts))
            llm.embed(texts)
            runs: dict[str, list[float]] = {"batch": [], "single": [], "llama": []}
            for _ in range(args.rounds):
                runs["batch"].append(seconds(lambda texts=texts: llm.embed(texts)))
                runs["llama"].append(llama_seconds(args, model, prompts, count * n_tokens))
                if n_tokens <= 128:
                    some = texts[:16]
                    once = seconds(lambda some=some: [llm.embed(text) for text in some])
                    runs["single"].append(once * count / len(some))
            median = {name: statistics.median(found) for name, found in runs.items() if found}
            ratio = statistics.median(
                b / a for a, b in zip(runs["batch"], runs["llama"], strict=True)
            )
            row: dict[str, Any] = {
                "type": type.name,
                "texts": count,
                "tokens": n_tokens,
                "tokens_per_s": round(count * n_tokens / median["batch"]),
                "llama_tokens_per_s": round(count * n_tokens / median["llama"]),
                "ratio": round(ratio, 2),
                "tflops": round(count * n_tokens * flops / median["batch"] / 1e12, 3),
                "runs_s": {name: [round(x, 4) for x in found] for name, found in runs.items()},
            }
            if "single" in median:
                row["single_tokens_per_s"] = round(count * n_tokens / median["single"])
                row["batch_over_single"] = round(median["single"] / median["batch"], 2)
            print(json.dumps(row), flush=True)
            yield row


def measure_cpu_time(
    args: argparse.Namespace, type: GGMLType, folder: Path
) -> Iterator[dict[str, Any]]:
    """Yield a row of CPU times of one thread, in seconds for 512 tokens, for each text length."""
    model = folder / f"{type.name}.gguf"
    if not model.exists():
        write_model(model, type)

    def llama(texts: list[str]) -> float:
        prompts = folder / "prompts.txt"
        prompts.write_text("\n".join(texts))
        command = [f"{args.llama_bin}/llama-embedding", "-m", str(model), "-f", str(prompts)]
        command += ["-t", "1", "-c", "512", "-b", "512", "-ub", "512", "-ngl", "0", "--no-warmup"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        subprocess.run(command, capture_output=True, check=True)
        return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before

    with zinc.LLM(model, backend="cpu", threads=1) as llm:
        for _, n_tokens in SHAPES:
            count = 512 // n_tokens
            texts = texts_of(4 * count, n_tokens)
            llm.embed(texts)
            ours, theirs = [], []
            for _ in range(args.rounds):
                start = time.process_time()
                llm.embed(texts)
                ours.append((time.process_time() - start) / 4)
                theirs.append((llama(texts) - llama(texts[:count])) / 3)
            row = {
                "type": type.name,
                "tokens": n_tokens,
                "ratio": round(statistics.median(theirs) / statistics.median(ours), 2),
                "zinc_s": [round(x, 3) for x in ours],
                "llama_s": [round(x, 3) for x in theirs],
            }
            print(json.dumps(row), flush=True)
            yield row


def measure_server(args: argparse.Namespace, type: GGMLType, folder: Path) -> dict[str, Any]:
    """Return times over HTTP, in ms: a request with 64 texts, and 64 requests with one each.

    "computed" is the time of `LLM.embed` for one text: the rest of a request is HTTP, JSON and the
    queue.
    """
    model = folder / f"{type.name}.gguf"
    if not model.exists():
        write_model(model, type)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "zinc", "serve", str(model), "--port", str(port)]
    rows = []
    with zinc.LLM(model, backend="cpu", threads=args.threads) as llm:
        own = {}
        for n_tokens in SERVED_TOKENS:
            texts = texts_of(64, n_tokens)
            llm.embed(texts[0])
            own[n_tokens] = seconds(lambda texts=texts: [llm.embed(text) for text in texts]) / 64
    server = subprocess.Popen([*command, "--threads", str(args.threads)], stderr=subprocess.DEVNULL)
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port)

        def post(texts: list[str]) -> None:
            body = json.dumps({"input": texts, "encoding_format": "base64"})
            connection.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            answer.read()

        for _ in range(100):
            try:
                connection.request("GET", "/health")
                answer = connection.getresponse()
                answer.read()
                if answer.status == 200:
                    break
            except OSError:
                connection.close()
            time.sleep(0.2)
        for n_tokens in SERVED_TOKENS:
            texts = texts_of(64, n_tokens)
            pairs = []
            for _ in range(args.rounds):
                together = seconds(lambda texts=texts: post(texts))
                apart = seconds(lambda texts=texts: [post([text]) for text in texts])
                pairs.append((together, apart))
            together, apart = (statistics.median(each) for each in zip(*pairs, strict=True))
            row = {
                "tokens": n_tokens,
                "one_request_ms": round(1e3 * together, 1),
                "64_requests_ms": round(1e3 * apart, 1),
                "ratio": round(statistics.median(b / a for a, b in pairs), 2),
                "request_ms": round(1e3 * apart / 64, 2),
                "computed_ms": round(1e3 * own[n_tokens], 2),
            }
            print(json.dumps(row), flush=True)
            rows.append(row)
    finally:
        server.terminate()
        server.wait()
    return {"type": type.name, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--llama-bin", help="compare with llama-embedding in this folder")
    parser.add_argument("--server", action="store_true", help="measure requests over HTTP instead")
    parser.add_argument("--cpu-time", action="store_true", help="compare CPU times of one thread")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--types", default="F16,Q8_0")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="keep the models here")
    parser.add_argument("--llama-build", default="")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = args.folder or Path(made)
        types = [GGMLType[name] for name in args.types.split(",")]
        if args.server:
            rows = [measure_server(args, type, folder) for type in types]
        else:
            compare = measure_cpu_time if args.cpu_time else measure
            rows = [row for type in types for row in compare(args, type, folder)]
    report = {
        "model": "BERT base, random weights",
        "cpu": cpu_model(),
        "threads": 1 if args.cpu_time else args.threads,
        "llama_build": args.llama_build,
        "rows": rows,
    }
    if args.out is not None:
        args.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
