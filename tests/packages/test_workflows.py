"""The workflows under .github, compared with GitHub's JSON schema of workflows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("check_jsonschema")
WORKFLOWS = sorted((Path(__file__).parents[2] / ".github/workflows").glob("*.yml"))


def check(*paths):
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "github-workflows"]
    return subprocess.run([*command, *paths], capture_output=True, text=True, check=False)


def test_workflows_follow_the_schema():
    assert len(WORKFLOWS) > 2
    done = check(*WORKFLOWS)
    assert done.returncode == 0, done.stdout


def test_a_mistake_is_found(tmp_path):
    path = tmp_path / "test.yml"
    text = WORKFLOWS[0].read_text()
    path.write_text(text.replace("runs-on:", "run-on:"))
    assert path.read_text() != text
    assert check(path).returncode == 1
