"""`zinc cluster`: replicas of the server on Ray, behind one address."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from zinc.cli import argtypes, cluster_simulate, serve, usage
from zinc.cli.text import plain, table

if TYPE_CHECKING:
    from zinc.cluster.options import ClusterOptions

ACTIONS = {
    "up": "start the cluster, or update what changed of the one that runs",
    "status": "show the state of the cluster",
    "down": "stop the cluster",
    "yaml": "print the config of a cluster for `serve deploy` or KubeRay",
    "simulate": "predict latencies, hit rate and cost of clusters, without Ray",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, summary in ACTIONS.items():
        text = f"{summary[0].upper()}{summary[1:]}."
        sub = actions.add_parser(name, help=summary, description=text)
        sub.set_defaults(parser=sub)
        if name == "simulate":
            cluster_simulate.add_arguments(sub)
        else:
            _add_arguments(sub, name)


def _add_arguments(parser: argparse.ArgumentParser, action: str) -> None:
    if action in ("up", "yaml"):
        serve.add_arguments(parser)
    group = parser.add_argument_group("cluster", "docs/cluster.md describes them")
    if action != "yaml":
        group.add_argument(
            "--address",
            default="auto",
            metavar="HOST:PORT",
            help="address of Ray (default: the Ray that runs on this machine)",
        )
    if action in ("up", "yaml"):
        _add_options(group)
    if action == "yaml":
        group.add_argument(
            "--kuberay", metavar="IMAGE", help="print a RayService for KubeRay with this image"
        )
    if action == "status":
        usage.add_json(parser)


def _add_options(group: argparse._ArgumentGroup) -> None:
    """Add the options of a cluster that starts."""
    group.add_argument(
        "--config",
        metavar="FILE",
        help="YAML or JSON file with these options, and with options for each model; options on "
        "the command line override it",
    )
    group.add_argument(
        "--together",
        action="store_true",
        help="serve all models with each replica, and load those after the first on request "
        "(default: each model has its own replicas)",
    )
    usage.add_number(group, "--replicas", argtypes.count, 1, "replicas of each model")
    group.add_argument(
        "--max-replicas",
        type=argtypes.count,
        default=0,
        metavar="N",
        help="start more replicas of a model, up to this number, while requests queue",
    )
    queue = "requests per replica, on average, at which more replicas start"
    usage.add_number(group, "--queue", argtypes.count, 4, queue)
    cpus = "CPU cores of a replica, which runs as many threads"
    usage.add_number(group, "--cpus", argtypes.quantity, 1.0, cpus, "X")
    group.add_argument(
        "--gpus",
        type=argtypes.quantity,
        default=0.0,
        metavar="X",
        help="GPUs of a replica (default: none)",
    )
    group.add_argument(
        "--memory",
        type=serve.size,
        default=0,
        metavar="SIZE",
        help="host memory that Ray reserves for a replica "
        "(default: what its models need, if they are on this machine)",
    )
    usage.add_number(group, "--fronts", argtypes.count, 1, "processes that forward requests")
    drain = "time for running answers when a replica is replaced"
    usage.add_number(group, "--drain", argtypes.quantity, 300.0, drain, "SECONDS")
    group.add_argument(
        "--share-prefixes",
        default="",
        metavar="memory|FOLDER",
        help="let replicas fetch prefixes that others have computed, from Ray's object store or "
        "from a folder that all machines can access, if that is faster",
    )
    group.add_argument(
        "--router",
        choices=("prefix", "load", "random"),
        default="prefix",
        help="how to choose a replica for a request: by cached prefix and load, by load, or at "
        "random (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    serve.check_installed("cluster")
    if args.action == "yaml":
        from zinc.cluster.config_file import text

        options, host, port = _options(args)
        print(text(options, host, port, args.kuberay), end="")
        return 0
    if args.action == "simulate":
        return cluster_simulate.run(args)

    from zinc.cluster.ray_version import check_ray

    check_ray()
    from zinc.cluster import control

    started = _options(args) if args.action == "up" else None
    dashboard = control.connect(args.address)
    if started is not None:
        options, host, port = started
        control.up(options, host, port)
        print(f"zinc: serving on http://{host}:{port}", file=sys.stderr)
        if dashboard:
            print(f"zinc: Ray's dashboard is on {dashboard}", file=sys.stderr)
    elif args.action == "down":
        control.down()
    else:
        return _print_status(control.status(dashboard), args.json)
    return 0


def _print_status(status: object, as_json: bool) -> int:
    """Print the status; return 0 if the cluster runs."""
    from zinc.cluster.control import Status

    assert isinstance(status, Status)
    if as_json:
        json.dump(asdict(status), sys.stdout, indent=2)
        print()
    else:
        rows = [
            (
                name,
                model.state,
                ", ".join(f"{n} {state}" for state, n in model.replicas.items()) or "none",
                plain(model.message, 300),
            )
            for name, model in status.models.items()
        ]
        print(table(("model", "state", "replicas", "message"), rows))
        print(f"\nThe cluster is {status.state}. {plain(status.message, 300)}".rstrip())
        if status.dashboard:
            print(f"Ray's dashboard is on {status.dashboard}.")
    return 0 if status.state == "RUNNING" else 1


def _options(args: argparse.Namespace) -> tuple[ClusterOptions, str, int]:
    """Return the options of the cluster, and host and port of its address. Raises a ZincError."""
    from zinc.cluster.memory import with_memory
    from zinc.cluster.options import (
        ClusterOptions,
        model_options,
        read_options,
        serve_options,
        shared_folder,
    )

    served = serve_options(args)
    given = {
        "replicas": args.replicas,
        "max_replicas": args.max_replicas,
        "queue": args.queue,
        "cpus": args.cpus,
        "gpus": args.gpus,
        "memory": args.memory,
        "fronts": args.fronts,
        "drain_s": args.drain,
        "router": args.router,
        "share_prefixes": args.share_prefixes and shared_folder(args.share_prefixes),
    }
    if args.config is not None:
        changed = ClusterOptions(**given).changed()
        options, port = read_options(Path(args.config), changed, served, args.port)
    else:
        port = args.port
        options = ClusterOptions(serve=served) if args.together else model_options(served)
        options = replace(options, **given)
    return with_memory(options), options.serve.get("host", args.host), port
