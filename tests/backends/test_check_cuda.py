"""Tests of dev/check-cuda on the CPU backend, with a script in place of compute-sanitizer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "dev" / "check-cuda"

sys.path.append(str(ROOT / "dev"))

from card_checks import teacher_forcing, workers  # noqa: E402

# Finds an error in every process that runs the case concat_heads-5.
FAKE_SANITIZER = """#!/bin/sh
[ "$1 $3" = "--tool --error-exitcode" ] && [ "$5" = "--log-file" ] || exit 1
status=$4; log=$6; shift 6
"$@" || exit $?
case "$*" in *concat_heads-5*) echo "Invalid read of 4 bytes" > "$log"; exit "$status";; esac
"""


def check(*arguments: str, path: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}"}
    command = [sys.executable, SCRIPT, "--backend", "cpu", "--no-benchmark", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_cases_and_fixtures_run_in_processes() -> None:
    done = check("--jobs", "2", "rope_table", "fixture qwen3moe")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok   fixture qwen3moe: error" in done.stdout
    assert "checks passed" in done.stdout


def test_an_error_of_the_sanitizer_is_reported_for_its_case(tmp_path) -> None:
    script = tmp_path / workers.SANITIZER
    script.write_text(FAKE_SANITIZER)
    script.chmod(0o755)
    done = check("--sanitizer", "memcheck", "concat_heads-5", path=str(tmp_path))
    assert done.returncode == 1
    assert "FAIL concat_heads-5: the process ended with status 86\nInvalid read" in done.stdout
    assert "0 of 1 checks passed under memcheck" in done.stdout


def test_a_case_that_does_not_exist_is_an_error() -> None:
    done = check("no-such-case")
    assert done.returncode == 1
    assert "no check is selected" in done.stdout


def test_a_failure_of_cases_together_is_not_lost() -> None:
    crash = "import sys; sys.exit(f'crash of {sys.argv[1:]}' if len(sys.argv) > 2 else print("
    crash += '\'{"name": "%s", "error": 0.0}\' % sys.argv[1]))'
    results = list(workers.run_all([sys.executable, "-c", crash], ["a", "b"], 1))
    assert [result.name for result in results if result.passes] == ["a", "b"]
    (failure,) = (result for result in results if not result.passes)
    assert failure.name == "a, b in one process"
    assert "crash of ['a', 'b']" in failure.problem


def test_a_text_has_the_logits_of_the_reference() -> None:
    options = ("--no-cases", "--no-fixtures", "--tokens", "40", "--reference", "ref")
    done = check(*options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok   40 tokens in steps of") == 2


@pytest.mark.parametrize("n_off", [0, 1])
def test_a_wrong_row_of_logits_fails(n_off: int) -> None:
    wanted = np.random.default_rng(0).standard_normal((20, 32), np.float32)
    got = wanted.copy()
    got[:n_off] *= -1
    found = teacher_forcing.agreement(list(range(20)), got, wanted)
    assert found.passes == (n_off == 0)
    assert found.same_argmax == 1 - n_off / 20
