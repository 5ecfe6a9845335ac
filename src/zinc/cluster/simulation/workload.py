"""The requests of a simulation: generated conversations, or a recorded trace.

A trace is a file of JSON objects, one a line and request:

    at                arrival in seconds; or `follows`, the number of an earlier line (the first is
                      0), and `wait`, the seconds from the end of its answer
    body              the request, as a client sends it
    prompt_tokens     tokens of the prompt (default: a quarter of the bytes of its text)
    answer_tokens     tokens of the answer (default: the `max_tokens` of the request, or 256)
    answer            text of the answer, for the prefix cache (default: none)

Generated requests are such lines too, so that they can be sent to a real cluster.
"""

from __future__ import annotations

import heapq
import itertools
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from zinc.cluster.prompt_blocks import BLOCK_BYTES, DIGEST_BYTES, prompt_blocks
from zinc.core.dataclass import dataclass
from zinc.core.errors import RequestError

TOKEN_BYTES = 4  # of text, where the number of its tokens is not known
CACHE_BLOCK_BYTES = 64  # of text: about 16 tokens
_ANSWER_TOKENS = 256  # of a request that has no limit
_WORDS = (
    "river", "stone", "harbour", "evening", "letter", "garden", "window", "winter", "captain",
    "silver", "forest", "market", "bridge", "morning", "story", "shadow", "valley", "music",
    "teacher", "island", "summer", "doctor", "engine", "paper",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Traffic:
    """Conversations that begin as a Poisson process.

    requests: in all. rate: requests per second, on average. systems: system prompts; each
    conversation has one of them. turns: requests of a conversation. think_s: mean time from an
    answer to the next turn. system_tokens: of each system prompt. turn_tokens, answer_tokens: means
    of exponential distributions, or the length of every text with `even`.
    """

    requests: int = 2000
    rate: float = 10.0
    systems: int = 10
    turns: int = 5
    think_s: float = 20.0
    system_tokens: int = 1000
    turn_tokens: int = 200
    answer_tokens: int = 150
    even: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """A request of a simulation.

    at_s: time of arrival; with `follows`, the index of an earlier request, the time since its end.
    blocks: digests of the prompt for the router. cached, kept: digests of the prompt, and of prompt
    and answer, in blocks of `CACHE_BLOCK_BYTES`.
    """

    at_s: float
    follows: int | None
    blocks: bytes
    cached: bytes
    kept: bytes
    prompt_tokens: int
    answer_tokens: int

    @property
    def block_tokens(self) -> float:
        """The tokens of a block of `cached`."""
        return self.prompt_tokens / max(1, len(self.cached) // DIGEST_BYTES)


def generate(traffic: Traffic, seed: int = 0) -> list[dict[str, Any]]:
    """Return the lines of a trace with this traffic."""
    rng = random.Random(seed)

    def length(mean: int) -> int:
        return mean if traffic.even else 1 + int(rng.expovariate(1 / mean))

    systems = [_text(traffic.system_tokens, rng) for _ in range(traffic.systems)]
    lines: list[dict[str, Any]] = []
    numbers = itertools.count()
    # The next turn of each conversation: its time if answers took none, a number that decides
    # between equal times, the messages before it, and how it arrives.
    turns: list[tuple[float, int, list[dict[str, str]], dict[str, float]]] = []
    begins_s = 0.0
    while len(lines) < traffic.requests:
        if not turns or begins_s <= turns[0][0]:
            system = {"role": "system", "content": rng.choice(systems)}
            heapq.heappush(turns, (begins_s, next(numbers), [system], {"at": begins_s}))
            begins_s += rng.expovariate(traffic.rate / traffic.turns)
            continue
        at_s, _, before, arrival = heapq.heappop(turns)
        messages = [*before, {"role": "user", "content": _text(length(traffic.turn_tokens), rng)}]
        answer_tokens = length(traffic.answer_tokens)
        answer = _text(answer_tokens, rng)
        body = {"messages": messages, "max_tokens": answer_tokens}
        lines.append({**arrival, "body": body, "answer_tokens": answer_tokens, "answer": answer})
        if len(messages) < 2 * traffic.turns:
            wait_s = rng.expovariate(1 / traffic.think_s) if traffic.think_s else 0.0
            turn = [*messages, {"role": "assistant", "content": answer}]
            follows = {"follows": len(lines) - 1, "wait": wait_s}
            heapq.heappush(turns, (at_s + wait_s, next(numbers), turn, follows))
    return lines


def _text(n_tokens: int, rng: random.Random) -> str:
    n_bytes = n_tokens * TOKEN_BYTES
    words = (rng.choice(_WORDS) for _ in itertools.count())
    text = ""
    while len(text) < n_bytes:
        text += next(words) + " "
    return text[:n_bytes]


def read_trace(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a trace. Raises RequestError for an invalid line, and OSError."""
    lines: list[dict[str, Any]] = []
    for number, text in enumerate(path.read_text("utf-8").splitlines()):
        try:
            line = json.loads(text)
            follows = line.get("follows")
            if not isinstance(line["body"], dict) or (follows is None and line["at"] < 0):
                raise ValueError
            if follows is not None and not 0 <= follows < number:
                raise ValueError
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise RequestError(
                "the trace cannot be read",
                f"line {number + 1} of {path.name} is not a request with a time of arrival",
                "see docs/cluster.md",
            ) from None
        lines.append(line)
    if not lines:
        raise RequestError(
            "the trace has no requests",
            f"{path.name} is empty",
            "write one with `zinc cluster simulate --save-trace`",
        )
    return lines


def requests(lines: Iterable[dict[str, Any]]) -> list[Request]:
    """Return the requests of a trace."""
    return [_request(line) for line in lines]


def _request(line: dict[str, Any]) -> Request:
    body: dict[str, Any] = line["body"]
    cached = prompt_blocks(body, block_bytes=CACHE_BLOCK_BYTES)
    kept = _with_answer(body, line.get("answer", ""))
    limit = body.get("max_completion_tokens") or body.get("max_tokens") or _ANSWER_TOKENS
    text_tokens = len(cached) // DIGEST_BYTES * CACHE_BLOCK_BYTES // TOKEN_BYTES
    follows = line.get("follows")
    return Request(
        at_s=float(line["at"] if follows is None else line.get("wait", 0.0)),
        follows=follows,
        blocks=prompt_blocks(body, block_bytes=BLOCK_BYTES),
        cached=cached,
        kept=prompt_blocks(kept, block_bytes=CACHE_BLOCK_BYTES),
        prompt_tokens=max(1, int(line.get("prompt_tokens") or text_tokens)),
        answer_tokens=max(1, int(line.get("answer_tokens") or limit)),
    )


def _with_answer(body: dict[str, Any], answer: str) -> dict[str, Any]:
    """Return a request whose prompt includes the answer, as the prompt of the next turn does."""
    if answer and isinstance(body.get("messages"), list):
        message = {"role": "assistant", "content": answer}
        return {**body, "messages": [*body["messages"], message]}
    if answer and isinstance(body.get("prompt"), str):
        return {**body, "prompt": body["prompt"] + answer}
    return body
