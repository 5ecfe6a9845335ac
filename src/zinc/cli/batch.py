"""`zinc batch`: answer a file of requests, in the form of OpenAI's batch API.

The rows go through the endpoints of the server, in this process and without a port. Rows that the
output already has are skipped, so the same command resumes an interrupted run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from zinc.cli import argtypes, parsed, serve, usage
from zinc.core.errors import RequestError, next_step
from zinc.core.progress import ERASE_LINE
from zinc.core.terminal import is_plain, write_control

if TYPE_CHECKING:
    from zinc.server.app import Application
    from zinc.server.batch.journal import Journal
    from zinc.server.batch.run import BatchRun, Counts
    from zinc.server.runtime.served_model import ServedModel

_INTERRUPTED = 130
_LOAD_END_S = 1.0
_MAX_QUEUE = 1 << 16  # answers of rows that ask for several
_REDRAW_S, _REPORT_S = 0.5, 10.0  # on a terminal, and elsewhere


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "input",
        metavar="IN.jsonl",
        help="requests, one per line, with custom_id, method, url and body (docs/batch.md)",
    )
    parser.add_argument(
        "output",
        metavar="OUT.jsonl",
        help="answers, one per line, in the order in which they finish; rows that are already in "
        "it are skipped",
    )
    usage.add_model_option(parser)
    parser.add_argument(
        "--retry-failed",
        action="store_true",
        help="remove the errors from the output, and run their rows again",
    )
    parser.add_argument(
        "-j",
        "--in-flight",
        type=argtypes.count,
        metavar="N",
        help="maximum number of requests at a time (default: as many as the engine runs in a step)",
    )
    parser.add_argument(
        "--max-body",
        type=serve.size,
        default=32 << 20,
        metavar="SIZE",
        help="maximum size of a request, such as 500K or 32M (default: 32M)",
    )
    parser.add_argument(
        "--ignore-unknown-fields",
        action="store_true",
        help="ignore unknown fields of requests instead of refusing them",
    )
    parser.add_argument(
        "--pooling",
        choices=("mean", "cls", "last"),
        help="pooling of embeddings (default: that of the model file, else mean)",
    )
    usage.add_backend(parser)
    usage.add_cache(parser)
    usage.add_speculate(parser)
    usage.add_lora(parser)
    usage.add_sampler(parser, "sampling (defaults for requests)")
    usage.add_chat_template(parser)


def run(args: argparse.Namespace) -> int:
    serve.check_installed("batch")
    source, output = Path(args.input), Path(args.output)
    progress = _Progress()
    application: Application | None = None
    try:
        _check_files(source, output)
        application = _application(args)
        with _journal(output, args.retry_failed) as journal:
            found = _finished(args, journal)
            if found is None:
                found = asyncio.run(_run(args, application, journal, progress))
    except KeyboardInterrupt:
        progress.close()
        print(_interrupted(output), file=sys.stderr, flush=True)
        pool = None if application is None else application.pool
        if pool and not pool.loads_end_within(_LOAD_END_S):
            # A thread that comes back from native code while the interpreter ends would abort.
            os._exit(_INTERRUPTED)
        return _INTERRUPTED
    if found.failed:
        print(
            f"zinc: {found.failed:,} of {found.done:,} rows failed; {output} has their errors, and "
            "--retry-failed runs them again",
            file=sys.stderr,
        )
    return 1 if found.failed else 0


def _check_files(source: Path, output: Path) -> None:
    """Raise RequestError if the input cannot be read or is the output: before a model is loaded."""
    if source.exists() and not (source.is_file() or source.is_dir()):
        raise RequestError(
            f"cannot read requests from {source}",
            "it is a pipe or a device, and a batch reads its input several times",
            "write the requests to a file first",
        )
    try:
        with source.open("rb"):
            pass
    except OSError as error:
        why = error.strerror or str(error)
        raise RequestError(f"cannot read {source}", why, next_step(error)) from error
    if output.exists() and output.samefile(source):
        raise RequestError("input and output are the same file", "", "name another output file")


def _interrupted(output: Path) -> str:
    """Return a line that says what an interrupted run keeps, and how to go on."""
    try:
        is_begun = output.stat().st_size > 0
    except OSError:
        is_begun = False
    if not is_begun:
        return "zinc: interrupted before a row was done; the same command starts again"
    return (
        f"zinc: interrupted; {output} keeps the rows that are done, and the same command continues "
        "with the rows that are missing"
    )


def _journal(output: Path, retry_failed: bool) -> Journal:
    """Open the output. Raises RequestError if it cannot be used."""
    from zinc.server.batch.journal import Journal

    try:
        return Journal(output, retry_failed)
    except OSError as error:
        why = error.strerror or str(error)
        raise RequestError(f"cannot write {output}", why, next_step(error)) from error


def _application(args: argparse.Namespace) -> Application:
    """Return the server of the batch, not started. Raises a ZincError."""
    from zinc.cli import loading
    from zinc.engine.load.settings import settings_of
    from zinc.server.app import Application
    from zinc.server.config import ModelSource, ServerConfig

    loading.sampling_params(args)  # raises an error that names the option
    path, draft = parsed.model_path(args), parsed.draft_path(args)
    name = path.stem if args.model is None else serve.client_name(args.model)
    return Application(
        ServerConfig(
            models=(ModelSource(name, path, settings_of(args.model)),),
            load=parsed.load_options(args, pooling=args.pooling, draft=draft),
            sampling=parsed.sampler_arguments(args),
            ignore_unknown_fields=args.ignore_unknown_fields,
            max_waiting=_MAX_QUEUE,
            max_body_bytes=args.max_body,
        )
    )


def _finished(args: argparse.Namespace, journal: Journal) -> Counts | None:
    """Return the counts of a batch without a row to run, and say so on stderr; else None."""
    from zinc.server.batch.run import Counts, count_rows, is_finished

    source = Path(args.input)
    if not is_finished(source, journal, args.max_body):
        return None
    total = count_rows(source, args.max_body)
    what = f"all {total:,} rows of {source} were done already" if total else f"{source} has no rows"
    print(f"zinc: {what}; there is nothing to do", file=sys.stderr)
    return Counts(total, journal.n_done, journal.n_failed)


async def _run(
    args: argparse.Namespace, application: Application, journal: Journal, progress: _Progress
) -> Counts:
    """Load the model, run all rows, and return the counts. Raises a ZincError."""
    from zinc.cli import loading
    from zinc.server.batch.run import BatchRun
    from zinc.server.http import in_process

    async with application.started() as pool:
        await pool.until_started()
        model = pool.default.model
        assert model is not None
        loading.print_choice(model.llm.choice)
        batch = BatchRun(
            Path(args.input),
            journal,
            lambda row: in_process.post(application.in_process, row.url, row.body),
            args.in_flight or _in_flight(model),
            args.max_body,
        )
        reporter = asyncio.create_task(progress.report(batch))
        try:
            await batch.run()
        finally:
            reporter.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reporter
        progress.end(batch.counts)
        return batch.counts


def _in_flight(model: ServedModel) -> int:
    return model.llm.engine.max_sequences


class _Progress:
    """The progress on stderr: a line that changes on a terminal, else a line now and then."""

    def __init__(self) -> None:
        self._is_plain = is_plain(sys.stderr)
        self._started = time.monotonic()
        self._is_drawn = False

    async def report(self, batch: BatchRun) -> None:
        """Print the progress of `batch` until this is cancelled."""
        self._started = time.monotonic()
        while True:
            await asyncio.sleep(_REPORT_S if self._is_plain else _REDRAW_S)
            self._print(batch.counts)

    def end(self, counts: Counts) -> None:
        """Print the last line."""
        self.close()
        print(self._line(counts), file=sys.stderr)

    def close(self) -> None:
        """Erase the line on a terminal."""
        if self._is_drawn:
            write_control(sys.stderr, ERASE_LINE)
            sys.stderr.flush()
            self._is_drawn = False

    def _print(self, counts: Counts) -> None:
        if self._is_plain:
            print(self._line(counts), file=sys.stderr, flush=True)
            return
        write_control(sys.stderr, ERASE_LINE)
        sys.stderr.write(self._line(counts)[: shutil.get_terminal_size().columns - 1])
        sys.stderr.flush()
        self._is_drawn = True

    def _line(self, counts: Counts) -> str:
        seconds = max(1e-3, time.monotonic() - self._started)
        line = f"zinc: {counts.done:,} of {counts.total:,} rows done, {counts.failed:,} failed"
        prompt, completion = counts.prompt_tokens / seconds, counts.completion_tokens / seconds
        return f"{line}; prompts {prompt:,.0f} tokens/s, answers {completion:,.0f} tokens/s"
