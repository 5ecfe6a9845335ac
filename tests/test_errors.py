"""Errors of the commands, of downloads and of clusters end with what to do next."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import zinc

ROOT = Path(zinc.__file__).parent
ERRORS = {
    "DeviceError",
    "DownloadError",
    "FormatError",
    "MemoryLimitError",
    "ModelError",
    "ModelNameError",
    "RequestError",
    "UnsupportedError",
    "ZincError",
}
# `why` is the whole message of a server that did not start; only Ray sees the result of the check.
WITHOUT_HINT = {
    "cli/launch.py: _address",
    "cluster/model_check.py: cannot_start",
    "cluster/replica.py: check_health",
}


def has_hint(call: ast.Call) -> bool:
    """Return whether a call of an error class has a hint: its third argument, or a keyword."""
    if any(isinstance(x, ast.Starred) for x in call.args):
        return True
    hints = call.args[2:3] + [x.value for x in call.keywords if x.arg == "hint"]
    return any(not (isinstance(x, ast.Constant) and not x.value) for x in hints)


@pytest.mark.parametrize("folder", ["cli", "cluster", "hub"])
def test_errors_have_a_hint(folder: str) -> None:
    lacking = {
        f"{path.relative_to(ROOT)}: {function.name}"
        for path in (ROOT / folder).rglob("*.py")
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for call in ast.walk(function)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
        if call.func.id in ERRORS and not has_hint(call)
    }
    assert lacking <= WITHOUT_HINT
