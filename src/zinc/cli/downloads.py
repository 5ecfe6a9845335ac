"""Downloads for commands: the progress of a pull on stderr, and the offer of a missing model."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from zinc.cli.text import size
from zinc.core.errors import RequestError
from zinc.core.progress import ERASE_LINE
from zinc.core.terminal import is_plain, write_control
from zinc.hub.errors import MissingModelError
from zinc.hub.events import Chosen, Event, Finished, Transferred, Verified, Waiting, json_line

if TYPE_CHECKING:
    from zinc.engine.load.fit import FitReport
    from zinc.hub.choice import FitCheck
    from zinc.hub.huggingface import Hub, Repository
    from zinc.hub.variants import Variant

# The context that a model to be downloaded should have room for.
CONTEXT_TOKENS = 8192
_BAR_COLUMNS = 20


def pull(
    model: str, *, as_json: bool = False, siblings: bool = True, confirm: bool = False
) -> Path:
    """Download a model with progress on stderr, or as JSON lines on stdout; return its file.

    confirm: ask on the terminal before the first byte. Raises a ZincError.
    """
    from zinc.hub import pull as hub

    printer = PullPrinter(confirm=confirm)
    options = hub.PullOptions(fit=fit_check, siblings=siblings)
    try:
        return hub.pull(model, _print_json if as_json else printer, options)
    finally:
        printer.close()


def offer(missing: MissingModelError) -> Path:
    """Ask on a terminal whether to download a missing model; return its file.

    Raises `missing` if stdin or stderr is not a terminal.
    """
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise missing
    print(f"zinc: {missing.what}", file=sys.stderr)
    return pull(missing.name, confirm=True)


def fit_check(hub: Hub, repository: Repository, variants: Sequence[Variant]) -> FitCheck:
    """Return a function from a variant to its memory and speed, and the memory available.

    Reads the header of the smallest variant; the others differ in the size of their weights alone.
    """
    from zinc.hub.choice import Fit

    report = remote_report(hub, repository, variants[0])
    cache = sum(report.total(each) for each in ("kv_bytes", "state_bytes", "scratch_bytes"))
    available, fastest = report.total("available_bytes"), report.decode_tokens_per_s

    def fit(variant: Variant) -> Fit:
        speed = fastest and fastest * variants[0].n_bytes / variant.n_bytes
        return Fit(variant.n_bytes + cache, available, report.context_tokens, speed)

    return fit


def remote_report(hub: Hub, repository: Repository, variant: Variant) -> FitReport:
    """Return the memory that a variant needs, from the headers of its files on the hub.

    Raises a ZincError.
    """
    from zinc.cli import fit_text
    from zinc.engine.load.options import LoadOptions
    from zinc.engine.load.planning import plan_model
    from zinc.hub.remote import RemoteSource, open_remote

    describe = hub.error(repository.name)
    sources = [
        RemoteSource(hub.transport, hub.url(repository, part), part.path, part.n_bytes, describe)
        for part in variant.files
    ]
    with plan_model(LoadOptions(), file=open_remote(sources)) as planned:
        return fit_text.report_of(planned, min(planned.spec.context, CONTEXT_TOKENS))


def _print_json(event: Event) -> None:
    print(json_line(event), flush=True)


class PullPrinter:
    """Printer of a pull's events on stderr. Progress is a line that is drawn again."""

    def __init__(self, *, confirm: bool) -> None:
        self._confirm = confirm
        self._draws = not is_plain(sys.stderr)
        self._drawn = False

    def __call__(self, event: Event) -> None:
        match event:
            case Chosen():
                why = f" ({event.why})" if event.why else ""
                files = "" if len(event.files) == 1 else f" in {len(event.files)} files"
                total = size(event.total_bytes)
                self._line(f"{event.model}: {event.quantisation}, {total}{files}{why}")
                if self._confirm and not _agrees():
                    raise RequestError("nothing was downloaded", "", "name another model")
            case Transferred() if self._draws:
                self._draw(event)
            case Waiting():
                self._line(f"{event.file}: {event.why}")
            case Verified():
                self._line(f"{event.file} is complete" + (", SHA-256 right" * bool(event.sha256)))
            case Finished():
                self._line(f"{event.model} is ready: zinc run {event.model} PROMPT")
            case _:
                pass

    def close(self) -> None:
        """Erase the progress line."""
        if self._drawn:
            write_control(sys.stderr, ERASE_LINE)
            sys.stderr.flush()
            self._drawn = False

    def _line(self, text: str) -> None:
        self.close()
        print(f"zinc: {text}", file=sys.stderr, flush=True)

    def _draw(self, event: Transferred) -> None:
        write_control(sys.stderr, ERASE_LINE)
        columns = shutil.get_terminal_size().columns - 1
        sys.stderr.write(progress_line(event)[:columns])
        sys.stderr.flush()
        self._drawn = True


def progress_line(event: Transferred) -> str:
    """Return the progress of a file as one line: bar, bytes, rate and time left."""
    share = event.done_bytes / event.total_bytes if event.total_bytes else 1.0
    full = round(share * _BAR_COLUMNS)
    bar = "#" * full + "." * (_BAR_COLUMNS - full)
    line = f"[{bar}] {share:4.0%} of {size(event.total_bytes)}, {size(event.bytes_per_s)}/s"
    if event.seconds_left is not None and event.done_bytes < event.total_bytes:
        line += f", {_duration(event.seconds_left)} left"
    return f"{line}  {event.file.rpartition('/')[2]}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def _agrees() -> bool:
    print("zinc: download it? [Y/n] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("", "y", "yes")
