"""A model file, if one is named: whether it is whole, supported, and fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from zinc.cli import fit_text
from zinc.cli.checks.finding import Finding, Section, fail, ok, reason, remedy, warn
from zinc.cli.text import size
from zinc.core.errors import FormatError, MemoryLimitError, ZincError
from zinc.engine.load.options import LoadOptions
from zinc.engine.load.planned import PlannedModel
from zinc.engine.load.planning import plan_model

CONTEXT_TOKENS = 4096  # the context that is checked, unless one is asked for


def section(model: str, options: Callable[[], LoadOptions]) -> Section:
    """Check a model. options: returns the options of its load, or raises a ZincError."""
    return Section("Model", tuple(_findings(options)), {"model": model})


def _findings(options: Callable[[], LoadOptions]) -> Iterator[Finding]:
    try:
        with plan_model(options()) as planned:
            name = Path(planned.file.path).name
            n_bytes = sum(t.n_bytes for t in planned.file.tensors.values())
            yield ok(f"{name}: {planned.spec.arch}, {size(n_bytes)} of weights")
            if "tokenizer.chat_template" in planned.file.metadata:
                yield ok("it has a chat template")
            else:
                yield warn("it has no chat template", "use zinc run --raw, or --chat-template FILE")
            yield from _memory(planned)
    except MemoryLimitError as error:
        yield fail(reason(error), remedy(error, "use a smaller file"))
    except FormatError as error:
        yield fail(reason(error), remedy(error, "download the file again"))
    except ZincError as error:
        yield fail(reason(error), remedy(error, "choose another file"))


def _memory(planned: PlannedModel) -> Iterator[Finding]:
    """Compare what a context needs with what each memory has."""
    context = planned.options.context or min(planned.spec.context, CONTEXT_TOKENS)
    report = fit_text.report_of(planned, context)
    for memory in report.memories:
        needed, available = size(memory.needed_bytes), size(memory.available_bytes)
        text = f"{memory.backend}: {context:,} tokens need {needed}, {available} are available"
        if memory.fits:
            yield ok(text)
        else:
            yield fail(text, "use a smaller file or quantisation, or a smaller --context")
    fitting = report.fitting_context_tokens
    if fitting >= context:
        yield ok(f"contexts of up to {fitting:,} tokens fit")
    if report.decode_tokens_per_s is not None:
        yield ok(
            f"read bandwidth allows a decode speed of {fit_text.speed(report.decode_tokens_per_s)}"
        )
