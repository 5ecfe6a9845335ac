"""`zinc check`: what this machine can run. Fails when no backend but the reference is there."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from typing import Any

from zinc import __version__
from zinc.cli import usage
from zinc.cli.text import size
from zinc.core.errors import ZincError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--threads", type=usage.count, metavar="N", help="CPU threads (default: one per core)"
    )
    parser.add_argument(
        "--measure", action="store_true", help="also measure memory bandwidth and int8 speed"
    )
    usage.add_json(parser)


def run(args: argparse.Namespace) -> int:
    from zinc.cli import machine
    from zinc.engine.load.memory import available_memory_bytes

    report: dict[str, Any] = {
        "zinc": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu_model": machine.cpu_model(),
        "memory_bytes": machine.total_memory_bytes(),
        "available_memory_bytes": available_memory_bytes(),
        "backends": _backends(args),
    }
    if args.json:
        json.dump(report, sys.stdout, indent=2)
        print()
    else:
        print(_text(report))
    return 0 if any(backend.get("fast") for backend in report["backends"]) else 1


def _backends(args: argparse.Namespace) -> list[dict[str, Any]]:
    from zinc.cli import machine, roofline

    found: list[dict[str, Any]] = []
    threads, options = usage.threads(args), usage.backend_options(args)
    for name, backend in machine.backends(threads, options):
        entry: dict[str, Any] = {"name": name, "ready": True}
        if gpus := _gpus(name):
            entry["devices"] = gpus
        if isinstance(backend, ZincError):
            found.append(entry | {"ready": False, "description": f"{name}: {backend.in_options()}"})
            continue
        entry["description"] = backend.describe()
        known = backend.capabilities
        entry["fast"] = known.is_fast
        if known.levels:
            entry |= {"levels": list(known.levels), "cores": known.cores}
        if args.measure and (limits := roofline.measure_visibly(backend)) is not None:
            entry["bandwidth_gb_per_s"] = limits.bytes_per_s / 1e9
            entry["int8_gops"] = limits.int8_ops_per_s / 1e9
        found.append(entry)
    return found


def _gpus(name: str) -> list[dict[str, Any]]:
    """Return the devices of a backend that --device may name, with the features they lack."""
    from zinc.backends import api

    try:
        found = api.devices(name)
    except ZincError:  # creating the backend fails with the same error, which is reported
        return []
    return [
        {
            "device": device.selector,
            "name": device.name,
            "kind": str(device.kind),
            "driver": device.driver,
            "missing": list(device.missing),
        }
        for device in found
    ]


def _text(report: dict[str, Any]) -> str:
    lines = [
        f"zinc {report['zinc']}, Python {report['python']}, {report['system']}",
        f"processor  {report['cpu_model']}",
        f"memory     {size(report['memory_bytes'])}, "
        f"{size(report['available_memory_bytes'])} available",
        "",
    ]
    for backend in report["backends"]:
        state = "ready  " if backend["ready"] else "missing"
        lines.append(f"{state}  {backend['description']}")
        if "levels" in backend:
            levels = ", ".join(backend["levels"])
            lines.append(f"         SIMD levels: {levels}; usable cores: {backend['cores']}")
        for device in backend.get("devices", ()):
            lacks = f"; lacks {', '.join(device['missing'])}" if device["missing"] else ""
            lines.append(
                f"         {device['device']}  {device['name']}, {device['kind']}, "
                f"{device['driver']}{lacks}"
            )
        if "bandwidth_gb_per_s" in backend:
            lines.append(
                f"         reads {backend['bandwidth_gb_per_s']:.1f} GB/s, "
                f"computes {backend['int8_gops'] / 1e3:.2f} int8 TOPS"
            )
    return "\n".join(lines)
