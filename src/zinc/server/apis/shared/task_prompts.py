"""Texts that embedding models expect before a query or a document.

Requests say what a text is for: `input_type` of Cohere, Voyage and NVIDIA, `task` of Jina,
`prompt_name` of Text Embeddings Inference. Model files do not state the texts, so they are known
for architectures whose published models share them. For others a request has no effect on the
text. Sources: the model cards of nomic-embed-text-v1.5, nomic-embed-text-v2-moe and
embeddinggemma-300m.
"""

from __future__ import annotations

from zinc.server.errors import invalid

_NOMIC = {
    "query": "search_query: ",
    "document": "search_document: ",
    "classification": "classification: ",
    "clustering": "clustering: ",
}
PROMPTS = {
    "nomic-bert": _NOMIC,
    "nomic-bert-moe": _NOMIC,
    "gemma-embedding": {
        "query": "task: search result | query: ",
        "document": "title: none | text: ",
        "classification": "task: classification | query: ",
        "clustering": "task: clustering | query: ",
        "similarity": "task: sentence similarity | query: ",
    },
}
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


def task_prompt(architecture: str, purpose: str | None, param: str) -> str:
    """Return the text to put before each text of a request, "" if the model needs none.

    purpose: the value of the field `param`. Raises ApiError if it is unknown.
    """
    if purpose is None:
        return ""
    if purpose not in PURPOSES:
        raise invalid(param, f"{param} is {purpose!r}", f"it must be one of {', '.join(PURPOSES)}")
    return PROMPTS.get(architecture, {}).get(PURPOSES[purpose], "")
