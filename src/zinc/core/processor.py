"""The name of this machine's processor."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path


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
