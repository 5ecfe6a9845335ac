"""Run checks in worker processes, also under NVIDIA's compute-sanitizer.

A worker runs a batch of checks and prints a line of JSON for each. If it crashes, or the sanitizer
finds an error, the checks of its batch run again one by one, so that a report names the check.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

from card_checks.checks import Check
from zinc.backends.api import Backend

SANITIZER = "compute-sanitizer"
TOOLKIT = "/usr/local/cuda/bin"
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
FOUND_ERRORS = 86  # exit status of the sanitizer
BATCHES_PER_JOB = 4  # so that processes end at about the same time
SMALLEST_BATCH = 4
TIMEOUT_S = 300
SHOWN_LINES = 40


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a check. problem: why there is no error to compare, or what else is wrong."""

    name: str
    error: float = float("inf")
    tolerance: float = 0.0
    seconds: float = 0.0
    problem: str = ""

    @property
    def passes(self) -> bool:
        return not self.problem and self.error <= self.tolerance

    def __str__(self) -> str:
        found = self.problem or f"error {self.error:.2e}, allowed {self.tolerance:.0e}"
        return f"{'ok  ' if self.passes else 'FAIL'} {self.name}: {found} ({self.seconds:.1f} s)"


def work(backend: Backend, checks: Iterable[Check]) -> Iterator[Result]:
    """Run checks in this process."""
    for check in checks:
        started, error, problem = time.perf_counter(), float("inf"), ""
        try:
            error = check.error(backend)
        except Exception:
            problem = traceback.format_exc(limit=-3)
        seconds = time.perf_counter() - started
        yield Result(check.name, error, check.tolerance(backend), seconds, problem)


def print_results(results: Iterable[Result]) -> None:
    """Print results for the process that started this worker."""
    for result in results:
        print(json.dumps(asdict(result)), flush=True)


def find_sanitizer() -> str:
    """Return the path of compute-sanitizer. Exits with a message if there is none."""
    found = shutil.which(SANITIZER) or shutil.which(SANITIZER, path=TOOLKIT)
    if found is None:
        sys.exit(
            f"{SANITIZER} is neither in PATH nor in {TOOLKIT}; "
            "it is part of the CUDA toolkit (package cuda-sanitizer-api)"
        )
    return found


def run_all(
    command: Sequence[str], names: Sequence[str], jobs: int, sanitizer: Sequence[str] = ()
) -> Iterator[Result]:
    """Run the checks `names` in `jobs` processes; yield their results as they come.

    command: starts a worker, given the names. sanitizer: command and options of the sanitizer.
    """
    size = max(SMALLEST_BATCH, len(names) // (jobs * BATCHES_PER_JOB))
    batches = [names[at : at + size] for at in range(0, len(names), size)]
    failed: list[tuple[Sequence[str], str]] = []
    with ThreadPoolExecutor(jobs) as threads:
        running = {threads.submit(_run, command, batch, sanitizer): batch for batch in batches}
        for done in as_completed(running):
            results, problem = done.result()
            if problem and len(results) > 1:
                failed.append((running[done], problem))
            else:
                yield from results
        alone = [
            [threads.submit(_run, command, [x], sanitizer) for x in batch] for batch, _ in failed
        ]
        for (batch, problem), processes in zip(failed, alone, strict=True):
            results = [process.result()[0][0] for process in processes]
            yield from results
            if all(result.passes for result in results):  # they fail only together
                yield Result(f"{', '.join(batch)} in one process", problem=problem)


def _run(
    command: Sequence[str], names: Sequence[str], sanitizer: Sequence[str]
) -> tuple[list[Result], str]:
    """Run one worker. Return a result for each of `names`, and the error of the process or ""."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        prefix = [*sanitizer, "--log-file", str(log)] if sanitizer else []
        try:
            process = subprocess.run(
                [*prefix, *command, *names], capture_output=True, text=True, timeout=TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            problem = f"the process took more than {TIMEOUT_S} s"
            return [Result(name, problem=problem) for name in names], problem
        report = log.read_text(errors="replace") if log.exists() else ""
    found = [Result(**json.loads(x)) for x in process.stdout.splitlines() if x.startswith("{")]
    if process.returncode == 0 and len(found) == len(names):
        return found, ""
    output = report if process.returncode == FOUND_ERRORS else process.stderr + report
    last = "\n".join(output.splitlines()[:SHOWN_LINES])
    problem = f"the process ended with status {process.returncode}\n{last}"
    return [Result(name, problem=problem) for name in names], problem


def sanitizer_command(tool: str) -> list[str]:
    """Return the command that runs a program under a tool of compute-sanitizer."""
    return [find_sanitizer(), "--tool", tool, "--error-exitcode", str(FOUND_ERRORS)]
