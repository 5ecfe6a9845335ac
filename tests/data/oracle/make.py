"""Write llama.cpp's results for the embedded model: answers, perplexity and embeddings.

    python tests/data/oracle/make.py PROSE.txt     (needs llama-cpp-python)

greedy.json: for 20 prompts, the ids of prompt and greedy answer, and the lead of the best logit of
each step over the second. perplexity.json: perplexity of an excerpt of the text (prose.txt) over
windows of 512 tokens, of which the second half is scored. embeddings.npz: mean-pooled embeddings.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import llama_cpp
import numpy as np

HERE = Path(__file__).parent
MODEL = HERE.parents[2] / "src" / "zinc" / "data" / "zinc-demo-30m-q4_k_m.gguf"
WINDOW, EXCERPT_CHARS, ANSWER_TOKENS = 512, 24_000, 32

CHATS = [
    "Hello!",
    "What is the capital of France?",
    "Tell me a short story about a fox.",
    "What is 12 + 7?",
    "Write a list of three fruits.",
    "Who are you?",
    "Give me a JSON object with a name and an age.",
    "Why is the sky blue?",
    "Can you help me cook rice?",
    "Name an animal that can fly.",
]
EMBEDDED = ["Once upon a time", "The ship sailed north.", "The cat sat on the mat. " * 60]
TEXTS = [
    "Once upon a time",
    "The old man walked down to the river and",
    "In the year 1850 the ship",
    "She opened the door, and there stood",
    "The king had three daughters. The eldest",
    '"Where are you going?" asked the',
    "It was a dark night, and the wind",
    "The best way to learn is",
    "Deep in the forest there lived",
    "def add(a, b):",
]


def perplexity(llm: llama_cpp.Llama, text: str) -> float:
    ids = llm.tokenize(text.encode(), add_bos=True, special=False)
    total, count = 0.0, 0
    for at in range(0, len(ids) - WINDOW + 1, WINDOW):
        part = ids[at : at + WINDOW]
        llm.reset()
        llm.eval(part)
        for row in range(WINDOW // 2, WINDOW - 1):
            logits = llm.scores[row].astype(np.float64)
            top = logits.max()
            total += top + np.log(np.exp(logits - top).sum()) - logits[part[row + 1]]
            count += 1
    return float(np.exp(total / count))


def greedy(llm: llama_cpp.Llama, prompt: list[int], end: set[int]) -> dict[str, object]:
    llm.reset()
    llm.eval(prompt)
    answer: list[int] = []
    leads: list[float] = []
    while len(answer) < ANSWER_TOKENS:
        logits = np.array(llm.scores[llm.n_tokens - 1])
        second, first = np.partition(logits, -2)[-2:]
        answer.append(int(logits.argmax()))
        leads.append(round(float(first - second), 4))
        if answer[-1] in end:
            break
        llm.eval(answer[-1:])
    return {"prompt": prompt, "answer": answer, "leads": leads}


def embeddings() -> np.ndarray:
    """Return the embeddings of EMBEDDED, float32 [texts, hidden], of length 1."""
    llm = llama_cpp.Llama(
        str(MODEL), n_ctx=WINDOW, embedding=True, pooling_type=llama_cpp.LLAMA_POOLING_TYPE_MEAN,
        verbose=False, n_threads=2,
    )  # fmt: skip
    return np.array([llm.embed(text, normalize=True) for text in EMBEDDED], np.float32)


def main() -> None:
    np.savez_compressed(HERE / "embeddings.npz", texts=EMBEDDED, rows=embeddings())
    llm = llama_cpp.Llama(
        str(MODEL), n_ctx=WINDOW, n_batch=WINDOW, logits_all=True, verbose=False, n_threads=2
    )
    text = Path(sys.argv[1]).read_text()[:EXCERPT_CHARS]
    (HERE / "prose.txt").write_text(text)
    end = {llm.token_eos()}
    prompts = [llm.tokenize(t.encode(), add_bos=True, special=False) for t in TEXTS]
    for chat in CHATS:
        turn = f"<|im_start|>user\n{chat}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
        prompts.append(llm.tokenize(turn.encode(), add_bos=True, special=True))
    version = llama_cpp.__version__
    report = {"llama_cpp_python": version, "answers": [greedy(llm, p, end) for p in prompts]}
    (HERE / "greedy.json").write_text(json.dumps(report) + "\n")
    report = {
        "llama_cpp_python": version,
        "window": WINDOW,
        "perplexity": round(perplexity(llm, text), 4),
    }
    (HERE / "perplexity.json").write_text(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
