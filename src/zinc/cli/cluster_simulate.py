"""`zinc cluster simulate`: predict latencies, cache hits and cost of clusters of any size."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zinc.cli import argtypes, text, usage
from zinc.cli.argtypes import UsageError
from zinc.core.errors import RequestError
from zinc.core.progress import ProgressBar, stepper

if TYPE_CHECKING:
    from zinc.cluster.simulation.rates import StepTimes
    from zinc.cluster.simulation.workload import Request

_ROUTERS = ("random", "load", "prefix")
_REPLICAS = (1, 3, 10, 30, 100, 300, 1000)
_FULL = 0.97  # share of the time from which a replica counts as busy all the time
_TRAFFIC = {  # fields of `Traffic`: default, help
    "requests": (2000, "requests in all"),
    "systems": (10, "system prompts; each conversation has one of them"),
    "turns": (5, "requests of a conversation"),
    "system_tokens": (1000, "tokens of a system prompt"),
    "turn_tokens": (200, "tokens that a turn adds to the prompt, on average"),
    "answer_tokens": (150, "tokens of an answer, on average"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "bench",
        metavar="BENCH.json",
        nargs="*",
        help="results of `zinc bench MODEL --json` for one replica; results with several values of "
        "--streams, --depth and --prefill make the step times more accurate",
    )
    group = parser.add_argument_group("cluster", "see docs/cluster.md")
    group.add_argument(
        "--replicas",
        type=_numbers,
        default=_REPLICAS,
        metavar="N,N,...",
        help=f"numbers of replicas to simulate (default: {','.join(map(str, _REPLICAS))})",
    )
    group.add_argument(
        "--routers",
        type=_routers,
        default=_ROUTERS,
        metavar="NAME,NAME,...",
        help=f"routers to simulate (default: {','.join(_ROUTERS)})",
    )
    usage.add_number(
        group, "--kv-tokens", argtypes.count, 65536, "size of a replica's KV cache in tokens"
    )
    overhead = "time that front, router and server add to a request"
    usage.add_number(group, "--overhead", argtypes.quantity, 4.0, overhead, "MS")
    group.add_argument(
        "--price", type=argtypes.quantity, metavar="X", help="price of a replica per hour"
    )
    group = parser.add_argument_group("traffic")
    group.add_argument(
        "--trace",
        metavar="FILE",
        help="replay the requests of this file instead of generating requests",
    )
    rate = "average number of requests per second, a Poisson process"
    usage.add_number(group, "--rate", argtypes.quantity, 10.0, rate, "X")
    usage.add_number(
        group,
        "--clients",
        argtypes.natural,
        0,
        "clients that send the requests one after the other, whatever the rate; 0 follows the rate",
    )
    for name, (default, help_text) in _TRAFFIC.items():
        option = "--" + name.replace("_", "-")
        usage.add_number(group, option, argtypes.count, default, help_text)
    think = "time from an answer to the next turn, on average"
    usage.add_number(group, "--think", argtypes.quantity, 20.0, think, "SECONDS")
    group.add_argument(
        "--even",
        action="store_true",
        help="give all turns and answers their average length (default: exponential distributions)",
    )
    usage.add_number(
        group, "--seed", argtypes.natural, 0, "seed of the traffic and of the router `random`"
    )
    group.add_argument(
        "--save-trace", metavar="FILE", help="write the requests to this file as a trace"
    )
    usage.add_json(parser)


def run(args: argparse.Namespace) -> int:
    if not args.bench:
        raise UsageError("name a result of `zinc bench MODEL --json`")
    if not args.rate:
        raise UsageError("--rate 0 sends no requests")

    from zinc.cluster.simulation.rates import step_times

    times = step_times(_reports(args.bench))
    requests = _requests(args)
    runs = list(_runs(args, times, requests))
    if args.json:
        json.dump({"step_times": asdict(times), "runs": runs}, sys.stdout)
        print()
    else:
        print(_table(runs, args.price))
        if any(run["busy"] > _FULL for run in runs):
            print(
                "\nSome replicas are always busy: queues and TTFT grow with the number of requests."
            )
    return 0


def _requests(args: argparse.Namespace) -> list[Request]:
    """Return the requests of --trace, or generated ones. Raises RequestError and OSError."""
    from zinc.cluster.simulation import workload

    if args.trace is not None:
        lines = workload.read_trace(Path(args.trace))
    else:
        traffic = workload.Traffic(
            **{name: getattr(args, name) for name in _TRAFFIC},
            rate=args.rate,
            think_s=args.think,
            even=args.even,
        )
        lines = workload.generate(traffic, args.seed)
    if args.save_trace is not None:
        Path(args.save_trace).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return workload.requests(lines)


def _runs(
    args: argparse.Namespace, times: StepTimes, requests: list[Request]
) -> Iterator[dict[str, Any]]:
    """Yield the figures of each number of replicas with each router."""
    from zinc.cluster.simulation.events import SimulatedCluster, simulate

    pairs = [(n, router) for n in args.replicas for router in args.routers]
    with ProgressBar("simulating") as progress:
        tick = stepper(progress, len(pairs))
        for n, router in pairs:
            cluster = SimulatedCluster(
                n, router, times, args.kv_tokens, args.overhead / 1e3, args.clients, args.seed
            )
            yield simulate(cluster, requests).summary(args.price)
            tick()


def _table(runs: list[dict[str, Any]], price: float | None) -> str:
    cost = "replica hours / 1M tokens|" if price is None else "cost / 1M tokens|"
    header = (
        "replicas|", "router", "TTFT p50|", "p90|", "p99 ms|", "inter-token p50|", "p90|",
        "p99 ms|", "cached|", "busy|", "answer tokens/s|", cost,
    )  # fmt: skip
    rows = [
        (
            run["replicas"],
            run["router"],
            *(_ms(run["ttft_ms"][p]) for p in ("p50", "p90", "p99")),
            *(_ms(run["inter_token_ms"][p]) for p in ("p50", "p90", "p99")),
            f"{run['hit_rate']:.0%}",
            f"{run['busy']:.0%}",
            f"{run['answer_tokens_per_s']:,.0f}",
            run["replica_hours_per_million_tokens" if price is None else "cost_per_million_tokens"],
        )
        for run in runs
    ]
    return text.table(header, rows)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _reports(paths: list[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the reports in files, each a JSON object. Raises RequestError."""
    from zinc.cluster.simulation.rates import is_report

    for path in paths:
        try:
            found = json.loads(text.read_file(path))
        except ValueError:
            found = None
        if not is_report(found):
            raise RequestError(
                f"{path} is not a result of `zinc bench`",
                "",
                "write one with `zinc bench MODEL --json`",
            )
        yield found


def _numbers(given: str) -> tuple[int, ...]:
    return tuple(argtypes.count(each) for each in given.split(","))


def _routers(given: str) -> tuple[str, ...]:
    names = tuple(given.split(","))
    for name in names:
        if name not in _ROUTERS:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(_ROUTERS)}")
    return names
