"""Results of completions in the form of llama.cpp's server."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from zinc.engine.sampling import Sampled, SamplingParams
from zinc.server.apis.llama.fields import NativeFields
from zinc.server.apis.openai.usage import (
    progress_members,
    timings_member,
    timings_object,
    token_logprob,
)
from zinc.server.apis.shared.text import PlainText
from zinc.server.runtime.job import End
from zinc.server.runtime.runner import Generation
from zinc.server.runtime.served_model import ServedModel


class CompletionResult:
    """One answer in llama.cpp's form: its chunks, and its final object."""

    def __init__(
        self, model: ServedModel, fields: NativeFields, generation: Generation, index: int
    ) -> None:
        self._model, self._fields = model, fields
        self._generation, self._index = generation, index
        self._text = ""
        self._tokens: list[Sampled] = []

    def add(self, text: str, tokens: Sequence[Sampled]) -> None:
        """Add text and its tokens to the answer."""
        self._text += text
        self._tokens += tokens

    def piece(self, piece: PlainText) -> dict[str, Any]:
        """Add a piece to the answer, and return its chunk."""
        tokens = piece.tokens
        self.add(piece.text, tokens)
        found: dict[str, Any] = {
            "index": self._index,
            "content": piece.text,
            "tokens": [s.token for s in tokens],
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": len(self._tokens),
            "tokens_evaluated": self._generation.n_prompt,
        }
        if piece.progress is not None:
            return found | progress_members(piece.progress, self._fields.timings_per_token)
        found |= timings_member(piece.timings)
        if self._fields.n_probs:
            found["completion_probabilities"] = self._probabilities(tokens)
        return found

    def final(self, end: End, streamed: bool = False) -> dict[str, Any]:
        """Return the final object. streamed: without text, which was sent in chunks."""
        t, params = end.timings, self._generation.job.params
        kind = "word" if end.stop is not None else {"stop": "eos"}.get(end.reason, "limit")
        wanted = self._fields.return_tokens and not streamed
        n_used = t.prompt_tokens + t.generated_tokens
        found: dict[str, Any] = {
            "index": self._index,
            "content": "" if streamed else self._text,
            "tokens": [s.token for s in self._tokens] if wanted else [],
            "id_slot": -1,
            "stop": True,
            "model": self._model.name,
            "tokens_predicted": t.generated_tokens,
            "tokens_evaluated": t.prompt_tokens,
            "generation_settings": settings(params, self._model),
            "prompt": self._model.tokenizer.decode(self._generation.job.ids, skip_special=False),
            "has_new_line": "\n" in self._text,
            "truncated": t.shifted_tokens > 0 or n_used >= self._model.context,
            "stop_type": kind,
            "stopping_word": end.stop or "",
            "tokens_cached": t.cached_tokens,
            "timings": timings_object(t),
        }
        if self._fields.n_probs and not streamed:
            found["completion_probabilities"] = self._probabilities(self._tokens)
        wanted_fields = self._fields.response_fields
        return _selected(found, wanted_fields) if wanted_fields else found

    def _probabilities(self, tokens: Sequence[Sampled]) -> list[dict[str, Any]]:
        drawn = bool(self._fields.post_sampling_probs)

        def one(token: int, logprob: float | None) -> dict[str, Any]:
            found = {"id": token, **token_logprob(self._model.tokenizer, token, logprob)}
            return found | {"prob": math.exp(found.pop("logprob"))} if drawn else found

        top = "top_probs" if drawn else "top_logprobs"
        return [
            {**one(s.token, s.logprob), top: [one(t, p) for t, p in s.top_logprobs]} for s in tokens
        ]


# Settings of samplers that zinc does not have, with values that turn them off.
_OFF = {
    "dynatemp_range": 0.0,
    "dynatemp_exponent": 1.0,
    "adaptive_target": -1.0,
    "adaptive_decay": 0.9,
}


def settings(params: SamplingParams, model: ServedModel) -> dict[str, Any]:
    """Return sampling parameters under the names of llama.cpp's server."""
    banned = dict.fromkeys(model.tokenizer.eog_ids, -math.inf) if params.ignore_eos else {}
    renamed = {"max_tokens": "n_predict", "logprobs": "n_probs"}
    found: dict[str, Any] = {
        renamed.get(name, name): getattr(params, name) for name in SamplingParams.__slots__
    }
    found |= {
        **_OFF,
        "n_ctx": model.context,
        "n_predict": -1 if params.max_tokens is None else params.max_tokens,
        "n_probs": params.logprobs or 0,
        "logit_bias": [
            {"token": token, "bias": bias if bias > -1e9 else None}
            for token, bias in {**params.logit_bias, **banned}.items()
        ],
        "seed": 0xFFFFFFFF if params.seed is None else params.seed,
    }
    return found


def _selected(found: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the members of `found` called `names`. The name `a/b` means member b of member a."""
    selected: dict[str, Any] = {}
    for name in names:
        value: Any = found
        for part in name.split("/"):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            selected[name] = value
    return selected
