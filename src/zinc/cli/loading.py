"""Loading for commands: from parsed options to a model, with progress and notes on stderr."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from zinc.backends import api
from zinc.cli import parsed
from zinc.core.errors import MemoryLimitError, RequestError
from zinc.core.progress import ProgressBar
from zinc.engine.load import auto
from zinc.engine.load.device_map import BackendChoice
from zinc.engine.load.model import LoadedModel
from zinc.engine.load.planned import PlannedModel
from zinc.engine.sampling import SamplingParams
from zinc.llm import LLM

log = logging.getLogger("zinc.loading")


def open_llm(args: argparse.Namespace) -> LLM:
    """Load the model of `args` for text. Raises a `ZincError`."""
    path, draft = parsed.model_path(args), parsed.draft_path(args)
    with ProgressBar(f"loading {path.name}") as progress:
        llm = LLM.from_options(parsed.load_options(args, path=path, draft=draft), progress)
    for note in llm.settings.notes:
        print(f"zinc: {note}", file=sys.stderr)
    print_choice(llm.choice)
    _log_loaded(llm.model)
    return llm


def open_model(planned: PlannedModel) -> LoadedModel:
    """Load the weights of `planned`, for a command that makes its own steps."""
    with ProgressBar(f"loading {planned.file.path.name}") as progress:
        model = LoadedModel(planned, progress)
    _log_loaded(model)
    return model


def create_backend(args: argparse.Namespace) -> api.Backend:
    """Return the backend of --backend and --device. Raises DeviceError."""
    name, threads, options = (
        parsed.backend_name(args),
        parsed.threads(args),
        parsed.backend_options(args),
    )
    if name != "auto":
        return api.create(name, threads, options)
    machine = auto.this_machine(threads, options)
    return auto.select(machine, wanted=options.get("device", "")).backend


def print_choice(choice: BackendChoice) -> None:
    """Print on stderr which device was chosen and why, and what runs on the CPU instead."""
    for message in choice.messages:
        print(f"zinc: {message}", file=sys.stderr)


def sampling_params(args: argparse.Namespace, llm: LLM | None = None) -> SamplingParams:
    """Return the sampling parameters: of the options, else of the model file, else defaults.

    Raises RequestError, which names the option, if a value is out of range.
    """
    given = {**(llm.sampling if llm else {}), **parsed.sampler_arguments(args)}
    for name in ("max_tokens", "stop"):  # options of commands that answer themselves
        if getattr(args, name, None) is not None:
            given[name] = getattr(args, name)
    try:
        return SamplingParams(**given)
    except RequestError as error:
        option = f"--{error.argument.replace('_', '-')}"
        what = error.what.replace(error.argument, option, 1)
        raise RequestError(what, error.why, error.hint) from None


@contextmanager
def context_from(options: str) -> Iterator[None]:
    """Make errors about the context suggest smaller values of `options`.

    For commands that have no --context and choose one themselves.
    """
    try:
        yield
    except (RequestError, MemoryLimitError) as error:
        if not error.what.startswith("a context of "):
            raise
        raise type(error)(error.what, error.why, f"choose a smaller {options}") from None


def _log_loaded(model: LoadedModel) -> None:
    if not log.isEnabledFor(logging.INFO):
        return  # do not compute the plan's hash in vain
    log.info(
        "%s, plan %s, context %d, %d bytes",
        model.backend.describe(),
        model.plan.hash,
        model.context,
        model.memory.total_bytes,
    )
