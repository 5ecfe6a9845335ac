"""The CPU: kernels, cores and frequency."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from zinc.backends.api import Backend
from zinc.backends.capabilities import BackendKind
from zinc.cli.checks.finding import Finding, Section, fail, ok, read, reason, remedy, warn
from zinc.cli.checks.self_test import device
from zinc.cli.checks.system import cpu_limit
from zinc.core.errors import ZincError
from zinc.core.processor import cpu_model

SLOWEST_LEVEL = "scalar"


def section(found: Backend | ZincError, root: Path = Path("/")) -> Section:
    """Check the CPU backend `found`, which may be the error that creating it raised."""
    model = cpu_model()
    if isinstance(found, ZincError):
        hint = remedy(found, "reinstall zinc")
        return Section("CPU", (ok(model), fail(reason(found), hint)), {})
    known = found.capabilities
    assert known.kind is BackendKind.CPU
    findings = [ok(model), *_kernels(found), *_cores(found, root), *_frequency(root)]
    findings += device(lambda: found, found.describe())
    facts = {"cpu_model": model, "levels": list(known.levels), "cores": known.cores}
    return Section("CPU", tuple(findings), facts)


def _kernels(backend: Backend) -> Iterator[Finding]:
    known = backend.capabilities
    text = f"kernels for {known.level} (of {', '.join(known.levels)})"
    if known.levels[0] == SLOWEST_LEVEL:
        yield warn(
            f"{text}: the processor has neither AVX2 nor NEON, so zinc is slow",
            "use a newer processor, or let the virtual machine show the host's features",
        )
    else:
        yield ok(text)


def _cores(backend: Backend, root: Path) -> Iterator[Finding]:
    threads, limit = backend.capabilities.threads or 1, cpu_limit(root)
    if limit is not None and limit < threads:
        yield warn(
            f"{threads} threads share {limit:g} CPUs that the container may use",
            f"--threads {max(1, int(limit))}, or set ZINC_THREADS",
        )
    else:
        yield ok(f"{threads} threads, one for each core")


def _frequency(root: Path) -> Iterator[Finding]:
    governor = read(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    # intel_pstate and amd_pstate_epp also reach full speed under "powersave".
    driver = read(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_driver")
    if governor == "powersave" and driver not in ("intel_pstate", "amd-pstate-epp"):
        yield warn(
            "the frequency governor is powersave, which keeps the CPU slow",
            "sudo cpupower frequency-set --governor performance",
        )
