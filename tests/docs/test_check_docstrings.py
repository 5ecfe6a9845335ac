"""Tests of dev/check-docstrings, which rejects docstrings that open badly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHECK = ROOT / "dev" / "check-docstrings"


def check(path):
    command = [sys.executable, CHECK, path]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "text",
    [
        "What a step needs.",
        "Those that have workgroups.",
        "Who waits.",
        "That which is left.",
        "Of each row, the largest value.",
        "The same for keys.",
        "Return whoever waits.",
        "Build a step of so\n    many tokens.",
    ],
)
def test_rejects_openings_and_phrases(tmp_path, text):
    file = tmp_path / "module.py"
    file.write_text(f'"""A module."""\n\n\ndef f():\n    """{text}"""\n')
    done = check(file)
    assert done.returncode == 1
    assert done.stdout == f"{file}:5: {text.splitlines()[0]}\n"


@pytest.mark.parametrize(
    "text",
    ["Reads the rows of a prompt.", "Turns text into events.", "Stands in for a device."],
)
def test_rejects_a_verb_in_the_third_person_for_classes_and_modules(tmp_path, text):
    file = tmp_path / "module.py"
    file.write_text(f'"""{text}"""\n\n\nclass A:\n    """{text}"""\n')
    assert check(file).stdout == f"{file}:1: {text}\n{file}:5: {text}\n"


def test_accepts_plural_nouns_that_are_also_verbs(tmp_path):
    file = tmp_path / "module.py"
    names = ("Limits of a request.", "Checks for users.", "Runs that are recorded.")
    file.write_text("".join(f'class A{i}:\n    """{x}"""\n' for i, x in enumerate(names)))
    assert check(file).returncode == 0


def test_accepts_verbs_and_nouns_that_stand_alone(tmp_path):
    file = tmp_path / "module.py"
    file.write_text(
        '"""Offsets of the arguments, in bytes."""\n\n\nclass Whole:\n    """A whole row."""\n\n'
        '    def f(self):\n        """Return the rows. What follows is up to the caller."""\n'
    )
    assert check(file).returncode == 0


def test_reads_modules_classes_and_scripts_in_a_folder(tmp_path):
    (tmp_path / "script").write_text('#!/usr/bin/env python3\n"""What it does."""\n')
    (tmp_path / "notes").write_text('"""What it does."""\n')
    (tmp_path / "module.py").write_text('class A:\n    """Who it is."""\n')
    lines = check(tmp_path).stdout.splitlines()
    assert lines == [f"{tmp_path}/module.py:2: Who it is.", f"{tmp_path}/script:2: What it does."]
