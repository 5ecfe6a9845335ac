"""Logits of a text on two backends: both read the same tokens, whatever they would predict."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from zinc.core.errors import RequestError
from zinc.engine.load.options import BATCH_TOKENS
from zinc.engine.load.self_test import relative_error
from zinc.engine.readout import TextLikelihood
from zinc.llm import LLM
from zinc.ops.values import FloatArray

LOGITS_TOLERANCE = 5e-2  # either backend may round rows to 8 bits in each product
PERPLEXITY_TOLERANCE = 5e-3


@dataclass(frozen=True, slots=True)
class Agreement:
    """How logits of a text agree with those of the reference.

    error: relative error. same_argmax: share of tokens whose most likely successor is equal.
    """

    error: float
    same_argmax: float
    perplexity: float
    reference_perplexity: float

    @property
    def passes(self) -> bool:
        apart = abs(self.perplexity / self.reference_perplexity - 1)
        return self.error <= LOGITS_TOLERANCE and apart <= PERPLEXITY_TOLERANCE

    def __str__(self) -> str:
        return (
            f"logits depart by {self.error:.2e} (allowed {LOGITS_TOLERANCE:.0e}), "
            f"argmax agrees at {self.same_argmax:.2%}, perplexity {self.perplexity:.4f}, "
            f"reference {self.reference_perplexity:.4f} (allowed {PERPLEXITY_TOLERANCE:.1%})"
        )


def compare(
    model: Path | None, text: str, n_tokens: int, backend: str, device: str, reference: str
) -> Iterator[tuple[str, Agreement]]:
    """Compare `backend` with `reference` on the first tokens of `text`, in steps of 512 and of 1.

    model: a model file; None is the embedded model. Yields a name and the agreement.
    """
    ids, wanted = logits(model, text, n_tokens, reference, "", BATCH_TOKENS)
    for size in (BATCH_TOKENS, 1):
        _, got = logits(model, text, n_tokens, backend, device, size)
        yield f"{n_tokens} tokens in steps of {size}", agreement(ids, got, wanted)


def agreement(ids: list[int], got: FloatArray, wanted: FloatArray) -> Agreement:
    """Return how the logits `got` [tokens, vocab] of the text `ids` agree with `wanted`."""
    same = float((got.argmax(axis=1) == wanted.argmax(axis=1)).mean())
    return Agreement(
        relative_error(got, wanted), same, _perplexity(ids, got), _perplexity(ids, wanted)
    )


def _perplexity(ids: list[int], logits: FloatArray) -> float:
    likelihood = TextLikelihood(first_scored=0)
    likelihood.read(ids, 0, logits)
    return float(np.exp(likelihood.total / likelihood.count))


def logits(
    model: Path | None, text: str, n_tokens: int, backend: str, device: str, batch_tokens: int
) -> tuple[list[int], FloatArray]:
    """Return the first tokens of a text, and their logits from steps of `batch_tokens`."""
    with LLM(
        model,
        backend=backend,
        context=n_tokens,
        kv_dtype="f16",
        batch_tokens=batch_tokens,
        prefix_cache=False,
        options={"device": device} if device else {},
    ) as llm:
        tokenizer = llm.tokenizer
        bos = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
        ids = (bos + tokenizer.encode(text))[:n_tokens]
        if len(ids) < n_tokens:
            raise RequestError(f"the text has only {len(ids)} tokens", "", "pass a longer --text")
        return ids, llm.logits(ids)
