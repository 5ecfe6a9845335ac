"""Scoring texts: logits of every token, and perplexity."""

from __future__ import annotations

import numpy as np

from zinc.core.errors import RequestError
from zinc.engine.load.model import LoadedModel
from zinc.engine.load.weights import Progress
from zinc.engine.readout import Readout, TextLikelihood, TextLogits
from zinc.llm.answers import ReadoutTask
from zinc.ops.values import FloatArray


def logits(model: LoadedModel, ids: list[int]) -> FloatArray:
    """Return the logits after each token of `ids`, float32 [tokens, vocab]. Raises RequestError."""
    readout = TextLogits()
    _run(model, ids, readout)
    return readout.logits


def perplexity(
    model: LoadedModel,
    ids: list[int],
    window: int,
    bos: int | None,
    progress: Progress | None = None,
) -> float:
    """Return the perplexity of `ids` in windows of `window` tokens, as `LLM.perplexity` describes.

    bos: replaces the first token of each window. progress: called with the windows scored and the
    windows in all. Raises RequestError.
    """
    if not 2 <= window <= model.context:
        raise RequestError(
            f"a window of {window} tokens is not possible",
            f"it must lie between 2 and the context of {model.context}",
        )
    n_windows = len(ids) // window
    if n_windows == 0:
        raise RequestError(
            "the text is too short for a perplexity",
            f"it has {len(ids)} tokens and a window takes {window}",
            "use a longer text or a smaller {window}",
        )
    total, count = 0.0, 0
    for i in range(n_windows):
        part = ids[i * window : (i + 1) * window]
        if bos is not None:
            part[0] = bos
        scored = TextLikelihood(first_scored=window // 2)
        _run(model, part, scored)
        total, count = total + scored.total, count + scored.count
        if progress is not None:
            progress(i + 1, n_windows)
    return float(np.exp(total / count))


def _run(model: LoadedModel, ids: list[int], readout: Readout) -> None:
    """Run `ids` without an answer; `readout` takes the rows. Raises RequestError."""
    worker = model.worker
    if not 0 < len(ids) <= model.context:
        raise RequestError(
            f"cannot score {len(ids)} tokens",
            f"the context holds 1 to {model.context}",
            "score fewer tokens, or load the model with a larger {context}",
        )
    if not 0 <= min(ids) <= max(ids) < model.spec.vocab:
        raise RequestError(
            "cannot score the tokens",
            f"an id lies outside the vocabulary of {model.spec.vocab}",
        )
    worker.run(ReadoutTask([ids], [readout], model.adapter_use()))
