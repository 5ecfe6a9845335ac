"""The worker process that runs chat templates, with limits set by the operating system.

`zinc.chat.renderer` starts this file as a script and exchanges messages with it over stdin and
stdout:

    ready    status, 0                 once, after the imports
    request  size, marshal of (source, variables); None for variables only compiles the source
    reply    status, size, UTF-8 text  the prompt, or what failed and why, separated by NUL

marshal preserves what JSON would change: tuples, keys that are numbers, lone surrogates. It is only
used to read data from the parent process.
"""

from __future__ import annotations

import contextlib
import importlib.util
import marshal
import os
import signal
import struct
import sys
from pathlib import Path
from typing import Any

try:
    import resource
except ImportError:  # Windows: only the parent's deadline limits a template
    resource = None  # type: ignore[assignment]

REQUEST = struct.Struct("<Q")
REPLY = struct.Struct("<BQ")
READY, TEXT, FAILED, STOPPED = range(4)

# Whether a worker ends itself after its CPU time. Windows has no such timer.
TIMES_ITSELF = hasattr(signal, "setitimer")

# The size limit of a prompt: a constant plus a multiple of the request's size.
_PROMPT_BYTES, _PROMPT_COPIES = 4 << 20, 8
# Additional memory of a rendering, in sizes of the request; a character can take 4 bytes.
_MEMORY_COPIES = 16
_CAUSE_CHARS = 1000


class Limits:
    """The limits of this process: no new files, no new processes, and little memory.

    seconds: CPU time of a rendering; on a busy machine it may take much longer. memory_bytes: what
    a rendering may allocate in addition to the memory already in use.
    """

    def __init__(self, seconds: float, memory_bytes: int) -> None:
        self._seconds = seconds
        used_bytes = _address_space_bytes()
        self._memory_bytes = used_bytes + memory_bytes if used_bytes else None
        for name in ("RLIMIT_CORE", "RLIMIT_FSIZE", "RLIMIT_NPROC", "RLIMIT_NOFILE"):
            _limit(name, 0)

    def allow(self, request_bytes: int) -> None:
        """Set the limits of one request, until `end`."""
        if self._memory_bytes is not None:
            _limit("RLIMIT_AS", self._memory_bytes + _MEMORY_COPIES * request_bytes)
        _set_timer(self._seconds)

    def end(self) -> None:
        """Stop the time of a request."""
        _set_timer(0)


def _set_timer(seconds: float) -> None:
    """End this process by SIGPROF after `seconds` of CPU time; 0 stops the timer."""
    if TIMES_ITSELF:
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _limit(name: str, soft: int) -> None:
    kind = getattr(resource, name, None)
    if kind is None:
        return
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        soft = min(soft, hard)
    with contextlib.suppress(ValueError, OSError):  # macOS refuses some
        resource.setrlimit(kind, (soft, hard))


def _address_space_bytes() -> int:
    """Return the size of this process's address space, or 0 if the system does not tell it."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _load_sandbox(folders: list[str]) -> Any:
    """Import sandbox.py from the folder of this file, and jinja2 from `folders`."""
    sys.path += folders
    spec = importlib.util.spec_from_file_location("sandbox", Path(__file__).with_name("sandbox.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(seconds: float, memory_bytes: int, folders: list[str]) -> None:
    """Answer requests until stdin ends or a rendering exceeds a limit."""
    if TIMES_ITSELF:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)  # the parent may have ignored it
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # the parent's exit ends stdin, and so this loop
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    sandbox = _load_sandbox(folders)
    environment = sandbox.Sandbox()
    # Load now what is loaded on first use (time zone, errors): later no files can be opened.
    with contextlib.suppress(sandbox.TemplateFailure):
        environment.prompt("{{ strftime_now('%c') }}{{ nothing.deeper }}", {})

    def answer(request: bytes) -> tuple[int, bytes]:
        try:
            source, variables = marshal.loads(request)
            if variables is None:
                environment.check(source)
                return TEXT, b""
            text = environment.prompt(source, variables).encode("utf-8", "surrogatepass")
        except sandbox.TemplateFailure as error:
            return FAILED, f"{error.what}\0{error.why[:_CAUSE_CHARS]}".encode(errors="replace")
        except MemoryError:
            return STOPPED, b"was stopped\0it needs too much memory"
        if len(text) > _PROMPT_BYTES + _PROMPT_COPIES * len(request):
            return STOPPED, b"was stopped\0it made a prompt of %d bytes" % len(text)
        return TEXT, text

    source, target = sys.stdin.buffer, sys.stdout.buffer
    limits = Limits(seconds, memory_bytes)
    target.write(REPLY.pack(READY, 0))
    target.flush()
    while len(head := source.read(REQUEST.size)) == REQUEST.size:
        (size,) = REQUEST.unpack(head)
        limits.allow(size)
        status, text = answer(source.read(size))
        limits.end()
        target.write(REPLY.pack(status, len(text)))
        target.write(text)
        target.flush()
        if status == STOPPED:
            break


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
