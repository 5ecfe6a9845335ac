"""Facts about this machine: processor, backends and memory."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from zinc.core.errors import ZincError

if TYPE_CHECKING:
    from zinc.backends.api import Backend


def cpu_model() -> str:
    """Return the processor's name; with family and model if the name has no number.

    Some virtual machines say only "AMD EPYC".
    """
    if sys.platform == "darwin":
        command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        try:
            found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=5)
            return found.stdout.strip()
        except (OSError, subprocess.SubprocessError):
            return platform.machine()
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        text = ""
    lines = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    cpu = {key.strip(): value.strip() for key, _, value in lines}
    name = cpu.get("model name") or platform.processor() or platform.machine()
    if "cpu family" in cpu and not any(c.isdigit() for c in name):
        name += f" (family {cpu['cpu family']}, model {cpu.get('model', '')})"
    return name


def backends(
    threads: int | None = None, options: Mapping[str, str] | None = None
) -> Iterator[tuple[str, Backend | ZincError]]:
    """Yield the name of each backend, with the backend or the error that opening it raises."""
    from zinc.backends import api

    for name in api.discover():
        try:
            yield name, api.create(name, threads, options)
        except ZincError as error:
            yield name, error
