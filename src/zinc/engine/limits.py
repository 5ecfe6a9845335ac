"""Limits of a request: the kind of its model, and the length of its prompt and its answer."""

from __future__ import annotations

from collections.abc import Sequence

from zinc.core.dataclass import dataclass
from zinc.core.errors import RequestError, UnsupportedError
from zinc.engine.sampling import SamplingParams
from zinc.models.parts.spec import ModelKind


def check_generates(kind: ModelKind) -> None:
    """Raise UnsupportedError if models of this kind generate no text."""
    what = "this model cannot generate or score text"
    match kind:
        case ModelKind.ENCODER:
            raise UnsupportedError(
                what,
                "it is an encoder, which turns texts into embeddings",
                "ask it for embeddings, or load a model that generates text",
            )
        case ModelKind.RERANKER:
            raise UnsupportedError(
                what,
                "it is a reranker, which scores documents for a query",
                "ask it to rank documents, or load a model that generates text",
            )


def check_embeds(kind: ModelKind) -> None:
    """Raise UnsupportedError if models of this kind make no meaningful embeddings."""
    if kind is ModelKind.RERANKER:
        raise UnsupportedError(
            "this model makes no embeddings",
            "it is a reranker, which scores documents for a query",
            "ask it to rank documents, or load an embedding model",
        )


def check_ranks(kind: ModelKind) -> None:
    """Raise UnsupportedError if models of this kind do not rank documents."""
    if kind is not ModelKind.RERANKER:
        raise UnsupportedError(
            "this model cannot rank documents",
            "its file has no classification head, or its pooling type is not rank",
            "load a reranker, or compare embeddings",
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a model, against which requests are checked.

    n_vocab: number of token ids. max_sequence_tokens: the most tokens of prompt and answer
    together.
    """

    n_vocab: int
    max_sequence_tokens: int

    def answer_tokens(self, ids: Sequence[int], params: SamplingParams) -> int:
        """Return how many tokens may be generated for a prompt of `ids`.

        Raises RequestError if the prompt cannot run.
        """
        if not ids:
            raise RequestError(
                "the prompt is empty", "a model needs at least one token", "write something"
            )
        if not 0 <= min(ids) <= max(ids) < self.n_vocab:
            raise RequestError(
                "the prompt has a token id outside the vocabulary",
                f"ids lie between 0 and {self.n_vocab - 1}",
            )
        room = self.max_sequence_tokens - len(ids)
        shift = params.context_shift
        if shift is not None:
            self._check_shift(len(ids) if shift == -1 else shift, params)
        if room < (0 if params.max_tokens == 0 else 1):
            raise RequestError(
                "the prompt is too long",
                f"it has {len(ids)} tokens, and the context holds {self.max_sequence_tokens} "
                "including the answer",
                "shorten it, or load the model with a larger {context}",
            )
        if params.max_tokens is None:
            return room
        return params.max_tokens if shift is not None else min(room, params.max_tokens)

    def _check_shift(self, n_kept: int, params: SamplingParams) -> None:
        most = self.max_sequence_tokens // 2
        if params.max_tokens is None:
            raise RequestError(
                "context_shift needs max_tokens",
                "nothing else would end such an answer",
                "set max_tokens",
                argument="context_shift",
            )
        if n_kept > most:
            raise RequestError(
                f"context_shift cannot keep {n_kept} tokens",
                f"half of the context of {2 * most} must be free for the text that follows",
                "keep fewer, or load the model with a larger {context}",
                argument="context_shift",
            )
