"""Model files that change while they are read: an error, and never a crash."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests/data/fixtures"

# Load copies of argv[1] in the folder argv[2]. A thread truncates each at a random time to a random
# size, while another model generates tokens. Print each outcome.
CUT_BY_A_THREAD = """
import json, os, random, shutil, sys, threading, time
from zinc import LLM, SamplingParams
from zinc.core.errors import FormatError
from zinc.engine.load.files import EMBEDDED_MODEL

source, folder, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
rng = random.Random(5)
path, outcomes = os.path.join(folder, "model.gguf"), []
params = SamplingParams(max_tokens=3, temperature=0, ignore_eos=True)
with LLM(source, context=64, threads=1) as other:
    expected = other.generate([3, 4, 5], params).token_ids
    size, load_s = os.path.getsize(source), 1e9
    for _ in range(5):  # the machine may be busy
        started = time.perf_counter()
        LLM(source, context=64, threads=1).close()
        load_s = min(load_s, time.perf_counter() - started)
    for _ in range(n):
        shutil.copy(source, path)
        cut, delay = rng.choice((0, rng.randrange(size))), rng.uniform(0, 0.8 * load_s)
        thread = threading.Timer(delay, os.truncate, (path, cut))
        thread.start()
        try:
            llm = LLM(path, context=64, threads=1)
        except FormatError as error:
            outcomes.append(str(error))
        else:
            thread.join()
            with llm:
                assert llm.generate([3, 4, 5], params).token_ids == expected
            outcomes.append("loaded")
        thread.join()
        assert other.generate([3, 4, 5], params).token_ids == expected
print(json.dumps(outcomes))
"""

# Load copies of argv[1], each truncated right before one of the reads of tensors.
CUT_BEFORE_A_READ = """
import json, os, shutil, sys
from zinc import LLM
from zinc.core.errors import FormatError
from zinc.formats.source import Source

source, folder, backend = sys.argv[1:4]
path, outcomes = os.path.join(folder, "model.gguf"), []
read_into = Source.read_into
n_reads = at = 0

def cut_and_read(self, *arguments):
    global n_reads
    n_reads += 1
    if n_reads == at:
        os.truncate(path, 5000)
    read_into(self, *arguments)

Source.read_into = cut_and_read
shutil.copy(source, path)
LLM(path, backend=backend, context=64, threads=1, cache_dir=folder).close()
for at in range(1, n_reads + 1):
    n_reads = 0
    shutil.copy(source, path)
    try:
        LLM(path, backend=backend, context=64, threads=1, cache_dir=folder).close()
        outcomes.append("loaded")
    except FormatError as error:
        outcomes.append(str(error))
print(json.dumps(outcomes))
"""


def run(program: str, *arguments: object) -> list[str]:
    """Return the output of the program; fail if it ends with a signal or a traceback."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    outcomes: list[str] = json.loads(done.stdout)
    return outcomes


@pytest.mark.parametrize(
    "family", ["qwen35moe", pytest.param("deepseek2", marks=pytest.mark.every)]
)
def test_a_file_cut_while_it_loads(family, tmp_path):
    outcomes = run(CUT_BY_A_THREAD, FIXTURES / f"{family}.gguf", tmp_path, 25)
    kinds = Counter("truncated" in text or "shorter" in text for text in outcomes)
    assert kinds[True] > 3
    assert kinds[False] == outcomes.count("loaded")


@pytest.mark.every
@pytest.mark.parametrize("family", ["qwen35moe", "deepseek2", "gemma4e", "gptoss"])
def test_many_files_cut_while_they_load(family, tmp_path):
    outcomes = run(CUT_BY_A_THREAD, FIXTURES / f"{family}.gguf", tmp_path, 250)
    assert all(x == "loaded" or "truncated" in x or "shorter" in x for x in outcomes)


@pytest.mark.parametrize("backend", ["cpu", pytest.param("ref", marks=pytest.mark.every)])
def test_a_file_cut_before_any_read(backend, tmp_path):
    outcomes = run(CUT_BEFORE_A_READ, FIXTURES / "deepseek2v3.gguf", tmp_path, backend)
    assert len(outcomes) > 30
    assert all("became shorter while it was read" in text for text in outcomes)


def campaign(*arguments: object) -> str:
    command = [sys.executable, ROOT / "dev/mutate-gguf", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    return done.stdout


def test_mutated_files_are_read_or_refused():
    assert "files: 40 cases, 0 failures" in campaign("--files", 40, "--seed", "test")


def test_mutated_files_run_or_are_refused():
    text = campaign("--run", 25, "--seed", "test")
    assert "run: 25 cases, 0 failures" in text
    assert "ran" in text.split(";")[1]


@pytest.mark.every
def test_many_mutated_files_run_or_are_refused():
    campaign("--files", 1000, "--run", 300, "--seed", "every")
