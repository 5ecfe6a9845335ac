"""Texts that embedding models expect before a query or a document.

Requests say what a text is for: `input_type` of Cohere, Voyage and NVIDIA, `task` of Jina,
`prompt_name` of Text Embeddings Inference. GGUF files do not contain these texts, so the
architectures of `zinc.models` state them (`ModelSpec.task_prompts`). For models without such texts,
these fields have no effect.
"""

from __future__ import annotations

from zinc.models.parts.spec import ModelSpec
from zinc.server.errors import invalid

PURPOSES = {
    "query": "query",
    "search_query": "query",
    "retrieval.query": "query",
    "document": "document",
    "passage": "document",
    "search_document": "document",
    "retrieval.passage": "document",
    "classification": "classification",
    "clustering": "clustering",
    "separation": "clustering",
    "similarity": "similarity",
    "text-matching": "similarity",
}


def task_prompt(spec: ModelSpec, purpose: str | None, param: str) -> str:
    """Return the text to put before each text of a request, "" if the model needs none.

    purpose: the value of the field `param`. Raises ApiError if it is unknown.
    """
    if purpose is None:
        return ""
    if purpose not in PURPOSES:
        raise invalid(param, f"{param} is {purpose!r}", f"it must be one of {', '.join(PURPOSES)}")
    return dict(spec.task_prompts).get(PURPOSES[purpose], "")
