"""Measure prefill, decode and whole answers on a GPU.

    python benchmarks/gpu.py results.json --backend vulkan --shapes qwen3-8b --depths 0 16384

For each model shape it writes a file with random weights to --folder and measures prefill and
decode with their profiles by kernel, the host's time in a step, and answers through the engine with
tokens sampled by the host or the device. --rows compares steps of several rows with steps of one.
Read bandwidth is measured in the same run. Equal matrices are packed once to shorten loading; each
still has its own memory, so measurements do not change.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
import zlib
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any, cast

import make_model
import numpy as np
import numpy.typing as npt

from zinc.backends import api
from zinc.backends.api import Backend, Program
from zinc.cli.bench_steps import Bench
from zinc.cli.loading import open_model
from zinc.cli.steps import StepMaker
from zinc.core.errors import ZincError
from zinc.engine.engine import Engine
from zinc.engine.load.model import LoadedModel
from zinc.engine.load.options import LoadOptions
from zinc.engine.load.planning import plan_model
from zinc.engine.request import Request
from zinc.engine.sampling import SamplingParams
from zinc.engine.sequence import Sequence
from zinc.engine.step_cost import StepShape
from zinc.gpu import packing
from zinc.gpu.backend import GpuBackend
from zinc.gpu.lower import attention
from zinc.gpu.memory import Bytes
from zinc.gpu.program import GpuProgram
from zinc.ops.sampling import pack_sample_params
from zinc.ops.step import SampleParams, Step
from zinc.quant.blocks import GGMLType

REPETITIONS = 3
DECODE_REPETITIONS = 9  # one in three short runs is off by a percent
PROFILE_RUNS = 5
ROW_STEPS = 16  # steps of each number of rows in a round
GREEDY = SampleParams(1)
SAMPLED_BY = ("host", "device, in step", "device")


def pack_once() -> None:
    """Replace `packing.pack` by a version that packs equal matrices once."""
    pack, made = packing.pack, dict[tuple[object, ...], Bytes]()

    def cached(
        type: GGMLType,
        data: Bytes,
        planes: int,
        rows: int,
        cols: int,
        rows_from: npt.NDArray[np.int64] | None = None,
    ) -> Bytes:
        order = None if rows_from is None else rows_from.tobytes()
        key = (type, planes, rows, cols, order, zlib.crc32(data[: 1 << 16].tobytes()))
        if key not in made:
            made[key] = pack(type, data, planes, rows, cols, rows_from)
        return made[key]

    packing.pack = cached


def program_of(model: LoadedModel) -> GpuProgram:
    """Return the program of a model that runs on one GPU."""
    program = model.program
    assert isinstance(program, GpuProgram)
    return program


def decode(bench: Bench, model: LoadedModel, n: int, depth: int) -> dict[str, Any]:
    """Measure `n` single-token steps after `depth` cached tokens."""
    maker = StepMaker(model)
    steps = [maker.step([7], depth + i, outputs=1) for i in range(n)]
    for step in steps[:4]:
        model.program.step(step)
    rates, host = [], []
    for _ in range(DECODE_REPETITIONS):
        waited, start = model.program.work.waited_s, time.perf_counter()
        for step in steps:
            model.program.step(step)
        seconds = time.perf_counter() - start
        rates.append(n / seconds)
        host.append((seconds - model.program.work.waited_s + waited) / n)
    shape = StepShape(1, 1, depth, model.kv_dtype)
    n_bytes = sum(shape.bytes(launch) for launch in model.plan.launches)
    rate = statistics.median(rates)
    return {
        "depth": depth,
        "tokens_per_s": rate,
        "all_tokens_per_s": rates,
        "step_us": 1e6 / rate,
        "host_us": 1e6 * statistics.median(host),
        "gb_per_s": n_bytes * rate / 1e9,
        **profiled(bench, shape),
        **asdict(program_of(model).counts(steps[0])),
    }


def profiled(bench: Bench, shape: StepShape) -> dict[str, Any]:
    profile = bench.profile(shape, PROFILE_RUNS)
    return {
        "profile": profile.by_kernel(None),
        "phases": profile.by_phase(None),
        "phases_percent_of_step": profile.percent_of_step,
    }


def fill(model: LoadedModel, depth: int) -> None:
    """Run prompts until the cache holds `depth` tokens."""
    maker = StepMaker(model)
    for at in range(0, depth, model.plan.max_tokens):
        tokens = min(model.plan.max_tokens, depth - at)
        model.program.step(maker.step([1 + i % 1000 for i in range(tokens)], at, outputs=1))


def prefill(bench: Bench, model: LoadedModel, n: int, depth: int) -> dict[str, Any]:
    """Measure a prompt of `n` tokens after `depth` cached tokens, in steps of the plan's size.

    The profile is that of the last step.
    """
    maker, most = StepMaker(model), model.plan.max_tokens
    sizes = [min(most, n - at) for at in range(0, n, most)]
    steps = [
        maker.step([1 + i % 1000 for i in range(size)], depth + most * number, outputs=1)
        for number, size in enumerate(sizes)
    ]
    seconds = []
    for _ in range(REPETITIONS + 2):
        start = time.perf_counter()
        for step in steps:
            model.program.step(step)
        seconds.append(time.perf_counter() - start)
    rates = [n / s for s in seconds[2:]]
    return {
        "tokens": n,
        "depth": depth,
        "tokens_per_s": statistics.median(rates),
        "all_tokens_per_s": rates,
        "steps": len(steps),
        **profiled(bench, StepShape(sizes[-1], 1, depth + n - sizes[-1], model.kv_dtype)),
        **asdict(program_of(model).counts(steps[-1])),
    }


def row_steps(
    bench: Bench, model: LoadedModel, counts: list[int], depth: int, queues: bool
) -> list[dict[str, Any]]:
    """Measure a step of n tokens of one sequence for each n of `counts`, and of one token.

    Tokens are random, so that they choose many experts. As in a verification of drafts, each of
    them has an output row, and the device samples those. Rounds alternate between the counts, so
    that changes of clocks affect all of them. queues: also measure `device_us`, the time of a step
    that is queued ROW_STEPS times at once, so that the device does not wait for the host.
    """
    program = program_of(model)
    counts = sorted({1, *counts})
    ids = np.random.default_rng(7).integers(1000, size=max(counts)).tolist()
    steps = {n: sampled(StepMaker(model).step(ids[:n], depth, outputs=n)) for n in counts}
    seconds: dict[int, list[float]] = {n: [] for n in counts}
    device: dict[int, list[float]] = {n: [] for n in counts}
    for _ in range(REPETITIONS + 1):
        for n, step in steps.items():
            start = time.perf_counter()
            for _ in range(ROW_STEPS):
                program.sample(step).wait()
            seconds[n].append((time.perf_counter() - start) / ROW_STEPS)
            if queues:
                device[n].append(queued_step(model, step))
    medians = {n: statistics.median(found[1:]) for n, found in seconds.items()}
    devices = {n: statistics.median(found[1:]) for n, found in device.items() if found}
    return [
        {
            "rows": n,
            "depth": depth,
            "step_us": 1e6 * medians[n],
            "all_step_us": [1e6 * s for s in seconds[n][1:]],
            "one_row_steps": medians[n] / medians[1],
            "rows_per_s": n / medians[n],
            **({"device_us": 1e6 * devices[n]} if devices else {}),
            **profiled(bench, StepShape(n, n, depth, model.kv_dtype)),
            **asdict(program.counts(steps[n])),
        }
        for n in counts
    ]


def queued_step(model: LoadedModel, step: Step) -> float:
    """Return the seconds of a step that is queued ROW_STEPS times at once."""
    program = program_of(model)
    recording, host = program.recording(step), program.host
    host.wait(recording.submit())
    start = time.perf_counter()
    for ticket in [recording.submit() for _ in range(ROW_STEPS)]:
        host.wait(ticket)
    return (time.perf_counter() - start) / ROW_STEPS


def sampled(step: Step) -> Step:
    """Return `step` with the device sampling the most likely token of each output row."""
    return replace(step, sample_params=pack_sample_params([GREEDY] * len(step.output_rows)))


def show_row_step(result: dict[str, Any]) -> None:
    kernels = sorted(result["profile"], key=lambda row: -row["seconds"])[:4]
    times = ", ".join(f"{row['kernel']} {1e6 * row['seconds']:,.0f}" for row in kernels)
    queued = f", {result['device_us']:,.0f} us if queued" if "device_us" in result else ""
    print(
        f"  {result['rows']:4} rows at {result['depth']}: {result['step_us']:9,.0f} us, "
        f"{result['one_row_steps']:5.2f} steps of one row, {result['rows_per_s']:9,.1f} rows/s"
        f"{queued}; us on the device: {times}"
    )
    sys.stdout.flush()


CHAINS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "default": {},
    "penalties": {"repeat_penalty": 1.1, "presence_penalty": 1.5, "repeat_last_n": -1},
}


def answers(model: LoadedModel, n: int, streams: int, how: str, chain: str) -> dict[str, Any]:
    """Measure answers of `n` tokens through the engine, in tokens/s.

    how: "host" samples from logits that are read back; "device, in step" samples on the device and
    waits for the host after each token; "device" runs one step ahead of the host.
    """
    program: Program = model.program
    if how == "host":
        program = cast(Program, HostSampled(model.program))
    engine = Engine(program, model.cache, model.spec.vocab, model.context, prefix_cache=False)
    if how == "device, in step":
        engine._queue_next = lambda flight: None  # type: ignore[method-assign]
    rates = []
    for _ in range(REPETITIONS + 1):
        sequences = [
            engine.submit(
                Request([7 + i] * 16, SamplingParams(seed=i, max_tokens=n, **CHAINS[chain]))
            )
            for i in range(streams)
        ]
        while any(s.n_generated < 4 for s in sequences):
            run(engine, sequences)
        before, start = sum(s.n_generated for s in sequences), time.perf_counter()
        while any(s.finish_reason is None for s in sequences):
            run(engine, sequences)
        seconds = time.perf_counter() - start
        rates.append((sum(s.n_generated for s in sequences) - before) / seconds)
    return {
        "drawn_by": how,
        "chain": chain,
        "streams": streams,
        "tokens_per_s": statistics.median(rates[1:]),
        "all_tokens_per_s": rates[1:],
        "tokens": [s.generated[:32] for s in sequences],
    }


def run(engine: Engine, sequences: list[Sequence]) -> None:
    """Run a step. Raises the error of a sequence that has failed, which would be waited for."""
    engine.step()
    for s in sequences:
        if s.error is not None:
            raise s.error


class HostSampled:
    """A program without the launch that samples tokens, so that the host samples them."""

    def __init__(self, program: Program) -> None:
        self.step, self.work = program.step, program.work
        self.plan = replace(program.plan, sampled=None)


def measure(name: str, backend: Backend, args: argparse.Namespace) -> dict[str, Any]:
    path = Path(args.folder) / f"{name}.gguf"
    start = time.perf_counter()
    if not path.exists():
        make_model.write(str(path), make_model.SHAPES[name], "q4_k_m", repeat=True)
    made = time.perf_counter()
    streams = max(args.streams, default=1)
    options = LoadOptions(
        path,
        context=max(args.depths) + max(*args.prefill, args.decode, args.answer, *args.rows) + 64,
        kv_dtype=args.kv_dtype,
        max_outputs=max([streams, *args.rows]),
        sequences=streams,
    )
    with open_model(plan_model(options, backend)) as model:
        report: dict[str, Any] = {
            "shape": name,
            "file_gb": model.file.n_bytes / 1e9,
            "kv_dtype": model.kv_dtype,
            "make_s": made - start,
            "load_s": time.perf_counter() - made,
            "launches": len(model.plan.launches),
        }
        bench = Bench(model)
        print(f"{name}: made in {report['make_s']:.1f} s, loaded in {report['load_s']:.1f} s")
        start = time.perf_counter()
        report["prefill"], report["decode"], report["row_steps"] = [], [], []
        for depth in args.depths:
            fill(model, depth)
            for n in filter(None, args.prefill):
                report["prefill"].append(prefill(bench, model, n, depth))
                show(f"prefill {n} at {depth}", report["prefill"][-1])
            if depth == args.depths[0]:
                report["first_steps_s"] = time.perf_counter() - start
            if args.decode:
                report["decode"].append(decode(bench, model, args.decode, depth))
                show(f"decode at {depth}", report["decode"][-1])
            if args.rows:
                found = row_steps(bench, model, args.rows, depth, backend.name == "cuda")
                report["row_steps"] += found
                for result in found:
                    show_row_step(result)
        report["answers"] = []
        for chain, streams, how in product(args.chains, args.streams, args.sampled_by):
            answered = answers(model, args.answer, streams, how, chain)
            report["answers"].append(answered)
            print(
                f"  answers, {chain} chain, {streams} streams, sampled by {how}: "
                f"{answered['tokens_per_s']:,.1f} tokens/s"
            )
            sys.stdout.flush()
    if not args.keep:
        path.unlink()
    return report


def show(title: str, result: dict[str, Any]) -> None:
    extra = f", host {result['host_us']:.0f} us" if "host_us" in result else ""
    rates = ", ".join(f"{rate:,.1f}" for rate in result["all_tokens_per_s"])
    print(
        f"  {title}: {result['tokens_per_s']:,.1f} tokens/s ({rates}){extra}, "
        f"{result['dispatches']} dispatches, {result['barriers']} barriers"
    )
    total = sum(row["seconds"] for row in result["profile"])
    print(f"    profile, {1e3 * total:.3f} ms on the device:")
    for row in result["profile"]:
        rate = row["bytes"] / row["seconds"] / 1e9 if row["seconds"] else 0.0
        print(
            f"    {row['kernel']:14} {row['launches']:4} x {1e6 * row['seconds']:10.1f} us "
            f"{row['percent']:5.1f}%  {rate:8.1f} GB/s"
        )
    shares = ", ".join(f"{row['phase']} {row['percent']:.1f}%" for row in result["phases"])
    print(
        f"    by phase: {shares}; {result['phases_percent_of_step']:.1f}% of the step's wall time"
    )
    sys.stdout.flush()


def clocks() -> str | None:
    """Return nvidia-smi's line of name, driver, clocks and power, or None without nvidia-smi."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version,clocks.sm,clocks.mem,power.draw"]
    try:
        done = subprocess.run(
            [*command, "--format=csv,noheader"], capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result")
    parser.add_argument("--backend", default="vulkan", choices=("vulkan", "cuda"))
    parser.add_argument(
        "--shapes", nargs="+", default=["qwen3-8b", "qwen36-35b-a3b"], choices=make_model.SHAPES
    )
    parser.add_argument("--depths", nargs="+", type=int, default=[0, 16384])
    parser.add_argument(
        "--prefill", type=int, nargs="+", default=[512], help="tokens of prompts; 0 skips them"
    )
    parser.add_argument("--decode", type=int, default=64, help="decode steps; 0 skips them")
    parser.add_argument(
        "--rows", type=int, nargs="*", default=[], metavar="N",
        help="measure steps of N tokens of one sequence in multiples of a step of one token",
    )  # fmt: skip
    parser.add_argument("--answer", type=int, default=256, help="tokens of an answer")
    parser.add_argument(
        "--streams", type=int, nargs="*", default=[1], help="concurrent answers; empty skips them"
    )
    parser.add_argument(
        "--chains", nargs="+", default=[*CHAINS], choices=CHAINS, help="sampling of answers"
    )
    parser.add_argument("--sampled-by", nargs="+", default=SAMPLED_BY, choices=SAMPLED_BY)
    parser.add_argument("--kv-dtype", default="f16")
    parser.add_argument(
        "--attention", nargs="*", default=[], metavar="NAME=N",
        help="values for constants of gpu/lower/attention.py",
    )  # fmt: skip
    parser.add_argument("--device", default="")
    parser.add_argument(
        "--batch-invariant", action="store_true", help="measure the batch-invariant mode"
    )
    parser.add_argument("--folder", default="/dev/shm")
    parser.add_argument("--keep", action="store_true", help="keep the model files")
    args = parser.parse_args()

    np.seterr(all="ignore")
    pack_once()
    constants = {name: int(value) for name, value in (x.split("=") for x in args.attention)}
    for name, value in constants.items():
        assert isinstance(getattr(attention, name), int), f"there is no constant {name}"
        setattr(attention, name, value)
    options = {"device": args.device, "batch_invariant": str(args.batch_invariant).lower()}
    backend = api.create(args.backend, options=options)
    limits = backend.measure()
    assert limits is not None
    features = cast(GpuBackend, backend).features
    report: dict[str, Any] = {
        "backend": backend.name,
        "device": backend.describe(),
        "features": {
            name: getattr(features, name) for name in features.__slots__ if name != "tuned"
        },
        "tuned_products": len(features.tuned),
        "read_gb_per_s": limits.bytes_per_s / 1e9,
        "int8_tops": limits.int8_ops_per_s / 1e12,
        "attention": constants,
        "clocks_before": clocks(),
        "shapes": [],
    }
    print(json.dumps(report, indent=1), flush=True)
    failed = 0
    for shape in args.shapes:
        fresh = api.create(args.backend, options=options)
        try:
            report["shapes"].append(measure(shape, fresh, args))
        except ZincError as error:
            failed = 1
            print(f"{shape}: {error}", file=sys.stderr)
            report["shapes"].append({"shape": shape, "error": str(error)})
        report["clocks_after"] = clocks()
        Path(args.result).write_text(json.dumps(report, indent=1) + "\n")
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
