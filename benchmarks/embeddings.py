"""Compare embeddings by zinc and llama.cpp, and many texts in a request with one, on the CPU.

    python benchmarks/embeddings.py --llama-bin FOLDER --out benchmarks/results/NAME.json
    python benchmarks/embeddings.py --llama-bin FOLDER --cpu-time --out benchmarks/results/NAME.json
    python benchmarks/embeddings.py --server --out benchmarks/results/NAME.json

The model has the shape of BERT base (110 million parameters) or another `--shape`, and random
weights of each of `--types`. FOLDER holds llama-embedding; its time is that from the log line of
its first batch to its end, without tokenization. zinc's time is that of `LLM.embed`, with
tokenization and pooling. Rounds alternate between the two. "single" embeds the texts one by one.

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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import openai

import zinc
from zinc.core.processor import cpu_model
from zinc.formats.gguf_writer import GGUFWriter
from zinc.formats.metadata import ValueType
from zinc.quant.blocks import GGMLType
from zinc.quant.encode import encode

CONTEXT, VOCAB, HEADS = 512, 30522, 12
# (texts, tokens of each with its two markers)
BATCHES = ((64, 16), (64, 64), (32, 128), (8, 512))
SERVED_TEXTS = 64
SERVED_TOKENS = (4, 8, 16, 32, 64)
Row = dict[str, Any]
T = TypeVar("T")

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@dataclass(frozen=True)
class Shape:
    """Sizes of a BERT encoder."""

    layers: int
    hidden: int
    ffn: int

    @property
    def flops(self) -> int:
        """Operations of the products for one token."""
        return 2 * self.layers * (4 * self.hidden * self.hidden + 2 * self.hidden * self.ffn)


SHAPES = {
    "bert-base": Shape(12, 768, 3072),
    "minilm": Shape(6, 384, 1536),  # all-MiniLM-L6-v2
    "small": Shape(12, 384, 1536),  # bge-small, e5-small
}


def model_file(args: argparse.Namespace, folder: Path, type: GGMLType) -> Path:
    """Return the file of the model in `folder`, which is written if it does not exist."""
    path = folder / f"{args.shape}-{type.name}.gguf"
    if not path.exists():
        write_model(path, args.shape, type)
    return path


def write_model(path: Path, name: str, type: GGMLType) -> None:
    """Write a BERT encoder of the shape `name` with random matrices of `type`."""
    shape = SHAPES[name]
    hidden, ffn = shape.hidden, shape.ffn
    rng = np.random.default_rng(0)

    def words(i: int) -> str:
        return "▁w" + "".join(chr(97 + int(digit)) for digit in str(i))

    with GGUFWriter(path) as w:
        w.add("general.architecture", "bert")
        w.add("general.name", f"random {name} {type.name}")
        for key, value in (
            ("block_count", shape.layers),
            ("context_length", CONTEXT),
            ("embedding_length", hidden),
            ("feed_forward_length", ffn),
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

        add("token_embd.weight", (VOCAB, hidden), type)
        add("token_types.weight", (2, hidden), GGMLType.F32)
        add("position_embd.weight", (CONTEXT, hidden), GGMLType.F32)
        for name in ("token_embd_norm", *_norms(shape.layers)):
            add(f"{name}.weight", (hidden,), GGMLType.F32, 1.0)
            add(f"{name}.bias", (hidden,), GGMLType.F32)
        for i in range(shape.layers):
            for name, rows, cols in (
                *((f"attn_{x}", hidden, hidden) for x in ("q", "k", "v", "output")),
                ("ffn_up", ffn, hidden),
                ("ffn_down", hidden, ffn),
            ):
                add(f"blk.{i}.{name}.weight", (rows, cols), type)
                add(f"blk.{i}.{name}.bias", (rows,), GGMLType.F32)


def _norms(layers: int) -> Iterator[str]:
    for i in range(layers):
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


def one_by_one(act: Callable[[T], object], each: Iterable[T]) -> None:
    for item in each:
        act(item)


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measure(args: argparse.Namespace, type: GGMLType, folder: Path) -> Iterator[Row]:
    """Yield a row of the report for each shape."""
    model = model_file(args, folder, type)
    flops = SHAPES[args.shape].flops
    with zinc.LLM(model, backend="cpu", threads=args.threads) as llm:
        for count, n_tokens in BATCHES:
            texts = texts_of(count, n_tokens)
            prompts = folder / "prompts.txt"
            prompts.write_text("\n".join(texts))
            llm.embed(texts)
            runs: dict[str, list[float]] = {"batch": [], "single": [], "llama": []}
            for _ in range(args.rounds):
                runs["batch"].append(seconds(partial(llm.embed, texts)))
                runs["llama"].append(llama_seconds(args, model, prompts, count * n_tokens))
                if n_tokens <= 128:
                    some = texts[:16]
                    once = seconds(partial(one_by_one, llm.embed, some))
                    runs["single"].append(once * count / len(some))
            median = {name: statistics.median(found) for name, found in runs.items() if found}
            ratio = statistics.median(
                b / a for a, b in zip(runs["batch"], runs["llama"], strict=True)
            )
            row: Row = {
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


def measure_cpu_time(args: argparse.Namespace, type: GGMLType, folder: Path) -> Iterator[Row]:
    """Yield a row of CPU times of one thread, in seconds for 512 tokens, for each text length."""
    model = model_file(args, folder, type)

    def llama(texts: list[str]) -> float:
        prompts = folder / "prompts.txt"
        prompts.write_text("\n".join(texts))
        command = [f"{args.llama_bin}/llama-embedding", "-m", str(model), "-f", str(prompts)]
        command += ["-t", "1", "-c", "512", "-b", "512", "-ub", "512", "-ngl", "0", "--no-warmup"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        subprocess.run(command, capture_output=True, check=True)
        return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before

    with zinc.LLM(model, backend="cpu", threads=1) as llm:
        for _, n_tokens in BATCHES:
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


def measure_server(args: argparse.Namespace, type: GGMLType, folder: Path) -> Iterator[Row]:
    """Yield times of 64 texts over HTTP and by `LLM.embed`, in ms, for each text length.

    one_request: a request with all texts. requests: one text a request, one after another.
    concurrent: the same requests sent at once over a connection each. one_request_floats: a request
    with all texts whose embeddings are JSON numbers, not base64. client_one_request,
    client_requests: as the first two, with the client of the package `openai`. embed, embed_single:
    by `LLM.embed`, all texts and one after another, without a server.
    """
    model = model_file(args, folder, type)
    rows: dict[int, Row] = {}
    with zinc.LLM(model, backend="cpu", threads=args.threads) as llm:
        for n_tokens in SERVED_TOKENS:
            texts = texts_of(SERVED_TEXTS, n_tokens)
            llm.embed(texts)
            runs: dict[str, Callable[[], object]] = {
                "embed": partial(llm.embed, texts),
                "embed_single": partial(one_by_one, llm.embed, texts),
            }
            rows[n_tokens] = {"type": type.name, "tokens": n_tokens} | fastest(runs, args.rounds)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "zinc", "serve", str(model), "--port", str(port)]
    server = subprocess.Popen([*command, "--threads", str(args.threads)], stderr=subprocess.DEVNULL)
    try:
        connections = [http.client.HTTPConnection("127.0.0.1", port) for _ in range(SERVED_TEXTS)]
        wait_until_loaded(connections[0])
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none")

        def send(
            connection: http.client.HTTPConnection, texts: list[str], form: str = "base64"
        ) -> None:
            body = json.dumps({"input": texts, "encoding_format": form})
            connection.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"})

        def receive(connection: http.client.HTTPConnection) -> None:
            answer = connection.getresponse()
            body = answer.read()
            assert answer.status == 200, body

        def together(texts: list[str], form: str = "base64") -> None:
            send(connections[0], texts, form)
            receive(connections[0])

        def by_client(texts: list[str]) -> None:
            found = client.embeddings.create(model=model.stem, input=texts).data
            assert len(found) == len(texts)

        def at_once(texts: list[str]) -> None:
            for connection, text in zip(connections, texts, strict=True):
                send(connection, [text])
            for connection in connections:
                receive(connection)

        for n_tokens, row in rows.items():
            texts = texts_of(SERVED_TEXTS, n_tokens)
            runs = {
                "one_request": partial(together, texts),
                "requests": partial(one_by_one, together, [[text] for text in texts]),
                "concurrent": partial(at_once, texts),
                "one_request_floats": partial(together, texts, "float"),
                "client_one_request": partial(by_client, texts),
                "client_requests": partial(one_by_one, by_client, [[text] for text in texts]),
            }
            for run in runs.values():
                run()
            row |= fastest(runs, args.rounds)
            row["ratio"] = round(row["requests_ms"] / row["one_request_ms"], 2)
            row["client_ratio"] = round(row["client_requests_ms"] / row["client_one_request_ms"], 2)
            row["concurrent_ratio"] = round(row["requests_ms"] / row["concurrent_ms"], 2)
            row["embed_ratio"] = round(row["embed_single_ms"] / row["embed_ms"], 2)
            print(json.dumps(row), flush=True)
            yield row
    finally:
        server.terminate()
        server.wait()


def fastest(runs: Mapping[str, Callable[[], object]], rounds: int) -> Row:
    """Return the shortest time of each run over alternating rounds, in ms.

    Other processes on a shared machine only add time.
    """
    found = [{name: seconds(run) for name, run in runs.items()} for _ in range(rounds)]
    return {f"{name}_ms": round(1e3 * min(each[name] for each in found), 1) for name in runs}


def wait_until_loaded(connection: http.client.HTTPConnection) -> None:
    """Wait until the server has loaded its model."""
    for _ in range(150):
        try:
            connection.request("GET", "/health")
            answer = connection.getresponse()
            answer.read()
            if answer.status == 200:
                return
        except OSError:
            connection.close()
        time.sleep(0.2)
    raise SystemExit("the server did not start")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--llama-bin", help="compare with llama-embedding in this folder")
    parser.add_argument("--server", action="store_true", help="measure requests over HTTP instead")
    parser.add_argument("--cpu-time", action="store_true", help="compare CPU times of one thread")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="bert-base")
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
            kind = measure_server
        else:
            kind = measure_cpu_time if args.cpu_time else measure
        rows = [row for type in types for row in kind(args, type, folder)]
    report = {
        "model": f"{args.shape}, random weights",
        "cpu": cpu_model(),
        "threads": 1 if args.cpu_time else args.threads,
        "llama_build": args.llama_build,
        "rows": rows,
    }
    if args.out is not None:
        args.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
