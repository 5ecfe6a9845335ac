"""Schemas, regular expressions and grammars that could crash the process or take too long.

They run in a child process. Several of them crash llguidance 1.9.1, or keep it busy for minutes,
if they reach it unchecked. Run another version through `dev/fuzz-grammars` before allowing it in
pyproject.toml.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import effort
import pytest

import zinc

pytest.importorskip("llguidance")
ROOT = Path(zinc.__file__).parent.parent.parent
CHECKED_VERSIONS = ("1.9.",)
PEAK_MB = 500
SECONDS = 60  # of CPU time

LOW, HIGH = -(2**63), 2**63 - 1
MANY = 30_000


def rules(n: int, name: str = "r") -> str:
    chain = "\n".join(f'{name}{i}: "x" {name}{i + 1}' for i in range(n))
    return f'start: {name}0\n{chain}\n{name}{n}: "a"'


# ruff: noqa: E501
# Kind, source, and the expected outcome: "refused" or "taken".
CORPUS: dict[str, tuple[str, Any, str]] = {
    "the least 64-bit integer": ("json_schema", {"type": "integer", "minimum": LOW, "maximum": LOW}, "taken"),
    "all 64-bit integers": ("json_schema", {"type": "integer", "minimum": LOW, "maximum": HIGH}, "taken"),
    "bounds beyond 64 bits": ("json_schema", {"minimum": -(10**300), "maximum": 10**300}, "taken"),
    "the largest double": ("json_schema", {"type": "number", "maximum": sys.float_info.max}, "taken"),
    "1e400": ("json_schema", '{"type":"number","maximum":1e400}', "refused"),
    "1e-300": ("json_schema", '{"type":"number","multipleOf":1e-300}', "taken"),
    "1e-500": ("json_schema", '{"type":"number","multipleOf":1e-500}', "refused"),
    "1e999999999999": ("json_schema", '{"maximum":1e999999999999}', "refused"),
    "a number of 5,000 digits": ("json_schema", '{"const":' + "7" * 5000 + "}", "refused"),
    "infinity": ("json_schema", '{"maximum":Infinity}', "refused"),
    "not a number": ("json_schema", {"const": float("nan")}, "refused"),
    "a large prime": ("json_schema", {"type": "integer", "multipleOf": 123456789}, "refused"),
    "many steps": ("json_schema", {"properties": {
        str(i): {"type": "integer", "multipleOf": 59_999 - i} for i in range(50)}}, "refused"),
    "a small step": ("json_schema", {"type": "number", "multipleOf": 5e-324}, "refused"),
    "many required items": ("json_schema", {"type": "array", "minItems": 2**63}, "refused"),
    "many items": ("json_schema", {"type": "array", "items": {"const": 1}, "maxItems": 2**63}, "taken"),
    "a long string": ("json_schema", {"type": "string", "maxLength": 2**64}, "taken"),
    "a string that is too long": ("json_schema", {"type": "string", "minLength": 2**32}, "refused"),
    "nested schemas": ("json_schema", '{"items":' * MANY + "{}" + "}" * MANY, "refused"),
    "nested lists": ("json_schema", "[" * MANY, "refused"),
    "nested data": ("json_schema", '{"const":' + "[" * 5000 + "]" * 5000 + "}", "refused"),
    "a reference to itself": ("json_schema", {"$ref": "#"}, "refused"),
    "a circle of references": ("json_schema", {
        "$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "refused"),
    "an infinite value": ("json_schema", {"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "refused"),
    "a chain of references": ("json_schema", {"$ref": "#/$defs/0", "$defs": {
        str(i): {"type": "object", "properties": {"n": {"$ref": f"#/$defs/{i + 1}"}}}
        for i in range(5000)} | {"5000": {}}}, "refused"),
    "choices of choices": ("json_schema", {"allOf": [
        {"anyOf": [{"minimum": i}, {"maximum": -i}]} for i in range(40)]}, "taken"),
    "references that branch": ("json_schema", {"$ref": "#/$defs/0", "$defs": {
        str(i): {"oneOf": [{"items": {"$ref": f"#/$defs/{i + 1}"}}] * 2} for i in range(30)} | {"30": {}}}, "refused"),
    "many properties": ("json_schema", {"properties": {f"p{i}": {"type": "integer"} for i in range(2500)}}, "taken"),
    "too many properties": ("json_schema", {"properties": {f"p{i}": {} for i in range(2501)}}, "refused"),
    "many choices": ("json_schema", {"enum": list(range(5000))}, "taken"),
    "lists of choices": ("json_schema", {"allOf": [{"enum": list(range(20_000))}] * 3}, "taken"),
    "choices with a pattern": ("json_schema", {
        "enum": [f"v{i}" for i in range(20_000)], "pattern": "^v"}, "refused"),
    "classes of keys": ("json_schema", {"properties": {f"p{i}": {"patternProperties": {
        f"{letter}{i}": {} for letter in "abcde"}} for i in range(100)}}, "refused"),
    "many patterns": ("json_schema", {"patternProperties": {f"a{i}": {} for i in range(20)}}, "refused"),
    "a pattern that backtracks": ("json_schema", {"type": "string", "pattern": "^(a+)+$"}, "taken"),
    "a pattern with large repeats": ("json_schema", {"pattern": "((a{1000}){1000}){1000}"}, "refused"),
    "a nested pattern": ("json_schema", {"pattern": "(" * MANY + ")" * MANY}, "refused"),
    "half a surrogate pair": ("json_schema", '{"const":"\\ud800"}', "refused"),
    "a name of half a pair": ("json_schema", {"properties": {"\ud800": {}}}, "refused"),
    "a nested regex": ("regex", "(" * MANY + "a" + ")" * MANY, "refused"),
    "repeats of repeats": ("regex", "((a{1000}){1000}){1000}", "refused"),
    "a long regex": ("regex", "(a|b)*" * 20_000, "refused"),
    "a regex of half a pair": ("regex", "\ud800", "refused"),
    "a schema in a grammar": ("grammar", "start: x\nx: %json " + json.dumps(
        {"type": "integer", "minimum": LOW, "maximum": LOW}), "taken"),
    "a step in a grammar": ("grammar", 'start: x\nx: %json {"type":"integer","multipleOf":123456789}', "refused"),
    "a chain of rules": ("grammar", rules(MANY), "refused"),
    "a chain of terminals": ("grammar", rules(MANY, "R"), "refused"),
    "a nested grammar": ("grammar", "start: " + "(" * MANY + '"a"' + ")" * MANY, "refused"),
    "nested GBNF": ("grammar", "root ::= " + "(" * MANY + '"a"' + ")" * MANY, "refused"),
    "a repeat of rules": ("grammar", "start: x{1000000000}\nx: \"a\"", "taken"),
    "a grammar without end": ("grammar", "start: start", "refused"),
}  # fmt: skip


def run(arguments: list[str], cases: object = None) -> list[tuple[int, str, float, int]]:
    """Return the results of a child process, which must not crash."""
    path = [str(ROOT / "src"), str(ROOT / "tests")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    done = subprocess.run(
        [sys.executable, "-m", "security.grammar_child", *arguments],
        input=json.dumps(cases), capture_output=True, text=True, env=environment,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert done.returncode == 0, (lines[-1:], done.stderr[-2000:])
    return [tuple(json.loads(line)) for line in lines if line.startswith("[")]


def test_no_case_of_the_corpus_crashes_or_takes_too_long():
    found = run(["-"], [case[:2] for case in CORPUS.values()])
    assert len(found) == len(CORPUS)
    for name, (_, ended, seconds, peak_mb) in zip(CORPUS, found, strict=True):
        expected = CORPUS[name][2]
        assert (ended == "refused") == (expected == "refused"), (name, ended)
        assert not ended.startswith("wrong"), (name, ended)
        assert seconds < SECONDS, name
        assert peak_mb < PEAK_MB, name


def test_no_random_case_crashes_or_takes_too_long():
    n = effort.examples(800)
    found = run(["17", "0", str(n)])
    assert len(found) == n
    assert [each for each in found if each[1].startswith("wrong")] == []
    assert sum(each[1] in ("whole", "followed") for each in found) > n / 5
    assert max(each[3] for each in found) < PEAK_MB


def test_the_corpus_names_the_installed_version_of_llguidance():
    installed = importlib.metadata.version("llguidance")
    assert installed.startswith(CHECKED_VERSIONS), f"run dev/fuzz-grammars with {installed}"


def test_the_fuzzer_prints_a_summary():
    command = [sys.executable, str(ROOT / "dev/fuzz-grammars"), "--cases", "12", "--seconds", "600"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("12 cases, seed 1: ")
    assert done.stdout.endswith(", 0 bad\n")
