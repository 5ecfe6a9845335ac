"""The Slang compiler in child processes that are reused.

Starting the compiler takes 0.4 s and compiling a kernel 0.05 s, so processes are kept. They are
child processes so that a crash of the compiler does not end zinc. Run as a script, this file is
such a process: it loads the compiler's library through its C interface (slang.h of
https://github.com/shader-slang/slang), reads one JSON job a line and answers with one line.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import subprocess
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_void_p
from pathlib import Path
from typing import Any, TypeAlias

Job: TypeAlias = dict[str, Any]

SPIRV, SLANG, COMPUTE, ROW_MAJOR = 6, 1, 6, 1  # numbers of slang.h
PROFILE = b"spirv_1_5"
_LIBRARIES = ("libslang-compiler.so*", "slang-compiler.dll", "libslang-compiler*.dylib")
_REPORT = ctypes.CFUNCTYPE(None, c_char_p, c_void_p)
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "spCreateSession": (c_void_p, [c_char_p]),
    "spFindProfile": (c_int, [c_void_p, c_char_p]),
    "spCreateCompileRequest": (c_void_p, [c_void_p]),
    "spDestroyCompileRequest": (None, [c_void_p]),
    "spSetDiagnosticCallback": (None, [c_void_p, _REPORT, c_void_p]),
    "spAddCodeGenTarget": (c_int, [c_void_p, c_int]),
    "spSetTargetProfile": (None, [c_void_p, c_int, c_int]),
    "spSetOptimizationLevel": (None, [c_void_p, c_int]),
    "spSetMatrixLayoutMode": (None, [c_void_p, c_int]),
    "spAddSearchPath": (None, [c_void_p, c_char_p]),
    "spAddPreprocessorDefine": (None, [c_void_p, c_char_p, c_char_p]),
    "spAddTranslationUnit": (c_int, [c_void_p, c_int, c_char_p]),
    "spAddTranslationUnitSourceFile": (None, [c_void_p, c_int, c_char_p]),
    "spAddEntryPoint": (c_int, [c_void_p, c_int, c_char_p, c_int]),
    "spCompile": (c_int, [c_void_p]),
    "spGetEntryPointCode": (c_void_p, [c_void_p, c_int, POINTER(c_size_t)]),
}


def library(slangc: Path) -> Path | None:
    """Return the shared library of the compiler `slangc`, from its folder or the lib folder."""
    slangc = slangc.resolve()
    for folder in (slangc.parent, slangc.parent.parent / "lib"):
        for pattern in _LIBRARIES:
            if found := sorted(folder.glob(pattern)):
                return found[-1]
    return None


class Process:
    """A running compiler process."""

    def __init__(self, library: Path) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-I", __file__, str(library)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def compile(
        self, source: Path, defines: Iterable[tuple[str, int]], out: Path, timeout_s: float
    ) -> str:
        """Compile `source` to `out`. Return the compiler's report, empty if it succeeds.

        Raises OSError if the process ended, or was killed after `timeout_s` seconds.
        """
        job = {"source": str(source), "defines": [[k, str(v)] for k, v in defines], "out": str(out)}
        timer = threading.Timer(timeout_s, self._child.kill)
        timer.start()
        try:
            assert self._child.stdin is not None
            assert self._child.stdout is not None
            self._child.stdin.write(json.dumps(job) + "\n")
            self._child.stdin.flush()
            answer = self._child.stdout.readline()
        finally:
            timer.cancel()
        if not answer:
            raise OSError("its process ended early")
        return str(json.loads(answer))

    def close(self) -> None:
        with suppress(OSError):
            self._child.communicate("", timeout=5)


class Processes:
    """A pool of compiler processes. A job takes an idle one, or starts another if there is none."""

    def __init__(self) -> None:
        self._idle: dict[Path, list[Process]] = {}
        self._lock = threading.Lock()
        atexit.register(self.close)

    def compile(
        self,
        library: Path,
        source: Path,
        defines: Iterable[tuple[str, int]],
        out: Path,
        timeout_s: float,
    ) -> str:
        """Compile as `Process.compile` does, in an idle process or a new one."""
        with self._lock:
            idle = self._idle.setdefault(library, [])
            process = idle.pop() if idle else None
        process = process or Process(library)
        try:
            report = process.compile(source, defines, out, timeout_s)
        except OSError:
            process.close()
            raise
        with self._lock:
            idle.append(process)
        return report

    def close(self) -> None:
        for processes in self._idle.values():
            while processes:
                processes.pop().close()


def _serve(path: str) -> None:
    """Answer jobs from standard input until it ends."""
    dll = ctypes.CDLL(path)
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(dll, name)
        function.restype, function.argtypes = result, arguments
    session = dll.spCreateSession(None)
    profile = dll.spFindProfile(session, PROFILE)
    for line in sys.stdin:
        print(json.dumps(_answer(dll, session, profile, json.loads(line))), flush=True)


def _answer(dll: ctypes.CDLL, session: int, profile: int, job: Job) -> str:
    reports: list[bytes] = []
    request = dll.spCreateCompileRequest(session)
    report = _REPORT(lambda text, _: reports.append(text))
    dll.spSetDiagnosticCallback(request, report, None)
    try:
        target = dll.spAddCodeGenTarget(request, SPIRV)
        dll.spSetTargetProfile(request, target, profile)
        dll.spSetOptimizationLevel(request, 0)
        dll.spSetMatrixLayoutMode(request, ROW_MAJOR)
        source = Path(job["source"])
        dll.spAddSearchPath(request, str(source.parent).encode())
        for name, value in job["defines"]:
            dll.spAddPreprocessorDefine(request, name.encode(), value.encode())
        unit = dll.spAddTranslationUnit(request, SLANG, source.stem.encode())
        dll.spAddTranslationUnitSourceFile(request, unit, str(source).encode())
        entry = dll.spAddEntryPoint(request, unit, b"main", COMPUTE)
        failed = dll.spCompile(request) < 0
        size = c_size_t()
        code = None if failed else dll.spGetEntryPointCode(request, entry, ctypes.byref(size))
        if code:
            Path(job["out"]).write_bytes(ctypes.string_at(code, size.value))
            return ""
        return b"".join(reports).decode(errors="replace") or "no code was made"
    finally:
        dll.spDestroyCompileRequest(request)


if __name__ == "__main__":
    _serve(sys.argv[1])
